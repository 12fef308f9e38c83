"""What is installed without a clone beside it."""

import pathlib
import subprocess
import sys

import pytest

from spanbert_tf.config import shipped_names

ROOT = pathlib.Path(__file__).parents[3]
PROGRAM = """
from spanbert_tf.config import load_config, shipped_directory, shipped_names
for kind in ("pretrain", "finetune"):
    print(shipped_directory(kind), *shipped_names(kind))
load_config("spanbert_base")  # on a base of its own
"""


def test_configurations_are_installed_with_the_package(tmp_path):
    pytest.importorskip("setuptools", reason="builds the package")
    build = [sys.executable, "setup.py", "-q", "build_py", "--build-lib", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
        check=True,
        capture_output=True,
        text=True,
    )
    expected = [
        " ".join([str(tmp_path / "spanbert_tf" / "configs" / kind), *shipped_names(kind)])
        for kind in ("pretrain", "finetune")
    ]
    assert found.stdout.splitlines() == expected
