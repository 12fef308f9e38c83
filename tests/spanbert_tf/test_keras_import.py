"""What importing Keras or TensorFlow for a command leaves out is there again afterwards."""

import os
import subprocess
import sys

import pytest

from spanbert_tf.lazy import UNUSED

IMPORT = f"""
import gc, sys
from spanbert_tf.lazy import import_keras, import_tensorflow

{{before}}
{{function}}()
print(sorted(set({UNUSED!r}) & set(sys.modules)), "tensorflow" in sys.modules)
print(gc.isenabled(), gc.get_freeze_count() > 100_000)
import matplotlib.figure, pandas, sklearn.metrics
import keras
print(keras.ops.sum(keras.ops.ones(3)).numpy())
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "before", "loaded"),
    [
        ("import_keras", "", []),
        ("import_keras", "import pandas", ["pandas"]),
        ("import_tensorflow", "", []),
    ],
)
def test_other_packages_are_neither_imported_nor_lost(function, before, loaded):
    """And the objects that are imported are excluded from garbage collection."""
    program = IMPORT.format(function=function, before=before)
    environment = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment
    )
    assert result.stderr == ""  # TensorFlow's lines about the machine are hidden for every importer
    assert result.stdout.splitlines() == [f"{loaded} True", "True True", "3.0"]


@pytest.mark.parametrize(
    ("options", "told"),
    [("leaves_cards=True", True), pytest.param("", False, marks=pytest.mark.slow)],
)
def test_tensorflow_is_told_to_leave_the_gpus_to_another_process(options, told):
    """By what TensorFlow keeps of it, which a machine without a card has, too."""
    program = f"""
from spanbert_tf.lazy import import_keras
import_keras({options})
from tensorflow.python.eager import context
visible = context.context()._visible_device_list
print(bool(visible) and all(device.device_type != "GPU" for device in visible))
"""
    environment = os.environ | {"KERAS_BACKEND": "tensorflow"}
    found = subprocess.check_output([sys.executable, "-c", program], text=True, env=environment)
    assert found == f"{told}\n"
