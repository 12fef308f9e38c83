"""Several worker processes over loopback, through the command line."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time

import ml_dtypes
import numpy as np
import pytest
from continued_runs import configured, save_encoder
from safetensors.numpy import load_file

from spanbert_tf.config import TrainingConfig, load_config
from spanbert_tf.errors import ConfigurationError
from spanbert_tf.models import SpanBertBackbone
from spanbert_tf.pretraining.job import run_pretraining
from spanbert_tf.training.devices import make_strategy
from spanbert_tf.training.metrics_log import read_metrics

pytestmark = pytest.mark.slow

LOST_WORKER_LIMIT = 120  # seconds


def _free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("localhost", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def _start_workers(config_file, data, run, overrides=(), options=(), jobs=("worker", "worker")):
    """Starts a process for each of these jobs."""
    addresses = {job: [] for job in jobs}
    for job, port in zip(jobs, _free_ports(len(jobs)), strict=True):
        addresses[job].append(f"localhost:{port}")
    workers = []
    for number, job in enumerate(jobs):
        task = {"type": job, "index": number if len(addresses) == 1 else 0}
        cluster = {"cluster": addresses, "task": task}
        command = [sys.executable, "-m", "spanbert_tf.cli", "pretrain", "--config"]
        command += [str(config_file), "--data", data, "--output", str(run), *options]
        for override in ("training.strategy=multi_worker", *overrides):
            command += ["--set", override]
        environment = {**os.environ, "TF_CONFIG": json.dumps(cluster), "GRPC_VERBOSITY": "ERROR"}
        workers.append(
            subprocess.Popen(
                command,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        )
    return workers


@pytest.fixture
def config_file(tiny_overrides, tmp_path):
    # With BERT's epsilon, Adam would blow rounding errors of gradients near 0 up to whole steps.
    more = ["model.dropout=0.0", "optimizer.epsilon=1e-4", "training.batch_size=16"]
    path = tmp_path / "config.yaml"
    path.write_text(load_config("spanbert_base", [*tiny_overrides, *more]).to_yaml())
    return path


def _weights(run, step):
    state = load_file(run / "checkpoints" / f"step-{step:08d}" / "state.safetensors")
    return {name: value for name, value in state.items() if name.startswith("weight")}


def _await_step(run, step, workers):
    while not (run / "metrics.jsonl").exists() or not any(
        line["step"] >= step for line in read_metrics(str(run / "metrics.jsonl"))
    ):
        assert all(worker.poll() is None for worker in workers), workers[0].communicate()[1][-2000:]
        time.sleep(0.05)


@pytest.mark.parametrize("by_length", ["false", "true"])
def test_two_workers_train_what_one_does_also_after_a_preemption(
    by_length, config_file, tiny_records, tmp_path
):
    """One step in each execution alone, four with two workers."""
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    periods = ("log_every", "evaluate_every", "checkpoint_every_steps")
    periods = tuple(f"training.{name}=4" for name in periods)
    periods += (f"training.batch_by_length={by_length}",)
    run_pretraining(load_config(str(config_file), periods), tiny_records, str(alone))
    # Slow enough to be met in the middle: SIGTERM to one worker stops both at one step.
    loops = (*periods, "training.steps_per_execution=4")
    workers = _start_workers(config_file, tiny_records, shared, loops)
    _await_step(shared, 2, workers)
    workers[1].send_signal(signal.SIGTERM)
    outputs = [worker.communicate(timeout=300) for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], outputs
    assert re.search(r"saved step \d+ of 12|Held-out records after step 12", outputs[0][0])
    workers = _start_workers(config_file, tiny_records, shared, (*loops, "training.log_every=12"))
    outputs = [worker.communicate(timeout=300) for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], outputs
    assert (shared / "preset" / "config.json").exists()
    expected, found = _weights(alone, 12), _weights(shared, 12)
    assert len(found) == len(expected)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, atol=1e-5)
    # A run that was stopped begins its means of training anew.
    evaluations = [
        [line for line in read_metrics(str(run / "metrics.jsonl")) if "validation_loss" in line]
        for run in (shared, alone)
    ]
    for line, other in zip(*evaluations, strict=True):
        assert line == pytest.approx(other, abs=1e-4)


def test_four_workers_train_by_length_what_one_does(config_file, tiny_records, tmp_path):
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    settings = ("training.batch_by_length=true", "training.steps=6", "training.log_every=1")
    settings += ("training.evaluate_every=6",)
    run_pretraining(load_config(str(config_file), settings), tiny_records, str(alone))
    workers = _start_workers(config_file, tiny_records, shared, settings, jobs=("worker",) * 4)
    outputs = [worker.communicate(timeout=300) for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * 4, outputs
    expected, found = _weights(alone, 6), _weights(shared, 6)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, atol=1e-5)
    lines = [read_metrics(str(run / "metrics.jsonl")) for run in (alone, shared)]
    for line, other in zip(*lines, strict=True):
        for name in ("loss", "validation_loss", "padding_share"):
            assert other.get(name) == pytest.approx(line.get(name), abs=1e-4)


_RECORDER = """
import os

import keras


class Recorder(keras.callbacks.Callback):
    def __init__(self, path, fails_at=None, stops_at=None):
        super().__init__()
        self.path, self.fails_at, self.stops_at = path, fails_at, stops_at

    def note(self, hook, number):
        with open(f"{self.path}.{os.getpid()}", "a") as file:
            file.write(f"{hook} {number}\\n")

    def on_train_batch_end(self, batch, logs=None):
        self.note("batch", batch)
        if batch == self.fails_at:
            raise KeyError("no such project")
        self.model.stop_training = batch == self.stops_at

    def on_epoch_end(self, epoch, logs=None):
        self.note("epoch", epoch)
"""


def test_the_chief_alone_calls_back_and_what_it_decides_ends_both(
    config_file, tiny_records, tmp_path, monkeypatch
):
    """A failure leaves the step saved; a stop is of both workers; the same command goes on."""
    (tmp_path / "my_recorder.py").write_text(_RECORDER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    run = tmp_path / "run"

    def train(number, **options):
        arguments = json.dumps({"path": str(tmp_path / f"notes-{number}"), **options})
        own = f"training.callbacks=[{{'my_recorder:Recorder': {arguments}}}]"
        periods = ("training.log_every=2", "training.evaluate_every=6")
        workers = _start_workers(config_file, tiny_records, run, (*periods, own))
        outputs = [worker.communicate(timeout=LOST_WORKER_LIMIT) for worker in workers]
        (notes,) = tmp_path.glob(f"notes-{number}.*")  # one process has written them
        steps = sorted(path.name for path in (run / "checkpoints").iterdir() if path.is_dir())
        return (
            [worker.returncode for worker in workers],
            outputs,
            notes.read_text().splitlines(),
            steps,
        )

    statuses, outputs, notes, steps = train(1, fails_at=3)
    assert statuses == [1, 1], outputs
    assert outputs[0][1].startswith(
        "spanbert-tf: training.callbacks: my_recorder:Recorder failed in on_train_batch_end"
    )
    assert len(outputs[1][1].strip().splitlines()) == 1, outputs  # the other one says it is lost
    assert notes == ["batch 1", "batch 3"]
    assert steps == ["step-00000004"]
    statuses, outputs, notes, steps = train(2, stops_at=7)
    assert statuses == [0, 0], outputs
    assert "a callback has stopped the training: saved step 8 of 12" in outputs[0][0]
    assert notes == ["batch 5", "epoch 0", "batch 7"]
    assert steps[-1] == "step-00000008"
    statuses, outputs, notes, steps = train(3)
    assert statuses == [0, 0], outputs
    assert notes == ["batch 9", "batch 11", "epoch 1"]
    assert steps[-1] == "step-00000012"


_UPDATES = """
import json, os, sys
import keras, numpy as np, tensorflow as tf
from spanbert_tf.training.optimizer import AdamW
number = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
tf.config.threading.set_intra_op_parallelism_threads((1, 4)[number])
strategy = tf.distribute.MultiWorkerMirroredStrategy()
found = {}
for dtype, seed in (("", 1), ("bfloat16", number)):
    gradient = np.random.default_rng(seed).normal(size=3_000_000).astype("float32")
    with strategy.scope():
        variable = keras.Variable(np.zeros_like(gradient), name="kernel")
        optimizer = AdamW(
            **{"learning_rate": 0.1, "weight_decay": 0.0, "epsilon": 1.0, "global_clipnorm": 1.0},
            all_reduce_dtype=dtype or None,
        )
        optimizer.build([variable])
    step = tf.function(lambda: strategy.run(lambda: optimizer.apply([gradient], [variable])))
    step()
    found |= {f"norm{dtype}": optimizer.gradient_norm, f"updated{dtype}": variable}
np.savez(sys.argv[1].format(number), **found)
"""


def test_workers_add_up_gradients_to_the_same_bits_and_may_in_bfloat16(tmp_path):
    """TensorFlow adds up a long array in as many parts as it has threads: one here, four there.

    In bfloat16 each sends eight bits of each value, of other gradients here; the sum has eight.
    """
    addresses = [f"localhost:{port}" for port in _free_ports(2)]
    results = str(tmp_path / "{}.npz")
    workers = []
    for number in range(2):
        task = {"type": "worker", "index": number}
        cluster = json.dumps({"cluster": {"worker": addresses}, "task": task})
        command = [sys.executable, "-c", _UPDATES, results]
        workers.append(subprocess.Popen(command, env={**os.environ, "TF_CONFIG": cluster}))
    assert [worker.wait(timeout=300) for worker in workers] == [0, 0]
    first, second = (dict(np.load(results.format(number))) for number in range(2))
    assert first.keys() == second.keys() and len(first) == 4
    for name, value in first.items():
        np.testing.assert_array_equal(second[name], value)
    drawn = [np.random.default_rng(number).normal(size=3_000_000) for number in range(2)]
    sent = [one.astype("float32").astype(ml_dtypes.bfloat16).astype("float32") for one in drawn]
    total = sum(sent).astype(ml_dtypes.bfloat16).astype("float32")
    np.testing.assert_allclose(first["normbfloat16"], np.linalg.norm(total), rtol=1e-4)
    clipped = np.sqrt(1e-3) * total / np.linalg.norm(total)  # v is (1 - 0.999) of its square
    expected = -0.1 * clipped / (1 + np.abs(clipped))
    np.testing.assert_allclose(first["updatedbfloat16"], expected, rtol=1e-4, atol=1e-12)


@pytest.mark.parametrize("keeps_best", [False, True])
def test_a_chief_and_a_worker_mix_the_first_weights_in(keeps_best, tiny_records, tmp_path):
    """With those of the last step, or of the best evaluation, which all workers read."""
    preset = save_encoder(tmp_path / "encoder", dropout=0.0)
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    changed = {"optimizer__epsilon": 1e-4, "training__batch_size": 16}
    changed |= {"training__initial_encoder_share": 0.25, "training__evaluate_every": 12}
    if keeps_best:  # no evaluation has a right answer of this kind: the first one is the best
        changed |= {"training__keep_best": True, "training__evaluate_every": 4}
        changed |= {"training__best_metric": "span_boundary_accuracy"}
    config = configured(preset, alone, **changed)
    run_pretraining(config, tiny_records, str(alone), preset)
    config_file = tmp_path / "config.yaml"
    config_file.write_text(config.to_yaml())
    options = ["--initial-preset", preset]
    workers = _start_workers(
        config_file, tiny_records, shared, options=options, jobs=("chief", "worker")
    )
    outputs = [worker.communicate(timeout=300) for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], outputs
    step = 4 if keeps_best else 12
    shown = [f"Held-out records after step {step}" in printed for printed, _ in outputs]
    assert shown == [True, False]
    encoders = [SpanBertBackbone.from_preset(str(run / "preset")) for run in (alone, shared)]
    for expected, found in zip(*(encoder.get_weights() for encoder in encoders), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_when_a_worker_dies_the_other_says_so_and_a_checkpoint_is_kept(
    config_file, tiny_records, tmp_path
):
    run = tmp_path / "run"
    long = ("training.steps=4000", "training.schedule_steps=4001", "training.evaluate_every=4000")
    workers = _start_workers(config_file, tiny_records, run, long)
    _await_step(run, 20, workers)
    os.killpg(workers[1].pid, signal.SIGKILL)
    try:
        _, errors = workers[0].communicate(timeout=LOST_WORKER_LIMIT)
    finally:
        for worker in workers:
            if worker.poll() is None:
                os.killpg(worker.pid, signal.SIGKILL)
    assert workers[0].returncode == 1, errors[-2000:]
    assert "start all workers again" in errors.splitlines()[-1]
    steps = [int(name.removeprefix("step-")) for name in os.listdir(run / "checkpoints")]
    assert max(steps) >= 16


def _cluster(job, index, **jobs):
    addresses = {"chief": ["localhost:1"], "worker": ["localhost:2"], **jobs}
    return json.dumps({"cluster": addresses, "task": {"type": job, "index": index}})


@pytest.mark.parametrize(
    "cluster, message",
    [
        (None, "needs TF_CONFIG in the environment, or Slurm"),
        ("{", "TF_CONFIG: not a cluster"),
        (_cluster("worker", 3), "no worker 3 among 1"),
        (_cluster("evaluator", 0), "no evaluator among chief, worker"),
        (_cluster("worker", 0, ps=["localhost:3"]), "a job ps, but there can be workers and one"),
        (_cluster("chief", 1, chief=["localhost:1", "localhost:3"]), "2 chiefs"),
        ('{"cluster": {"worker": ["localhost:1"]}, "task": {"index": 0}}', "KeyError: 'type'"),
    ],
)
def test_a_cluster_that_makes_no_sense_is_refused(cluster, message, monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    if cluster:
        monkeypatch.setenv("TF_CONFIG", cluster)
    with pytest.raises(ConfigurationError, match=message) as raised:
        make_strategy(TrainingConfig(strategy="multi_worker"))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "options, num_devices, message",
    [
        ({"strategy": "one_device"}, 2, "set training.strategy=mirrored"),
        ({"strategy": "mirrored", "batch_size": 6, "accumulation_steps": 2}, 2, "multiple of 4"),
        ({"strategy": "tpu"}, None, "training.tpu: local: no TPU was found"),
        ({"strategy": "tpu", "tpu": "mine"}, None, "training.tpu: mine: no TPU was found"),
    ],
)
def test_what_does_not_work_is_refused(options, num_devices, message):
    with pytest.raises(ConfigurationError, match=message) as raised:
        make_strategy(TrainingConfig(**options), num_devices)
    assert "\n" not in str(raised.value)


def test_a_worker_that_waits_for_another_ends_by_the_first_signal(
    config_file, tiny_records, tmp_path
):
    first, second = _start_workers(config_file, tiny_records, tmp_path / "run")
    second.kill()  # its supervisor; the worker itself ends when it cannot be reached
    os.killpg(second.pid, signal.SIGKILL)
    assert any("listens on port" in line for line in first.stdout)
    time.sleep(2)  # until TensorFlow keeps Python's lock
    first.terminate()
    _, errors = first.communicate(timeout=60)
    assert first.returncode == 1
    assert errors.splitlines()[-1] == (
        "spanbert-tf: interrupted while waiting for the other workers"
    )
