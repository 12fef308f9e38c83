"""Connects TensorFlow to the TPU that a configuration names."""

import socket

import tensorflow as tf

from spanbert_tf.errors import ConfigurationError, reason
from spanbert_tf.terminal import print_line

_THIS_MACHINE = "local"
_PATIENCE = 30.0  # seconds for a connection
# Words in the message of an error, and what is wrong and what to do.
_FAULTS = (
    (
        ("No OpKernel was registered",),
        "no TPU was found: this TensorFlow computes on none; install tensorflow-tpu in its place "
        "(docs/tpus.md, TensorFlow)",
    ),
    (
        ("PermissionDenied", "Permission denied", "HttpError 403", "Credentials", "RefreshError"),
        "no permission to use it; on a TPU VM run as root, elsewhere give the account the role "
        "TPU Viewer",
    ),
    (
        ("URLError", "metadata", "TransportError", "timed out"),
        "no TPU was found: Google Cloud's metadata server does not answer, which only its own "
        "machines reach; on a TPU VM set training.tpu=local",
    ),
    (
        ("already in use", "UNAVAILABLE: TPU", "libtpu_lockfile"),
        "another process uses it; end that one, or wait",
    ),
    (
        ("version", "unimplemented", "Unimplemented"),
        "its software is of another version; create the TPU with the image of the installed "
        "TensorFlow, or install that of the TPU",
    ),
)


def join_tpu(name: str) -> tf.distribute.Strategy:
    """Connects to a TPU and makes its strategy.

    Args:
        name: `local`, the name of a TPU in Google Cloud, or `grpc://HOST:PORT`.

    Raises:
        ConfigurationError: the TPU cannot be used; the message says why.
    """
    if name != _THIS_MACHINE:
        print_line(
            f"training.tpu: {name} is called, and gets the records; TensorFlow opens a port on all "
            "networks for it, and whoever reaches that can read and write files here "
            "(docs/devices.md, Security)"
        )
    if name.startswith("grpc://"):
        _check_answers(name)
    try:
        # The resolver needs a name; without one it looks for a kind of cluster that no VM has.
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=name)
        if name != _THIS_MACHINE:
            tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except Exception as error:  # of TensorFlow, urllib or one of three packages of Google
        raise ConfigurationError(f"training.tpu: {name}: {_fault(error)}") from error
    return tf.distribute.TPUStrategy(resolver)


def _check_answers(address: str) -> None:
    """Raises `ConfigurationError` if nothing listens, where TensorFlow would wait forever."""
    host, _, port = address.removeprefix("grpc://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_PATIENCE).close()
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"training.tpu: {address}: nothing answers there ({reason(error)}); name "
            "grpc://HOST:PORT of a TPU's worker (its port is 8470)"
        ) from error


def _fault(error: Exception) -> str:
    """Says what is wrong and what to do, as far as an error of Google's libraries tells."""
    said = f"{type(error).__name__}: {error}"
    for words, advice in _FAULTS:
        if any(word in said for word in words):
            return f"{advice} ({(said.splitlines() or [said])[0][:200]})"
    return (
        f"no TPU was found ({reason(error).partition(':')[0]}); on a TPU VM it is local, elsewhere "
        "a name that Google Cloud knows, or grpc://HOST:PORT"
    )
