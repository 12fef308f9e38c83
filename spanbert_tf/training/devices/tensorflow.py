"""Devices of TensorFlow: strategies, the order of sums, and what a device computes fast."""

import functools
import os
import re
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf
from tensorflow.compiler.xla.tsl.protobuf import coordination_config_pb2
from tensorflow.python import pywrap_tfe
from tensorflow.python.distribute import multi_worker_util
from tensorflow.python.eager import backprop, context

from spanbert_tf.config import FinetuningTrainingConfig, TrainingConfig
from spanbert_tf.errors import ConfigurationError
from spanbert_tf.lazy import keep_arithmetic
from spanbert_tf.process import waiting_for_others
from spanbert_tf.terminal import hidden_lines, print_line
from spanbert_tf.training.cluster import Cluster, port_is_taken
from spanbert_tf.training.devices.tpu import join_tpu

LIBRARY, GPU_EXTRA = "TensorFlow", "cuda"
LOST_WORKER_ERRORS = ()  # beside those of `tf.errors`
_SECONDS_OF_SILENCE = 30  # until a worker counts as lost
# What TensorFlow's server says of itself: that its log begins, and where it listens.
_OF_SERVER = re.compile(rb"WARNING: All log messages before absl::|I\d{4} .* Started server with ")
CPU_INFO = "/proc/cpuinfo"
# Processors with either multiply matrices in bfloat16 1.9 times as fast as in float32 or more.
_BFLOAT16_FLAGS = {"avx512_bf16", "amx_bf16"}
# What ONEDNN_MAX_CPU_ISA names instructions by that include them; below, oneDNN has no products.
_BFLOAT16_LEVELS = ("BF16", "FP16", "AMX", "AVX10", "DEFAULT", "ALL")


def make_strategy(
    training: TrainingConfig | FinetuningTrainingConfig, num_devices: int | None
) -> tf.distribute.Strategy:
    """The strategy that a configuration asks for; see `spanbert_tf.training.devices`."""
    name = training.strategy
    if name == "one_device":
        return tf.distribute.get_strategy()
    if name == "mirrored":
        strategy = tf.distribute.MirroredStrategy(_choose_devices(num_devices))
        # For one device, it would only stand between a step and its batch.
        return strategy if strategy.num_replicas_in_sync > 1 else tf.distribute.get_strategy()
    if name == "multi_worker":
        if num_devices:
            _choose_devices(num_devices)
        return join_workers()
    return join_tpu(training.tpu)


def _choose_devices(num_devices: int | None) -> list[str] | None:
    """Names of the devices to mirror on; `None` is all of them."""
    if num_devices is None:
        return None
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        if num_devices > len(gpus):
            raise ConfigurationError(f"--devices {num_devices}: there are {len(gpus)} GPUs")
        tf.config.set_visible_devices(gpus[:num_devices], "GPU")
        return [f"GPU:{number}" for number in range(num_devices)]
    processor = tf.config.list_physical_devices("CPU")[0]
    try:
        tf.config.set_logical_device_configuration(
            processor, [tf.config.LogicalDeviceConfiguration()] * num_devices
        )
    except RuntimeError as error:
        if len(tf.config.list_logical_devices("CPU")) < num_devices:
            raise ConfigurationError(
                f"--devices {num_devices}: TensorFlow runs already; choose before the first "
                "operation"
            ) from error
    return [f"CPU:{number}" for number in range(num_devices)]


@functools.cache
def join_workers() -> tf.distribute.MultiWorkerMirroredStrategy:
    """Opens this worker's port, and waits until all the others have theirs.

    Once a process: TensorFlow counts the collectives of each strategy from the same number, and
    would take those of a grid's second run for the first one's.

    Raises:
        ConfigurationError: neither TF_CONFIG nor Slurm says who shares the run, what TF_CONFIG
            says makes no sense, or the port is taken.
    """
    cluster = Cluster.from_environment()
    print_line(
        f"training.strategy: this worker listens on port {cluster.port} of all networks; "
        "whoever reaches it can read and write files here (docs/devices.md, Security)"
    )
    gpus = tf.config.get_visible_devices("GPU")
    if cluster.num_tasks_here is not None:  # a step of Slurm
        gpus = tf.config.list_physical_devices("GPU")
        gpus = gpus[cluster.own_devices(len(gpus))]
        tf.config.set_visible_devices(gpus, "GPU")
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster.jobs),
        task_type=cluster.job,
        task_id=cluster.index,
        num_accelerators={"GPU": len(gpus)},
        rpc_layer="grpc",
    )
    _extend_silence(resolver.cluster_spec())
    try:
        with waiting_for_others(), hidden_lines(2, _OF_SERVER):
            return tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
    except tf.errors.UnknownError as error:
        if "start gRPC server" not in str(error):
            raise
        raise port_is_taken(cluster.port) from error


def _extend_silence(cluster: tf.train.ClusterSpec) -> None:
    """Makes the limit of TensorFlow's heartbeats longer than a switch takes to start again.

    `MultiWorkerMirroredStrategy` sets its 10 s where nothing else was set, and has no argument for
    it, nor has TensorFlow a public function.
    """
    context.context().configure_coordination_service(
        "standalone",
        service_leader=multi_worker_util.coordination_leader(cluster),
        heartbeat_timeout_in_ms=_SECONDS_OF_SILENCE * 1000,
        coordinated_jobs=[
            coordination_config_pb2.CoordinatedJob(name=job, num_tasks=cluster.num_tasks(job))
            for job in cluster.jobs
        ],
    )


def keep_order_of_sums() -> None:
    """From now on TensorFlow adds in the order in which the code does, whatever runs beside it.

    `tf.GradientTape` adds up the gradients of what is used several times by `AddN`, which begins
    with the first summand whose memory it may overwrite. Which one depends on what other threads
    have finished, and so do the last bits. TensorFlow has no switch for that, so a function takes
    its own's place.
    """
    keep_arithmetic()
    ordered = backprop._default_vspace._replace(aggregate_fn=_add_in_order)
    pywrap_tfe.TFE_Py_RegisterVSpace(ordered)


def _add_in_order(gradients: Sequence[tf.Tensor | tf.IndexedSlices]) -> tf.Tensor:
    """Adds up gradients of one value from left to right.

    TensorFlow's own function adds up slices of tables, and lists of tensors.
    """
    are_slices = all(isinstance(gradient, tf.IndexedSlices) for gradient in gradients)
    if are_slices or gradients[0].dtype == tf.variant:
        return backprop._aggregate_grads(gradients)
    return functools.reduce(tf.add, map(tf.convert_to_tensor, gradients))


def take_own_rows(batches: tf.data.Dataset) -> tf.data.Dataset:
    """Of global batches [B, …], those of which each worker takes its own rows."""
    options = tf.data.Options()
    sharding = tf.data.experimental.AutoShardPolicy.DATA
    options.experimental_distribute.auto_shard_policy = sharding
    return batches.with_options(options)


def leave_cluster(model: keras.Model) -> None:
    """Each worker of TensorFlow can compute for itself already."""


def sum_over_replicas(strategy: tf.distribute.Strategy, value: int) -> int:
    """The sum of a number over all replicas; all workers must ask."""
    return int(_summed(strategy, tf.constant(value, tf.int64)))


@tf.function
def _summed(strategy: tf.distribute.Strategy, value: tf.Tensor) -> tf.Tensor:
    def sum_in_replica(value: tf.Tensor) -> tf.Tensor:
        replica = tf.distribute.get_replica_context()
        # A copy has a device, which the all-reduce needs to know.
        return replica.all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(value))

    sums = strategy.run(sum_in_replica, args=(value,))
    return strategy.experimental_local_results(sums)[0]


def read_value(variable: keras.Variable) -> np.ndarray:
    """The value that a variable has now, which later steps leave as it is.

    On a processor TensorFlow shares a value's memory with its readers, and an update writes
    elsewhere while that lasts; so this costs no time there.
    """
    tensor = tf.convert_to_tensor(variable.value)
    is_shared = "CPU" in tensor.device and tensor.dtype != tf.bfloat16  # no format of a buffer
    return np.asarray(memoryview(tensor)) if is_shared else tensor.numpy()


def device_kind() -> str:
    """What computes: `CPU`, `GPU` or `TPU`."""
    if tf.config.list_logical_devices("TPU"):
        return "TPU"
    return "GPU" if tf.config.list_physical_devices("GPU") else "CPU"


def compute_capability() -> tuple[int, int]:
    """That of the oldest GPU; a GPU that says nothing about itself has (0, 0)."""
    gpus = tf.config.list_physical_devices("GPU")
    details = [tf.config.experimental.get_device_details(gpu) for gpu in gpus]
    return min(one.get("compute_capability", (0, 0)) for one in details)


def multiplies_bfloat16() -> bool:
    """Whether this processor has products in bfloat16, and TensorFlow takes them from oneDNN."""
    level = os.environ.get("ONEDNN_MAX_CPU_ISA", "DEFAULT").upper()
    if os.environ.get("TF_ENABLE_ONEDNN_OPTS", "1").lower() in ("0", "false"):
        return False  # TensorFlow's own kernels compute bfloat16 in float32
    if not any(name in level for name in _BFLOAT16_LEVELS):
        return False
    try:
        with open(CPU_INFO, encoding="utf-8") as file:
            lines = file.readlines()
    except OSError:  # not Linux
        return False
    for line in lines:
        name, _, flags = line.partition(":")
        if name.strip() == "flags":
            return not _BFLOAT16_FLAGS.isdisjoint(flags.split())
    return False
