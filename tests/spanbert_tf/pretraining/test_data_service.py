"""A run whose batches another process reads and masks."""

import concurrent.futures
import os
import re
import signal
import socket
import subprocess
import sys
import time

import grpc
import numpy as np
import pytest
import tensorflow as tf

from spanbert_tf.config import load_config
from spanbert_tf.data.manifest import PretrainingManifest
from spanbert_tf.errors import ConfigurationError
from spanbert_tf.pretraining.datasets import RunDatasets
from spanbert_tf.training.devices import Devices

pytestmark = pytest.mark.slow  # a service of two processes

SERVICE = """
import sys
import tensorflow as tf

service = tf.data.experimental.service
dispatcher = service.DispatchServer(service.DispatcherConfig(port=0))
address = dispatcher.target.removeprefix("grpc://")
worker = service.WorkerServer(service.WorkerConfig(dispatcher_address=address))
print(dispatcher.target, flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def service_address():
    process = subprocess.Popen(
        [sys.executable, "-c", SERVICE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    address = process.stdout.readline().strip()
    assert address, "the service has ended"  # without one the batches are made here
    yield address
    process.kill()
    process.wait()


def batches_of(records, overrides, first_batch):
    config = load_config("spanbert_base", overrides)
    devices = Devices(config.training)
    datasets = RunDatasets(config, records, PretrainingManifest.load(records), devices)
    return datasets.training(first_batch).take(25)  # 40 records, batches of 4: over two epochs


def test_service_gives_the_same_batches(service_address, tiny_records, tiny_overrides):
    here = batches_of(tiny_records, tiny_overrides, first_batch=3)
    served = batches_of(
        tiny_records, [*tiny_overrides, f"data.service_address={service_address}"], first_batch=3
    )
    assert served.element_spec == here.element_spec
    assert served.options().autotune.enabled is False  # `spanbert_tf.data.ahead` says why
    pairs = list(zip(here.as_numpy_iterator(), served.as_numpy_iterator(), strict=True))
    assert len(pairs) == 25
    for expected, actual in pairs:
        for name, values in expected.items():
            np.testing.assert_array_equal(actual[name], values)


def test_a_service_of_two_workers_is_refused(tiny_records, tiny_overrides):
    """Each of its workers would give every batch."""
    service = tf.data.experimental.service
    dispatcher = service.DispatchServer(service.DispatcherConfig(port=0))
    place = dispatcher.target.removeprefix("grpc://")
    _workers = [service.WorkerServer(service.WorkerConfig(place)) for _ in range(2)]
    address = dispatcher.target
    settings = [*tiny_overrides, f"data.service_address={address}"]
    with pytest.raises(ConfigurationError, match=f"{address} has 2 workers; start a service with"):
        batches_of(tiny_records, settings, 0)


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("grpc://localhost:1", "nothing answers at grpc://localhost:1"),
        ("localhost:5000", "is not grpc://HOST:PORT"),
    ],
)
def test_service_that_is_not_there_is_refused(tiny_records, tiny_overrides, address, words):
    with pytest.raises(ConfigurationError, match=words):
        batches_of(tiny_records, [*tiny_overrides, f"data.service_address={address}"], 0)


@pytest.fixture
def silent_server():
    """Takes connections and never answers, as a stranger's may."""
    with socket.create_server(("localhost", 0)) as server:
        yield server


def test_what_answers_and_is_no_service_is_refused(tiny_records, tiny_overrides):
    stranger = grpc.server(concurrent.futures.ThreadPoolExecutor(1))
    port = stranger.add_insecure_port("127.0.0.1:0")
    stranger.start()
    address = f"grpc://127.0.0.1:{port}"
    with pytest.raises(ConfigurationError, match=f"at {address} is no service of tf.data"):
        batches_of(tiny_records, [*tiny_overrides, f"data.service_address={address}"], 0)
    stranger.stop(None)


def test_the_first_signal_ends_the_wait_for_a_service(
    silent_server, tiny_records, tiny_overrides, tmp_path
):
    address = f"grpc://localhost:{silent_server.getsockname()[1]}"
    settings = [*tiny_overrides, f"data.service_address={address}"]
    command = [sys.executable, "-m", "spanbert_tf.cli", "pretrain", "--config", "spanbert_base"]
    command += ["--data", tiny_records, "--output", str(tmp_path / "run"), "--set", *settings]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "GRPC_VERBOSITY": "NONE"},
    )  # fmt: skip
    for line in process.stdout:
        if line.startswith(f"data.service_address: {address} reads and masks; whoever"):
            break
    silent_server.settimeout(60)
    connection, _ = silent_server.accept()
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert errors.splitlines()[-1] == f"spanbert-tf: interrupted while waiting for {address}"
    connection.close()


WATCHED = """
import sys, time
import tensorflow as tf
from spanbert_tf.pretraining import datasets

datasets._LOOK_EVERY = 0.2  # of 20 s
with datasets.watched_service(sys.argv[1], lambda: tf.data.Dataset.range(1)):
    print("trains", flush=True)
    time.sleep(100)
"""


@pytest.fixture
def dispatcher():
    return tf.data.experimental.service.DispatchServer(
        tf.data.experimental.service.DispatcherConfig(port=0)
    )


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("gone", "nothing answers at {} (…); start the service again"),
        ("second worker", "{} has 2 workers; start a service with one worker"),
    ],
)
def test_a_run_whose_service_changes_ends_with_a_line(dispatcher, fault, words):
    service, address = tf.data.experimental.service, dispatcher.target
    place = address.removeprefix("grpc://")
    _worker = service.WorkerServer(service.WorkerConfig(place))
    process = subprocess.Popen(
        [sys.executable, "-c", WATCHED, address],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert any(line == "trains\n" for line in process.stdout)
    time.sleep(2)  # ten looks
    assert process.poll() is None
    if fault == "gone":
        dispatcher._stop()
    else:
        _second = service.WorkerServer(service.WorkerConfig(place))
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    line = re.sub(r"\(failed to connect .*\)", "(…)", errors.splitlines()[-1])
    assert line == (
        f"spanbert-tf: data.service_address: {words.format(address)}, and then the same command"
    )
