"""What a TPU needs, as far as a machine without one can tell; tasks: `task_tests`."""

import socket
import urllib.error

import pytest
import tensorflow as tf
from graph_operations import PYTHON, of_host, operations_of_data, unknown_shapes

from spanbert_tf.config import load_config
from spanbert_tf.errors import ConfigurationError
from spanbert_tf.pretraining.datasets import configured_dataset
from spanbert_tf.pretraining.model import compiled_pretrainer
from spanbert_tf.training.devices.tpu import join_tpu


class HttpError(Exception):
    """As Google's client has it."""


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (urllib.error.URLError("timed out"), "metadata server does not answer"),
        (HttpError("<HttpError 403 when requesting …>"), "give the account the role TPU Viewer"),
        (tf.errors.PermissionDeniedError(None, None, "/dev/accel0"), "on a TPU VM run as root"),
        (tf.errors.InvalidArgumentError(None, None, "version 2.19"), "of another version"),
        (tf.errors.UnknownError(None, None, "TPU is already in use by 7\nmore"), "another process"),
        (RuntimeError('TPU "mine" is not yet ready; state: "CREATING"'), "no TPU was found"),
    ],
)
def test_what_google_s_libraries_raise_is_one_line(error, words, monkeypatch):
    def fail(**options):
        raise error

    monkeypatch.setattr(tf.distribute.cluster_resolver, "TPUClusterResolver", fail)
    with pytest.raises(ConfigurationError, match=words) as raised:
        join_tpu("mine")
    assert str(raised.value).startswith("training.tpu: mine: ")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("local", "this TensorFlow computes on none; install tensorflow-tpu in its place"),
        ("grpc://localhost:1", "nothing answers there"),
        ("grpc://localhost", "nothing answers there"),
    ],
)
def test_what_this_machine_lacks_is_one_line(name, words):
    with pytest.raises(ConfigurationError, match=words) as raised:
        join_tpu(name)
    assert "\n" not in str(raised.value)


def test_what_is_called_is_said_before(monkeypatch, capsys):
    """TensorFlow opens a server for another machine's TPU, and sends it the records."""

    def connect(address, timeout):
        assert capsys.readouterr().out.startswith(f"training.tpu: {name} is called, and gets the")
        raise OSError("refused")

    name = "grpc://localhost:1"
    monkeypatch.setattr(socket, "create_connection", connect)
    with pytest.raises(ConfigurationError, match="nothing answers there"):
        join_tpu(name)
    with pytest.raises(ConfigurationError, match="no TPU was found"):
        join_tpu("local")
    assert capsys.readouterr().out == ""


@pytest.mark.slow
@pytest.mark.parametrize("accumulation_steps", [1, 2])
def test_a_step_of_pre_training_has_nothing_of_the_host(
    accumulation_steps, tiny_overrides, tiny_records
):
    overrides = [*tiny_overrides, f"training.accumulation_steps={accumulation_steps}"]
    config = load_config("spanbert_base", overrides)
    data = configured_dataset(config, tiny_records, split="train", seed=0)
    assert not unknown_shapes(data.element_spec)
    assert not operations_of_data(data) & PYTHON
    assert not of_host(compiled_pretrainer(config, 60).train_step, data.element_spec)
