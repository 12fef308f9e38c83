"""What importing Keras for a command leaves out is there again afterwards."""

import os
import subprocess
import sys

import pytest

from spanbert_tf.lazy import UNUSED

IMPORT = f"""
import gc, sys
from spanbert_tf.lazy import import_keras

{{before}}
import_keras()
print(sorted(set({UNUSED!r}) & set(sys.modules)), "keras_hub" in sys.modules, gc.isenabled())
import matplotlib.figure, pandas, sklearn.metrics
import keras
print(keras.ops.sum(keras.ops.ones(3)).numpy())
"""


@pytest.mark.parametrize(
    ("before", "loaded"),
    [("", []), pytest.param("import pandas", ["pandas"], marks=pytest.mark.slow)],
)
def test_other_packages_are_neither_imported_nor_lost(before, loaded):
    program = IMPORT.format(before=before)
    environment = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment
    )
    assert result.stderr == ""  # TensorFlow's lines about the machine are hidden for every importer
    assert result.stdout.splitlines() == [f"{loaded} True True", "3.0"]
