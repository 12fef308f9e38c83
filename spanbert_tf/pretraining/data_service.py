"""Batches that a tf.data service reads and masks on another host."""

import re
import socket

import tensorflow as tf

from spanbert_tf.errors import ConfigurationError

_KEY = "data.service_address"
_PATIENCE = 30.0  # seconds for a connection; TensorFlow itself would try again for ever


def served_batches(batches: tf.data.Dataset, address: str) -> tf.data.Dataset:
    """The same batches in the same order, computed by a service.

    Each worker of a service gives all batches of a data set, so two workers would give each batch
    twice: the service must have one worker.

    Args:
        batches: the batches; the service's worker must find their files under the same paths.
        address: `grpc://HOST:PORT` of the service's dispatcher.

    Raises:
        ConfigurationError: the address is malformed, or nothing answers there.
    """
    _check_reachable(address)
    everything = tf.data.experimental.service.ShardingPolicy.OFF
    return batches.apply(tf.data.experimental.service.distribute(everything, service=address))


def _check_reachable(address: str) -> None:
    matched = re.fullmatch(r"grpc://([^/]+):(\d{1,5})", address)
    if not matched:
        raise ConfigurationError(f"{_KEY}: {address!r} is not grpc://HOST:PORT")
    host, port = matched.groups()
    try:
        socket.create_connection((host, port), timeout=_PATIENCE).close()
    except OSError as error:
        raise ConfigurationError(
            f"{_KEY}: nothing answers at {address} ({error}); start the service first"
        ) from error
