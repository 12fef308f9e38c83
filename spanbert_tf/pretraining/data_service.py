"""Batches that a tf.data service reads and masks on another host."""

import contextlib
import re
import socket
import threading
from collections.abc import Callable, Iterator

import tensorflow as tf

from spanbert_tf.errors import ConfigurationError
from spanbert_tf.process.lines import print_line
from spanbert_tf.process.signals import end_process, signal_ends_a_wait, waiting_for

_KEY = "data.service_address"
# TensorFlow itself would try again for ever. Seconds:
_CONNECTION_PATIENCE = 30.0  # for a connection
_BATCH_PATIENCE = 600.0  # for the first batch, before which a run that resumes skips records
_STEP_PATIENCE = 60.0  # for TensorFlow's return after a signal
_LOOK_EVERY = 20.0  # whether the service is still there; it is given up after three looks in vain


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
    distribute = tf.data.experimental.service.distribute(everything, service=address)
    with waiting_for(address, _CONNECTION_PATIENCE):
        return batches.apply(distribute)  # registers them with the service


@contextlib.contextmanager
def watched_service(address: str | None, batches: Callable[[], tf.data.Dataset]) -> Iterator[None]:
    """Ends a run whose service is gone, or was never there, with a line; a signal ends its waits.

    Args:
        address: the service's; `None`: nothing is watched.
        batches: builds what it serves; one is asked for at once.
    """
    if not address:
        yield
        return
    print_line(
        f"{_KEY}: {address} reads and masks; whoever reaches it can read and write files there "
        "(docs/devices.md, Security)"
    )
    served = batches()
    with waiting_for(f"the first batch of {address}", _BATCH_PATIENCE):
        next(iter(served))
    is_done = threading.Event()
    threading.Thread(target=_watch, args=(address, is_done), daemon=True).start()
    try:
        with signal_ends_a_wait(f"a batch of {address}", _STEP_PATIENCE):
            yield
    finally:
        is_done.set()


def _watch(address: str, is_done: threading.Event) -> None:
    in_vain = 0
    while not is_done.wait(_LOOK_EVERY):
        in_vain = 0 if _connection_error(address) is None else in_vain + 1
        if in_vain == 3:
            end_process(
                f"{_KEY}: {address} does not answer any more; start the service again, and then "
                "the same command"
            )


def _check_reachable(address: str) -> None:
    if not re.fullmatch(r"grpc://([^/]+):(\d{1,5})", address):
        raise ConfigurationError(f"{_KEY}: {address!r} is not grpc://HOST:PORT")
    if error := _connection_error(address):
        raise ConfigurationError(
            f"{_KEY}: nothing answers at {address} ({error}); start the service first"
        ) from error


def _connection_error(address: str) -> OSError | None:
    host, _, port = address.removeprefix("grpc://").rpartition(":")
    try:
        socket.create_connection((host, port), timeout=_CONNECTION_PATIENCE).close()
    except OSError as error:
        return error
    return None
