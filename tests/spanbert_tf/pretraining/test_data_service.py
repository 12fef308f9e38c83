"""A run whose batches another process reads and masks."""

import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from spanbert_tf.config import load_config
from spanbert_tf.data.records import load_dataset_info
from spanbert_tf.errors import ConfigurationError
from spanbert_tf.pretraining.datasets import RunDatasets

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
    yield process.stdout.readline().strip()
    process.kill()
    process.wait()


def batches_of(records, overrides, first_batch):
    config = load_config("spanbert_base", overrides)
    strategy = tf.distribute.get_strategy()
    datasets = RunDatasets(config, records, load_dataset_info(records), strategy)
    return datasets.training(first_batch).take(25)  # 40 records, batches of 4: over two epochs


def test_service_gives_the_same_batches(service_address, tiny_records, tiny_overrides):
    here = batches_of(tiny_records, tiny_overrides, first_batch=3)
    served = batches_of(
        tiny_records, [*tiny_overrides, f"data.service_address={service_address}"], first_batch=3
    )
    assert served.element_spec == here.element_spec
    pairs = list(zip(here.as_numpy_iterator(), served.as_numpy_iterator(), strict=True))
    assert len(pairs) == 25
    for expected, actual in pairs:
        for name, values in expected.items():
            np.testing.assert_array_equal(actual[name], values)


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
