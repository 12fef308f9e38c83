"""Steps compiled by the TPU's own compiler, for eight chips that are not here: the extra `tpu`."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import pytest

pytestmark = [
    pytest.mark.tpu,
    pytest.mark.skipif(
        importlib.util.find_spec("libtpu") is None, reason="libtpu is missing: the extra `tpu`"
    ),
]
PROGRAM = pathlib.Path(__file__).parents[2] / "support" / "plan_program.py"
PRETRAINING = ["spanbert_base", "bert_2seq_nsp", "segabert_base"]
FINETUNING = ["squad_v1", "named_entities", "tacred", "mnli", "coreference_spanbert_base"]
NAMES = [*PRETRAINING, *FINETUNING]


def run(backend, *arguments):
    """What the program finds of each configuration, by its name."""
    child = subprocess.run(
        [sys.executable, str(PROGRAM), *arguments],
        env={**os.environ, "KERAS_BACKEND": backend},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr[-3000:]
    found = [json.loads(line) for line in child.stdout.splitlines() if line.startswith("{")]
    return {one["name"]: one for one in found}


@pytest.fixture(scope="module")
def compiled():
    return run("jax", "v5e:2x4", *NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_chips_share_gradients_and_never_gather_weights(name, compiled):
    found = compiled[name]
    assert found["gathered_weights"] == []
    if name.startswith("coreference"):  # ranks spans across its documents, which chips exchange
        return
    assert set(found["collectives"]) == {"all-reduce"}
    # Two or four bytes a number; the tied embedding's come from its lookups and from the heads.
    assert found["gradients"] / 2 <= found["collectives"]["all-reduce"] <= 2 * found["gradients"]


@pytest.mark.parametrize("name", NAMES)
def test_weights_and_optimizer_are_donated(name, compiled):
    found = compiled[name]
    assert found["aliased"] >= found["state"]  # layouts pad


@pytest.mark.parametrize("name", NAMES)
def test_a_described_state_is_that_of_a_model_that_is_made(name, compiled):
    assert compiled[name]["state"] == compiled[name]["made"]
    assert compiled[name]["state"] < compiled[name]["memory"]


def test_a_plan_says_the_memory_of_a_model_that_is_made():
    (found,) = run("jax", "v5e:1x1", "spanbert_base").values()
    assert found["memory"] == pytest.approx(found["memory_of_made"], rel=0.05)


def test_steps_of_tensorflow_compile_for_a_chip():
    for found in run(
        "tensorflow", "v5e:1x1", "spanbert_base", "coreference_spanbert_base"
    ).values():
        assert found["aliased"] >= found["trained"]
        assert found["memory"] < found["limit"]


def test_what_cannot_be_is_one_line():
    def said(*arguments):
        words = [sys.executable, "-m", "spanbert_tf.cli", "plan", "--config", "spanbert_large"]
        child = subprocess.run(
            [*words, *arguments], capture_output=True, text=True, check=False, env=os.environ
        )
        assert child.returncode == 2, child.stderr[-3000:]
        return child.stderr.splitlines()[-1]

    line = said("--device", "v5e:3x3")
    assert line.startswith("spanbert-tf: --device v5e:3x3: TPUs do not come so (")
    assert "v5e:16x16" in line
    assert said("--device", "v5e:2x4", "--rows", "12").endswith("try --rows 16")
