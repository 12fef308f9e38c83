"""`pretrain` under `KERAS_BACKEND=jax`: what holds on TensorFlow holds there, by the command.

(Kills: `test_kills`.)
"""

import filecmp
import functools
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest
from commands_on_jax import ON_JAX, run_on_jax
from safetensors.numpy import load_file

from spanbert_tf.config import load_config
from spanbert_tf.pretraining.job import run_pretraining
from spanbert_tf.training.metrics_log import read_metrics

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("jax") is None, reason="the extra `jax` is missing"
    ),
]


@pytest.fixture(scope="module")
def command_in(tiny_overrides, tiny_records):
    """The command of a run in a directory with further settings."""

    def make(directory, run, *settings, devices=1):
        config = directory / f"{run}.yaml"
        config.write_text(load_config("spanbert_base", [*tiny_overrides, *settings]).to_yaml())
        words = ["pretrain", "--config", str(config)]
        words += ["--data", tiny_records, "--output", str(directory / run)]
        return [*words, *(["--devices", str(devices)] if devices > 1 else [])]

    return make


@pytest.fixture
def command(command_in, tmp_path):
    return functools.partial(command_in, tmp_path)


COMMAND = ["-m", "spanbert_tf.cli"]  # of Python; workers are processes of their own


def checkpoint(run, step):
    return run / "checkpoints" / f"step-{step:08d}" / "state.safetensors"


def losses(run):
    return [line["loss"] for line in read_metrics(str(run / "metrics.jsonl")) if "loss" in line]


# Without dropout, which draws other numbers; with BERT's epsilon Adam would blow rounding errors of
# gradients near 0 up to whole steps.
COMPARABLE = ["model.dropout=0", "optimizer.epsilon=1e-3", "training.log_every=1"]


PERIODS = [f"training.{name}=3" for name in ("log_every", "evaluate_every")]
PERIODS += ["training.checkpoint_every_steps=3", "training.steps_per_execution=3"]
# By their number of devices: one process, which imports JAX once, for each number.
RUNS = {
    1: {
        "whole": COMPARABLE,
        "parts": [*COMPARABLE, "training.accumulation_steps=2"],
        "heads_first": ["training.head_steps=8"],
        "mirrored": ["training.strategy=mirrored"],
        "one_device": ["training.strategy=one_device"],
    },
    2: {
        "two": [*COMPARABLE, "training.strategy=mirrored"],
        "two_with_dropout": [*PERIODS, "training.strategy=mirrored"],
    },
}


@pytest.fixture(scope="module")
def finished(command_in, tmp_path_factory):
    """The directory of all `RUNS`."""
    directory = tmp_path_factory.mktemp("runs")
    for devices, runs in RUNS.items():
        commands = [
            command_in(directory, name, *settings, devices=devices)
            for name, settings in runs.items()
        ]
        child, statuses = run_on_jax(*commands)
        assert not any(statuses), child.stderr
    return directory


def test_parts_and_devices_change_nothing(finished):
    """Micro-batches and two devices."""
    whole, parts, two = (losses(finished / run) for run in ("whole", "parts", "two"))
    assert len(whole) == 12
    assert parts == pytest.approx(whole, abs=1e-4)
    assert two == pytest.approx(whole, abs=1e-4)


def test_a_run_of_tensorflow_goes_on_as_there(command, tiny_overrides, tiny_records, tmp_path):
    begun = load_config("spanbert_base", [*tiny_overrides, *COMPARABLE, "training.steps=4"])
    run_pretraining(begun, tiny_records, str(tmp_path / "begun"))
    shutil.copytree(tmp_path / "begun", tmp_path / "other")
    whole = load_config("spanbert_base", [*tiny_overrides, *COMPARABLE])
    run_pretraining(whole, tiny_records, str(tmp_path / "begun"))
    child, statuses = run_on_jax([*command("other", *COMPARABLE), "--backend-changed"])
    assert statuses == [0], child.stderr
    expected, found = (losses(tmp_path / run) for run in ("begun", "other"))
    assert len(expected) == 12
    assert found == pytest.approx(expected, abs=1e-4)


def test_encoder_is_held_while_the_heads_begin_alone(finished):
    run = finished / "heads_first"
    first, held, last = (load_file(checkpoint(run, step)) for step in (4, 8, 12))
    encoder = [name for name in held if name.startswith("weight") and held[name].ndim == 3]
    assert encoder  # kernels of attention
    for name in encoder:
        np.testing.assert_array_equal(held[name], first[name])
        assert np.any(last[name] != first[name])


@pytest.mark.parametrize("platforms", ["cuda", "tpu", "no_such_one"])
def test_devices_that_are_not_there_are_one_line(platforms, command, tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    child, statuses = run_on_jax(command("run"))
    (line,) = child.stderr.splitlines()
    assert statuses == [2]
    assert "JAX: its devices cannot be used" in line
    assert "set JAX_PLATFORMS=cpu" in line


def test_what_devices_cannot_share_and_what_is_tensorflows_alone_is_refused(command, tmp_path):
    said = {
        "training.strategy=mirrored": "training.batch_size: 4 rows cannot be cut into 3 equal",
        "training.strategy=tpu": "training.strategy: tpu is TensorFlow's; on JAX set mirrored",
        "optimizer.all_reduce_dtype=bfloat16": "bfloat16: needs TensorFlow; on JAX, XLA adds",
    }
    devices = {"training.strategy=mirrored": 3}
    commands = [
        command(str(number), setting, devices=devices.get(setting, 1))
        for number, setting in enumerate(said)
    ]
    child, statuses = run_on_jax(*commands)
    assert statuses == [2, 2, 2]
    for line, expected in zip(child.stderr.splitlines(), said.values(), strict=True):
        assert expected in line
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


@pytest.mark.parametrize("is_told", [False, True])
def test_processes_that_cannot_find_each_other_are_one_line(
    is_told, command, tmp_path, monkeypatch
):
    with socket.create_server(("", 0)) as taken:
        addresses = [f"localhost:{taken.getsockname()[1]}", "localhost:1"]
        if is_told:
            task = {"type": "worker", "index": 0}
            cluster = json.dumps({"cluster": {"worker": addresses}, "task": task})
            monkeypatch.setenv("TF_CONFIG", cluster)
        monkeypatch.setenv("KERAS_BACKEND", "jax")
        words = [*COMMAND, *command("run", "training.strategy=multi_worker")]
        child = subprocess.run([sys.executable, *words], capture_output=True, text=True)
    (line,) = child.stderr.splitlines()
    expected = "of this machine is taken" if is_told else "multi_worker needs TF_CONFIG in the"
    assert "training.strategy: " in line and expected in line
    assert child.returncode == 2
    assert not (tmp_path / "run").exists()


def run_two_processes(*commands):
    """The status of two processes of Python, and what it has printed, to both streams."""
    with socket.create_server(("", 0)) as free:
        addresses = [f"localhost:{free.getsockname()[1]}", "localhost:1"]
    children = []
    for number, words in enumerate(commands):
        task = {"type": "worker", "index": number}
        cluster = json.dumps({"cluster": {"worker": addresses}, "task": task})
        # As the runs that they are compared with; two processes share no compiled programs.
        on_jax = {name: ON_JAX[name] for name in ("KERAS_BACKEND", "XLA_FLAGS")}
        environment = {**os.environ, **on_jax, "TF_CONFIG": cluster}
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        children.append(subprocess.Popen([sys.executable, *words], env=environment, **streams))
    outputs = [child.communicate(timeout=300) for child in children]
    return [child.returncode for child in children], outputs


def test_two_processes_train_what_two_devices_do(finished, command, tmp_path):
    """With dropout, whose numbers are drawn for the whole batch."""
    settings = [*PERIODS, "training.strategy=multi_worker"]
    words = [*COMMAND, *command("run", *settings)]
    statuses, outputs = run_two_processes(words, words)
    assert statuses == [0, 0], outputs
    assert [errors for _, errors in outputs] == ["", ""]
    first, second = (printed.splitlines() for printed, _ in outputs)
    assert len(second) == 1 and "JAX listens" in second[0]
    assert "as 2 replicas" in first[1]
    runs = (finished / "two_with_dropout", tmp_path / "run")
    expected, found = (load_file(checkpoint(run, 12)) for run in runs)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)
    # Where they share no file system, one of them finds no checkpoint.
    longer = [*settings, "training.steps=16", "training.schedule_steps=20"]
    both = ([*COMMAND, *command(run, *longer)] for run in ("run", "other"))
    statuses, outputs = run_two_processes(*both)
    assert statuses == [2, 2], outputs
    steps = (12, 0)
    for step, (_, errors) in zip(steps, outputs, strict=True):
        assert f"this worker found step {step}, others another one" in errors.splitlines()[-1]


BROKEN = """
import os, sys
from spanbert_tf import process
from spanbert_tf.cli import main
from spanbert_tf.pretraining.job import PretrainingJob

def build(*arguments):
    raise KeyError("a fault of the program")

PretrainingJob.build = build
os.environ[process._SUPERVISED] = str(os.open(os.devnull, os.O_WRONLY))  # watched by nobody
main(sys.argv[1:])
"""


def test_a_worker_that_fails_while_models_are_built_ends_all(command, tmp_path):
    """JAX' own end waits for all the others."""
    words = command("run", "training.strategy=multi_worker")
    broken = ["-c", BROKEN, *words]
    statuses, ((_, lost), (_, failed)) = run_two_processes([*COMMAND, *words], broken)
    assert statuses == [1, 1], (lost, failed)
    assert "another worker was lost" in lost.splitlines()[-1]
    assert "KeyError: 'a fault of the program'" in failed


def test_one_device_of_mirrored_computes_what_one_device_does(finished):
    """The shipped configurations say mirrored, and most machines have one card."""
    one, other = (checkpoint(finished / run, 12) for run in ("mirrored", "one_device"))
    assert filecmp.cmp(one, other, shallow=False)


JOINED = """
import os, signal, time
from spanbert_tf.process import second_signal_ends
from spanbert_tf.training.devices.jax import join_processes

with second_signal_ends():
    join_processes()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
"""


def test_sigterm_ends_a_process_that_has_joined_and_does_not_train_yet():
    with socket.create_server(("", 0)) as free:
        addresses = [f"localhost:{free.getsockname()[1]}"]
    cluster = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": 0}}
    environment = {**os.environ, "KERAS_BACKEND": "jax", "TF_CONFIG": json.dumps(cluster)}
    child = subprocess.run([sys.executable, "-c", JOINED], env=environment, timeout=50)
    assert child.returncode == 128 + signal.SIGTERM
