"""The devices of TensorFlow: strategies, the order of sums, and the features of devices."""

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
from spanbert_tf.training.cluster import SECONDS_OF_SILENCE, Cluster, port_is_taken
from spanbert_tf.training.devices.tpu import join_tpu

LIBRARY = "TensorFlow"
GPU_EXTRA = "cuda"  # the extra of setup.cfg with the libraries for GPUs
LOST_WORKER_ERRORS = ()  # beside those of `tf.errors`
# Lines that TensorFlow's server prints: a warning about its log, and its address.
_OF_SERVER = re.compile(rb"WARNING: All log messages before absl::|I\d{4} .* Started server with ")
CPU_INFO = "/proc/cpuinfo"
# CPUs with either feature multiply matrices in bfloat16 at least 1.9 times as fast as in float32.
_BFLOAT16_FLAGS = {"avx512_bf16", "amx_bf16"}
# Values of ONEDNN_MAX_CPU_ISA that include these instructions contain one of these words.
_BFLOAT16_LEVELS = ("BF16", "FP16", "AMX", "AVX10", "DEFAULT", "ALL")
_shared_strategy: list[tf.distribute.MirroredStrategy] = []  # one at most


def make_strategy(
    training: TrainingConfig | FinetuningTrainingConfig, num_devices: int | None
) -> tf.distribute.Strategy:
    """Makes the strategy of a configuration; see `spanbert_tf.training.devices.make_strategy`."""
    name = training.strategy
    if name == "one_device":
        return tf.distribute.get_strategy()
    if name == "mirrored":
        return _mirrored(num_devices)
    if name == "multi_worker":
        if num_devices:
            _choose_devices(num_devices)
        return join_workers()
    return join_tpu(training.tpu)


def _mirrored(num_devices: int | None) -> tf.distribute.Strategy:
    """Returns the strategy that all mirrored runs of this process share.

    TensorFlow numbers the collectives of each strategy from the same number. Those of a second
    strategy, for the next run in this process, would be taken for the first one's, and fail.
    """
    strategy = tf.distribute.MirroredStrategy(_choose_devices(num_devices))
    if strategy.num_replicas_in_sync == 1:
        # With one device, a mirrored strategy would only delay the batches.
        return tf.distribute.get_strategy()
    if not _shared_strategy:
        _shared_strategy.append(strategy)
    shared = _shared_strategy[0]
    num_shared = shared.num_replicas_in_sync
    if num_shared != strategy.num_replicas_in_sync:
        raise ConfigurationError(
            f"--devices {strategy.num_replicas_in_sync}: this process has trained on {num_shared} "
            "devices, and TensorFlow keeps to these; start another process"
        )
    return shared


def _choose_devices(num_devices: int | None) -> list[str] | None:
    """Returns the names of the devices to mirror on; `None` stands for all of them."""
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
    """Opens the port of this worker, and waits for all other workers; once in a process.

    TensorFlow numbers the collectives of each strategy from the same number, so a second strategy,
    for the next run of a grid, would be confused with the first one.

    Raises:
        ConfigurationError: the environment describes no cluster, TF_CONFIG is malformed, or the
            port is taken.
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
    """Raises the limit of TensorFlow's heartbeats above the time that a network switch restarts in.

    `MultiWorkerMirroredStrategy` sets a limit of 10 s unless one is set already. It has no argument
    for the limit, and TensorFlow has no public function.
    """
    context.context().configure_coordination_service(
        "standalone",
        service_leader=multi_worker_util.coordination_leader(cluster),
        heartbeat_timeout_in_ms=SECONDS_OF_SILENCE * 1000,
        coordinated_jobs=[
            coordination_config_pb2.CoordinatedJob(name=job, num_tasks=cluster.num_tasks(job))
            for job in cluster.jobs
        ],
    )


def keep_order_of_sums() -> None:
    """Makes TensorFlow add up gradients in the order of the code, independently of other threads.

    `tf.GradientTape` adds up the gradients of a value that is used several times by `AddN`, which
    starts with the first summand whose memory it may overwrite. This summand, and thus the last
    bits of the sum, depends on what other threads have finished. TensorFlow has no option for this,
    so its function is replaced by `_add_in_order`.
    """
    keep_arithmetic()
    ordered = backprop._default_vspace._replace(aggregate_fn=_add_in_order)
    pywrap_tfe.TFE_Py_RegisterVSpace(ordered)


def _add_in_order(gradients: Sequence[tf.Tensor | tf.IndexedSlices]) -> tf.Tensor:
    """Adds up the gradients of one value from left to right.

    Slices of tables and lists of tensors are left to TensorFlow's own function.
    """
    are_slices = all(isinstance(gradient, tf.IndexedSlices) for gradient in gradients)
    if are_slices or gradients[0].dtype == tf.variant:
        return backprop._aggregate_grads(gradients)
    return functools.reduce(tf.add, map(tf.convert_to_tensor, gradients))


def take_own_rows(batches: tf.data.Dataset) -> tf.data.Dataset:
    """Makes each worker take its own rows of global batches [batch, …]."""
    options = tf.data.Options()
    sharding = tf.data.experimental.AutoShardPolicy.DATA
    options.experimental_distribute.auto_shard_policy = sharding
    return batches.with_options(options)


def leave_cluster(model: keras.Model) -> None:
    """Does nothing: each worker of TensorFlow can compute for itself."""


def sum_over_replicas(strategy: tf.distribute.Strategy, value: int) -> int:
    """Adds up a number over all replicas; all workers must call this."""
    return int(_summed(strategy, tf.constant(value, tf.int64)))


@tf.function
def _summed(strategy: tf.distribute.Strategy, value: tf.Tensor) -> tf.Tensor:
    def sum_in_replica(value: tf.Tensor) -> tf.Tensor:
        replica = tf.distribute.get_replica_context()
        # The all-reduce needs a tensor with a device, which the copy has.
        return replica.all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(value))

    sums = strategy.run(sum_in_replica, args=(value,))
    return strategy.experimental_local_results(sums)[0]


def read_value(variable: keras.Variable) -> np.ndarray:
    """Returns the current value of a variable; later steps do not change the array.

    On a CPU the array shares the memory of the value without a copy. TensorFlow writes the next
    value elsewhere while an array shares the memory.
    """
    tensor = tf.convert_to_tensor(variable.value)
    # Python's buffers have no format for bfloat16.
    is_shared = "CPU" in tensor.device and tensor.dtype != tf.bfloat16
    return np.asarray(memoryview(tensor)) if is_shared else tensor.numpy()


def device_kind() -> str:
    """Returns the kind of the devices: `CPU`, `GPU` or `TPU`."""
    if tf.config.list_logical_devices("TPU"):
        return "TPU"
    return "GPU" if tf.config.list_physical_devices("GPU") else "CPU"


def chip_kind() -> str:
    """Returns the name of the first GPU, such as `NVIDIA H200`; empty if there is none."""
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return ""
    return tf.config.experimental.get_device_details(gpus[0]).get("device_name", "")


def compute_capability() -> tuple[int, int]:
    """Returns the lowest compute capability of the GPUs; (0, 0) if it is unknown."""
    gpus = tf.config.list_physical_devices("GPU")
    details = [tf.config.experimental.get_device_details(gpu) for gpu in gpus]
    return min(one.get("compute_capability", (0, 0)) for one in details)


def multiplies_bfloat16() -> bool:
    """Whether the CPU multiplies matrices in bfloat16, and TensorFlow uses this through oneDNN."""
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
