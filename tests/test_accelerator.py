"""The benchmark for accelerators at a small shape, on a machine that has no TensorFlow."""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks import accelerator
from benchmarks.saved_rows import load_rows
from spanbert_tf.data import pretraining_dataset

ROOT = pathlib.Path(__file__).parents[1]
NEEDS_PEERS = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("jax", "torch", "transformers")),
    reason="JAX, PyTorch or transformers is not installed: the extra `test`",
)
# What Python imports first, before any program.
WITHOUT_TENSORFLOW = """
from importlib.machinery import PathFinder

find = PathFinder.find_spec

def find_spec(name, path=None, target=None):
    is_missing = name.split(".")[0] in ("tensorflow", "tensorflow_text", "tf_keras")
    return None if is_missing else find(name, path, target)

PathFinder.find_spec = find_spec
"""


@pytest.fixture(scope="module")
def batches(tiny_records, tmp_path_factory):
    """Twelve rows of 24 positions, written by the command."""
    path = str(tmp_path_factory.mktemp("batches") / "batches")
    command = ["save", "--data", tiny_records, "--output", path]
    command += ["--batches", "3", "--batch-size", "4"]
    result = CliRunner().invoke(accelerator.main, command, catch_exceptions=False)
    assert result.exit_code == 0
    assert result.output.startswith("12 rows of 24 positions")
    return path


@pytest.fixture(scope="module")
def without_tensorflow(tmp_path_factory):
    """Runs Python where TensorFlow is not installed, and returns its output."""
    directory = tmp_path_factory.mktemp("site")
    (directory / "sitecustomize.py").write_text(WITHOUT_TENSORFLOW)
    environment = os.environ | {"PYTHONPATH": f"{directory}{os.pathsep}{ROOT}"}

    def run(*arguments):
        child = subprocess.run(
            [sys.executable, *arguments], env=environment, capture_output=True, text=True
        )
        assert child.returncode == 0, child.stderr[-5000:]
        return child.stdout

    look = "import importlib.util; print(importlib.util.find_spec('tensorflow'))"
    assert run("-c", look) == "None\n"
    return run


def test_saved_rows_are_those_of_training_in_order(batches, tiny_records):
    rows = load_rows(batches)
    expected = pretraining_dataset(tiny_records, batch_size=6, seed=0).take(2)
    for found, batch in zip(rows.batches(6), expected.as_numpy_iterator(), strict=True):
        assert found.keys() == batch.keys()
        for name in batch:
            np.testing.assert_array_equal(found[name], batch[name])
    assert len(rows.batches(5)) == 2  # two rows are left over


def test_too_few_rows_are_refused(batches):
    command = ["run", "--batches", batches, "--size", "small", "--batch-size", "13"]
    result = CliRunner().invoke(accelerator.main, command)
    assert result.exit_code == 1
    assert "13 rows: only 12" in result.output


@pytest.mark.parametrize(
    ("objectives", "of_heads"),
    [
        ("MLM", 3 * 3 + 3 * 7),
        ("MLM, all logits", 3 * 3 + 3 * 7),  # what it computes beyond MLM's need does not count
        ("MLM and SBO", 3 * 3 + 3 * 7 + (3 + 3 + 200) * 3 + 3 * 3 + 3 * 7),
    ],
)
def test_model_flops_by_hand(objectives, of_heads):
    """Two layers of width 3 and inner width 5, 7 vocabulary entries, 2 rows of 4 positions."""
    sizes = {"num_layers": 2, "num_heads": 1, "hidden_dim": 3, "intermediate_dim": 5}
    matrices = 2 * (4 * 3 * 3 + 3 * 5 + 5 * 3)
    scores_and_means = 2 * (2 * 4 * 4 * 3)  # of a layer and a row, multiplied and added
    forward = 2 * 2 * 4 * matrices + 2 * 2 * scores_and_means + 2 * 2 * 1 * of_heads
    found = accelerator.model_flops(sizes, 7, objectives, num_rows=2, length=4, slots=1)
    assert found == 3 * forward  # the backward pass is two of them


@NEEDS_PEERS
@pytest.mark.slow
def test_first_loss_is_that_of_transformers(batches, without_tensorflow):
    output = without_tensorflow(
        *("-m", "benchmarks.accelerator", "losses", "--batches", batches),
        *("--size", "small", "--batch-size", "8"),
    )
    ours, targets, everywhere = (float(value) for value in re.findall(r": (\d+\.\d{6})", output))
    assert abs(ours - targets) < 1e-4
    assert abs(ours - everywhere) < 1e-4
    assert 3 < ours < 6  # of 60 entries, untrained


@NEEDS_PEERS
@pytest.mark.slow
def test_table_has_both_sides_with_and_without_attention_dropout(batches, without_tensorflow):
    output = without_tensorflow(
        *("-m", "benchmarks.accelerator", "run", "--batches", batches, "--size", "small"),
        *("--batch-size", "4", "--rounds", "1", "--steps", "1", "--no-compile"),
    )
    print(output)
    rows = re.findall(
        r"^(\w+): ([\w ,]+); ((?:no )?attention dropout), .* ([\d.]+)%$", output, re.MULTILINE
    )
    assert [row[:3] for row in rows] == [
        (side, objectives, dropout)
        for side, ways in (
            ("spanbert_tf", ("MLM", "MLM and SBO")),
            ("transformers", ("MLM", "MLM, all logits")),
        )
        for dropout in ("attention dropout", "no attention dropout")
        for objectives in ways
    ]
    assert len(re.findall(r"x as fast as transformers", output)) == 4
