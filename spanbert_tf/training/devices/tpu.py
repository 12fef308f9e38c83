"""The TPU that a configuration names, for TensorFlow."""

import socket

import tensorflow as tf

from spanbert_tf.errors import ConfigurationError, reason
from spanbert_tf.terminal import print_line

_THIS_MACHINE = "local"
_PATIENCE = 30.0  # seconds for a connection
_FAULTS = (  # words of an error → what is wrong and what to do
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
        name: `local`, a name, or `grpc://HOST:PORT`.

    Raises:
        ConfigurationError: it cannot be used; the message says in one line why.
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
        # Without a name, the resolver looks for a cluster of its own making, which no VM has.
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=name)
        if name != _THIS_MACHINE:
            tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except Exception as error:  # TensorFlow's, urllib's, and those of three of Google's packages
        raise ConfigurationError(f"training.tpu: {name}: {_fault(error)}") from error
    return tf.distribute.TPUStrategy(resolver)


def _check_answers(address: str) -> None:
    """Raises `ConfigurationError` where nothing listens; TensorFlow would wait for ever."""
    host, _, port = address.removeprefix("grpc://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_PATIENCE).close()
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"training.tpu: {address}: nothing answers there ({reason(error)}); name "
            "grpc://HOST:PORT of a TPU's worker (its port is 8470)"
        ) from error


def _fault(error: Exception) -> str:
    """What is wrong and what to do, as far as the errors of Google's libraries tell."""
    said = f"{type(error).__name__}: {error}"
    for words, advice in _FAULTS:
        if any(word in said for word in words):
            return f"{advice} ({(said.splitlines() or [said])[0][:200]})"
    return (
        f"no TPU was found ({reason(error).partition(':')[0]}); on a TPU VM it is local, elsewhere "
        "a name that Google Cloud knows, or grpc://HOST:PORT"
    )
