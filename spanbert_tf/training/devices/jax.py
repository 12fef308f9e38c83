"""The devices of JAX, among which Keras shares batches by a `keras.distribution`."""

import contextlib
import functools
import os
import re
import socket
from collections.abc import Iterator
from typing import Any

import jax
import keras
import numpy as np
import tensorflow as tf
from jax.errors import JaxRuntimeError
from jax.experimental import multihost_utils

from spanbert_tf.config import FinetuningTrainingConfig, TrainingConfig
from spanbert_tf.errors import ConfigurationError, reason
from spanbert_tf.layers.operations.jax import DETERMINISTIC
from spanbert_tf.process import waiting_for_others
from spanbert_tf.terminal import hidden_lines, print_line
from spanbert_tf.training.cluster import SECONDS_OF_SILENCE, Cluster, port_is_taken

LIBRARY = "JAX"
GPU_EXTRA = "jax_cuda"  # the extra of setup.cfg with the libraries for GPUs
LOST_WORKER_ERRORS = (JaxRuntimeError,)  # beside those of `tf.errors`
# Seconds to wait for all processes to join. The supervisor of the process ends it earlier.
_JOINING_LIMIT = 3_600
# Seconds to wait for all processes to end. The chief scores and writes after the others have ended.
_ENDING_LIMIT = 86_400
_OF_GLOO = re.compile(rb"\[Gloo\] Rank ")


def make_strategy(
    training: TrainingConfig | FinetuningTrainingConfig, num_devices: int | None
) -> tf.distribute.Strategy:
    """Sets up data parallelism on JAX's devices, and returns TensorFlow's default strategy.

    See `spanbert_tf.training.devices.make_strategy`.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if training.deterministic and DETERMINISTIC not in flags:
        # JAX reads the flags when it initializes its devices.
        os.environ["XLA_FLAGS"] = f"{flags} {DETERMINISTIC}".strip()
    name = training.strategy
    if name == "tpu":
        raise ConfigurationError(
            "training.strategy: tpu is TensorFlow's; on JAX set mirrored for all devices of a "
            "machine, of a TPU, too, or multi_worker for those of several"
        )
    keras.distribution.set_distribution(None)
    if name == "one_device":
        return tf.distribute.get_strategy()
    with contextlib.suppress(RuntimeError):  # JAX is initialized already
        jax.config.update("jax_num_cpu_devices", num_devices or 1)
    if name == "multi_worker":
        join_processes()
    if (num_devices or 1) > jax.local_device_count():
        raise ConfigurationError(f"--devices {num_devices}: JAX has {jax.local_device_count()}")
    devices = keras.distribution.list_devices()
    if name == "mirrored":
        devices = devices[:num_devices]
    # A single device needs no distribution, without which random numbers are faster and batches are
    # prefetched.
    if len(devices) > 1:
        # `take_own_rows` has cut the batches already, so Keras must not.
        shared = keras.distribution.DataParallel(devices=devices, auto_shard_dataset=False)
        keras.distribution.set_distribution(shared)
    return tf.distribute.get_strategy()


@functools.cache
def join_processes() -> None:
    """Joins the processes of a run, and waits until all have joined; once in a process.

    Raises:
        ConfigurationError: the environment describes no cluster, TF_CONFIG is malformed, or the
            port of the first process is taken.
    """
    options = cluster_options(Cluster.from_environment())
    print_line(
        "training.strategy: JAX listens on ports of all networks; whoever reaches them can disturb "
        "the run (docs/devices.md, Security)"
    )
    # JAX's preemption service would handle SIGTERM in place of this project.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        with waiting_for_others():
            jax.distributed.initialize(
                **options,
                cluster_detection_method="deactivate",  # it would give each task of Slurm one GPU
                initialization_timeout=_JOINING_LIMIT,
                heartbeat_timeout_seconds=SECONDS_OF_SILENCE,
                shutdown_timeout_seconds=_ENDING_LIMIT,
            )
        with hidden_lines(1, _OF_GLOO):
            multihost_utils.sync_global_devices("all have joined")
    except (ValueError, RuntimeError) as error:
        raise ConfigurationError(
            f"training.strategy: JAX's processes do not reach each other ({reason(error)}); "
            "look at their names and ports"
        ) from error


def cluster_options(cluster: Cluster) -> dict[str, Any]:
    """Returns the arguments of `jax.distributed.initialize` for a cluster.

    Raises:
        ConfigurationError: this is the first process, and its port is taken.
    """
    if cluster.is_chief:
        try:
            socket.create_server(("", int(cluster.port))).close()
        except OSError as error:  # JAX would crash instead
            raise port_is_taken(cluster.port) from error
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    cards = None  # all GPUs
    if cluster.num_tasks_here is not None and seen:
        numbers = range(len(seen.split(",")))
        cards = list(numbers[cluster.own_devices(len(numbers))])
    return {
        "coordinator_address": cluster.addresses[0],
        "num_processes": len(cluster.addresses),
        "process_id": cluster.number,
        "local_device_ids": cards,
    }


def keep_order_of_sums() -> None:
    """Does nothing: XLA always adds in the order of the compiled program."""


def take_own_rows(batches: tf.data.Dataset) -> tf.data.Dataset:
    """Takes this process's rows, [batch / processes, …], of global batches [batch, …]."""

    def own_rows(values: tf.Tensor) -> tf.Tensor:
        num_rows = tf.shape(values)[0] // jax.process_count()
        first_row = jax.process_index() * num_rows
        return values[first_row : first_row + num_rows]

    def own_rows_of(*parts: Any) -> Any:
        batch = parts if len(parts) > 1 else parts[0]
        return tf.nest.map_structure(own_rows, batch)

    return batches.map(own_rows_of)


def leave_cluster(model: keras.Model) -> None:
    """Separates the processes of a run: from now on each computes for itself.

    The variables are moved to this process's devices. On the devices of all processes, only values
    that all processes compute together could be assigned to them.
    """
    keras.distribution.set_distribution(None)
    moved = set()
    for variable in _all_variables(model):
        if id(variable) not in moved:
            moved.add(id(variable))
            variable._layout = None
            variable.assign(variable.value.addressable_data(0))


def _all_variables(model: keras.Model) -> Iterator[keras.Variable]:
    yield from model.variables
    yield from model.optimizer.variables
    yield from model.metrics_variables


def sum_over_replicas(strategy: tf.distribute.Strategy, value: int) -> int:
    """Adds up a number over all devices; all processes must call this."""
    of_processes = multihost_utils.process_allgather(np.int32(value))
    return int(of_processes.sum()) * (jax.device_count() // jax.process_count())


def read_value(variable: keras.Variable) -> np.ndarray:
    """Copies the current value of a variable, whose memory the next step may reuse."""
    return np.array(variable.value)


def device_kind() -> str:
    """Returns the kind of the devices: `CPU`, `GPU` or `TPU`."""
    return jax.default_backend().upper()


def chip_kind() -> str:
    """Returns the name of the first device, such as `NVIDIA H200` or `TPU v5 lite`."""
    return jax.local_devices()[0].device_kind


def compute_capability() -> tuple[int, int]:
    """Returns the lowest compute capability of the GPUs; (0, 0) if it is unknown."""
    capabilities = []
    for device in jax.local_devices():
        major, minor = getattr(device, "compute_capability", "0.0").split(".")
        capabilities.append((int(major), int(minor)))
    return min(capabilities)


def multiplies_bfloat16() -> bool:
    """Returns `False`: on a CPU, JAX computes no faster in bfloat16."""
    return False
