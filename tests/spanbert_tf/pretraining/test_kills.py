"""SIGKILL at random moments: the run ends with the same bits, dropout on. And Ctrl-C of a pipe.

The run that is killed has eight steps in one execution, the other one.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest
from commands_on_jax import ON_JAX

from spanbert_tf.config import load_config

pytestmark = pytest.mark.slow
_LOOP = "training.steps_per_execution=4"


def _command(config_file, data, run, num_devices, *settings):
    command = [sys.executable, "-m", "spanbert_tf.cli", "pretrain", "--config", str(config_file)]
    command += ["--data", data, "--output", str(run)]
    if num_devices > 1:
        command += ["--devices", str(num_devices), "--set", "training.strategy=mirrored"]
    return [*command, *(word for setting in settings for word in ("--set", setting))]


def _all_variables(run):
    newest = max(os.listdir(run / "checkpoints"))
    return newest, (run / "checkpoints" / newest / "state.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("backend", "num_devices", "precision", "num_kills", "by_length"),
    [
        # On one device, in float32: `test_killed_run_goes_on_bit_for_bit`.
        ("tensorflow", 2, "mixed_bfloat16", 2, "false"),
        ("tensorflow", 2, "float32", 1, "true"),
        ("jax", 1, "float32", 2, "false"),
        ("jax", 1, "float32", 1, "true"),
    ],
)
def test_killed_at_random_moments_a_run_ends_with_the_same_bits(
    backend,
    num_devices,
    precision,
    num_kills,
    by_length,
    tiny_overrides,
    tiny_records,
    tmp_path,
    monkeypatch,
):
    pytest.importorskip(backend)
    monkeypatch.setenv("KERAS_BACKEND", backend)
    if backend == "jax":
        monkeypatch.setenv("XLA_FLAGS", ON_JAX["XLA_FLAGS"])
    overrides = [*tiny_overrides, "model.dropout=0.1", f"training.precision={precision}"]
    overrides += ["training.steps=20", "training.checkpoint_every_steps=8"]
    overrides += ["training.log_every=20", "training.evaluate_every=20"]
    overrides += [f"training.batch_by_length={by_length}"]
    config_file = tmp_path / "config.yaml"
    config_file.write_text(load_config("spanbert_base", overrides).to_yaml())
    start = time.monotonic()
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    subprocess.run(_command(config_file, tiny_records, straight, num_devices), check=True)
    duration = time.monotonic() - start
    source, kills = random.Random(num_devices), 0
    command = _command(config_file, tiny_records, killed, num_devices, _LOOP)
    while kills < num_kills:
        start = time.monotonic()
        child = subprocess.Popen(command, start_new_session=True)
        try:
            # The first half of the time, importing and tracing, has nothing to lose.
            assert child.wait(source.uniform(0.5, 1) * duration) == 0
            # It was faster than the kill, resumed near its end or on a machine that has become
            # idle: the next run, for which the kill comes earlier.
            duration = time.monotonic() - start
            assert _all_variables(killed) == _all_variables(straight)
            shutil.rmtree(killed)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            kills += 1
    subprocess.run(command, check=True)
    assert _all_variables(killed) == _all_variables(straight)


def test_ctrl_c_of_a_pipe_saves_the_step(tiny_overrides, tiny_records, tmp_path):
    """As of `pretrain … | tee log`: the reader ends first, then the run wants to print."""
    overrides = [*tiny_overrides, "training.checkpoint_every_steps=9999", "training.log_every=1"]
    overrides += [f"training.{key}=9999" for key in ("steps", "schedule_steps", "evaluate_every")]
    config_file, run = tmp_path / "config.yaml", tmp_path / "run"
    config_file.write_text(load_config("spanbert_base", overrides).to_yaml())
    child = subprocess.Popen(
        _command(config_file, tiny_records, run, 1),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not child.stdout.readline().startswith("step 3 "):
        assert child.poll() is None
    child.stdout.close()
    time.sleep(1)  # lines are printed that nobody reads
    child.send_signal(signal.SIGINT)
    errors = child.stderr.read()
    assert (child.wait(), errors) == (0, "")
    (checkpoint,) = os.listdir(run / "checkpoints")
    last_line = (run / "metrics.jsonl").read_text().splitlines()[-1]
    assert json.loads(last_line)["step"] == int(checkpoint.removeprefix("step-"))
    assert 3 < int(checkpoint.removeprefix("step-")) < 9999  # where the signal came
