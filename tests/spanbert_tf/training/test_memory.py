"""What a step takes of memory: the estimate beside the process, and what is said of too much."""

import json
import os
import subprocess
import sys

import pytest
import tensorflow as tf

from spanbert_tf.config import load_config
from spanbert_tf.errors import TrainingError
from spanbert_tf.pretraining.model import compiled_pretrainer
from spanbert_tf.training.memory import activations, describe_step, names_exhaustion

SIZES = ["model.num_layers=4", "model.hidden_dim=256", "model.num_heads=4"]
SIZES += ["model.intermediate_dim=1024", "training.precision=float32", "data.sequence_length=512"]
VOCABULARY_SIZE = 500
# Trains two steps of random rows, and prints the estimate and the peak of the process in bytes.
PROGRAM = r"""
import json, re, sys
import numpy as np
import tensorflow as tf
from spanbert_tf.config import load_config
from spanbert_tf.pretraining.model import compiled_pretrainer
from spanbert_tf.training.memory import activations

config = load_config("spanbert_base", sys.argv[1:])
rows, length, slots = config.training.batch_size, config.data.sequence_length, 77
model = compiled_pretrainer(config, 500)
random = np.random.default_rng(0)
ids = lambda limit, *shape: random.integers(0, limit, (rows, *shape)).astype("int32")
batch = {name: ids(limit, length) for name, limit in (("token_ids", 500), ("segment_ids", 1))}
batch["padding_mask"] = np.ones((rows, length), "int32")
for name in ("mask_positions", "span_left_positions", "span_right_positions"):
    batch[name] = ids(length, slots)
batch |= {"mask_ids": ids(500, slots), "span_offsets": ids(20, slots)}
batch |= {name: np.ones((rows, slots), "float32") for name in ("mask_weights", "span_weights")}
model.fit(tf.data.Dataset.from_tensors(batch).repeat(), steps_per_epoch=2, verbose=0)
# Not `ru_maxrss`, which begins with what the process had that started this one.
peak = int(re.search(r"VmHWM:\s+(\d+) kB", open("/proc/self/status").read())[1]) * 1024
print(json.dumps([activations(model, config, 1), peak]))
"""


def child(*command, **environment):
    return subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["training.gradient_checkpointing=true"]])
def test_activations_are_what_more_rows_take_of_the_process(options):
    """Within 30 %: allocators round, and what is temporary is not counted."""
    estimates, peaks = [], []
    for rows in (4, 20):
        overrides = [*SIZES, *options, f"training.batch_size={rows}"]
        ended = child("-c", PROGRAM, *overrides)
        assert ended.returncode == 0, ended.stderr[-2000:]
        estimate, peak = json.loads(ended.stdout.splitlines()[-1])
        estimates.append(estimate)
        peaks.append(peak)
    assert peaks[1] - peaks[0] == pytest.approx(estimates[1] - estimates[0], rel=0.3)


def test_parts_of_the_estimate_are_counted_by_hand(tiny_overrides):
    overrides = ["training.batch_size=12", "training.accumulation_steps=2"]
    config = load_config("spanbert_base", [*tiny_overrides, *overrides])
    model = compiled_pretrainer(config, 60)
    length, model_config = config.data.sequence_length, config.model
    count = sum(tf.size(v).numpy() for v in model.trainable_variables)
    line = describe_step(model, config, 1)
    assert f"gradients {4 * count / 1000:.1f} kB" in line
    row = 19 * 4 * length * model_config.hidden_dim + 1.3 * 4 * model_config.num_heads * length**2
    slots = 2 * -(-length * 15 // 100)
    row = (model_config.num_layers + 1) * row + 3 * 4 * slots * 60
    assert activations(model, config, 1) == round(6 * row)
    assert activations(model, config, 3) == round(2 * row)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [5_000_000, 80_000_000])
def test_too_little_memory_is_one_line_with_what_to_change(
    limit, tiny_overrides, tiny_records, tmp_path
):
    """Of TensorFlow's own allocator, while weights are made and in the middle of a step."""
    options = [*tiny_overrides, "training.batch_size=40", *SIZES[:-1]]
    sets = [part for option in options for part in ("--set", option)]
    command = ["-m", "spanbert_tf.cli", "pretrain", "--config", "spanbert_base", *sets]
    command += ["--data", str(tiny_records), "--output", str(tmp_path / "run")]
    # The allocator that can be limited is oneDNN's, whichever kernels the other tests take.
    limits = {"TF_MKL_ALLOC_MAX_BYTES": str(limit), "TF_ENABLE_ONEDNN_OPTS": "1"}
    # One operation after the other: of several at once oneDNN's ended the process at times.
    ended = child(*command, **limits, TF_NUM_INTEROP_THREADS="1")
    assert ended.returncode == 1, ended.stderr
    (line,) = ended.stderr.splitlines()
    assert f"{tmp_path}/run: out of memory on CPU:0 for float [" in line
    assert line.endswith(
        "; try --set training.gradient_checkpointing=true or --set training.accumulation_steps=2, "
        "or in another --output --set training.precision=mixed_bfloat16 or "
        "--set training.batch_size=20"
    )
    has_begun = (tmp_path / "run").exists()
    assert has_begun == (limit > 5_000_000)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8 bytes."),  # XLA
    ],
)
def test_what_was_changed_already_is_not_proposed(error, tiny_overrides):
    overrides = ["training.batch_size=1", "training.precision=mixed_bfloat16"]
    overrides += ["training.gradient_checkpointing=true"]

    class Job:
        config = load_config("spanbert_base", [*tiny_overrides, *overrides])

    @names_exhaustion
    def run(job, output):
        raise error

    with pytest.raises(TrainingError, match=r"^here: out of memory on a device; take a smaller"):
        run(Job(), "here")


def test_a_full_disk_is_not_a_full_memory(tiny_overrides):
    full = tf.errors.ResourceExhaustedError(None, None, "events.out; No space left on device")

    @names_exhaustion
    def run(job, output):
        raise full

    with pytest.raises(tf.errors.ResourceExhaustedError):
        run(None, "here")
