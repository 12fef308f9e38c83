"""Where a run computes: devices, the workers that share it, and the precision."""

import contextlib
import math
import os
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import backprop

from spanbert_tf.config import FinetuningTrainingConfig, TrainingConfig
from spanbert_tf.errors import ConfigurationError, MismatchError
from spanbert_tf.lazy import keep_arithmetic
from spanbert_tf.terminal import print_line
from spanbert_tf.training.run_directory import AnyConfig
from spanbert_tf.training.tpu import join_tpu
from spanbert_tf.training.workers import join_processes, join_workers, worker_number

if _ON_JAX := keras.backend.backend() == "jax":
    import jax
    from jax.experimental import multihost_utils

    from spanbert_tf.layers.operations.jax import DETERMINISTIC
else:
    from spanbert_tf.models.train_step.tensorflow import add_in_order

NVIDIA_CARD = "/dev/nvidia0"  # of the driver; a container that is given the card has it
# Below this width a step is many small operations, which half precision makes no faster.
_SMALLEST_WIDTH = 256
CPU_INFO = "/proc/cpuinfo"
# Processors with either multiply matrices in bfloat16 1.9 times as fast as in float32 or more.
_BFLOAT16_FLAGS = {"avx512_bf16", "amx_bf16"}
# What ONEDNN_MAX_CPU_ISA names instructions by that include them; below, oneDNN has no products.
_BFLOAT16_LEVELS = ("BF16", "FP16", "AMX", "AVX10", "DEFAULT", "ALL")


class Devices:
    """The devices and processes of a run; make it before any other TensorFlow operation.

    It also sets what holds for the whole process: the order of sums, determinism, and Keras' seed.

    Args:
        training: section of the configuration.
        num_devices: as for `make_strategy`.

    Attributes:
        strategy: distribution strategy of the run; on JAX, where Keras shares the batches among
            the devices of a `keras.distribution`, TensorFlow's default.
        num_replicas: devices that share a batch.
        are_several: whether several processes share the run.
        are_tpu: whether TensorFlow trains on a TPU, which compiles a step for each shape.
        is_chief: whether this process writes.

    Raises:
        ConfigurationError: as for `make_strategy`.
    """

    def __init__(
        self, training: TrainingConfig | FinetuningTrainingConfig, num_devices: int | None = None
    ) -> None:
        flags = os.environ.get("XLA_FLAGS", "")
        if _ON_JAX and training.deterministic and DETERMINISTIC not in flags:
            os.environ["XLA_FLAGS"] = f"{flags} {DETERMINISTIC}".strip()  # before JAX sees devices
        self.strategy = make_strategy(training, num_devices)
        self.num_replicas = _num_replicas(self.strategy)
        self.are_several = training.strategy == "multi_worker"
        self.are_tpu = isinstance(self.strategy, tf.distribute.TPUStrategy)
        self.is_chief = not self.are_several or _process_number(self.strategy) == 0
        if not _ON_JAX:
            keep_order_of_sums()
        if training.deterministic:
            tf.config.experimental.enable_op_determinism()
        keras.utils.set_random_seed(training.library_seed)

    def scope(self) -> contextlib.AbstractContextManager:
        """Variables that are made while it lasts are the run's."""
        return self.strategy.scope()

    def for_workers(self, batches: tf.data.Dataset) -> tf.data.Dataset:
        """Global batches for several workers, each of which takes its own rows of every batch.

        Cutting comes last, so every worker computes the whole batch: masking 256 rows takes 7 ms.

        Args:
            batches: the same in every worker.
        """
        if not self.are_several:
            return batches
        if _ON_JAX:
            return batches.map(lambda *batch: tf.nest.map_structure(_own_rows, _element(batch)))
        options = tf.data.Options()
        sharding = tf.data.experimental.AutoShardPolicy.DATA
        options.experimental_distribute.auto_shard_policy = sharding
        return batches.with_options(options)

    def leave(self, model: keras.Model) -> None:
        """Ends what several processes on JAX share: from now on each computes for itself.

        Variables on the devices of all processes take only what all compute together.
        """
        if not (_ON_JAX and self.are_several):
            return
        keras.distribution.set_distribution(None)
        for variable in {id(one): one for one in _all_variables(model)}.values():
            variable._layout = None
            variable.assign(variable.value.addressable_data(0))

    def say(self, line: str) -> None:
        """Prints a line, once for all workers."""
        if self.is_chief:
            print_line(line)

    def describe(self, model: keras.Model, precision: str) -> str:
        """What runs where in which precision, in a line."""
        replicas, kind = self.num_replicas, device_kind()
        count = len(tf.config.list_logical_devices(kind)) if kind == "GPU" and not _ON_JAX else 1
        devices = f"{max(count, replicas) if replicas > 1 else 1} {kind}"
        parameters = sum(math.prod(variable.shape) for variable in model.trainable_variables)
        shared = f" as {replicas} replicas" if replicas > 1 else ""
        return f"{parameters:,} trained parameters on {devices}{shared} in {precision}"

    def any(self, flag: bool) -> bool:
        """Whether `flag` is true in any of the processes; all of them must ask."""
        return self._sum(int(flag)) > 0 if self.are_several else flag

    def agreed(self, value: int) -> int:
        """The mean of a number over all processes, which is the same in each; all must ask."""
        return self._sum(value) // self.num_replicas if self.are_several else value

    def check_same_step(self, step: int, directory: str) -> None:
        """Checks that all processes begin with the same step."""
        if not self.are_several:
            return
        total = self._sum(step)
        if total != step * self.num_replicas:
            raise MismatchError(
                f"{directory}: this worker found step {step}, others another one; all workers need "
                "the same --output on a file system that they share"
            )

    def _sum(self, value: int) -> int:
        """The sum over all replicas."""
        if _ON_JAX:
            of_processes = multihost_utils.process_allgather(np.int32(value))
            return int(of_processes.sum()) * (self.num_replicas // jax.process_count())
        return int(self._sum_in_graph(tf.constant(value, tf.int64)))

    @tf.function
    def _sum_in_graph(self, value: tf.Tensor) -> tf.Tensor:
        def sum_over_replicas(value: tf.Tensor) -> tf.Tensor:
            context = tf.distribute.get_replica_context()
            # A copy has a device, which the all-reduce needs to know.
            return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(value))

        sums = self.strategy.run(sum_over_replicas, args=(value,))
        return self.strategy.experimental_local_results(sums)[0]


def keep_order_of_sums() -> None:
    """From now on TensorFlow adds in the order in which the code does, whatever runs beside it.

    `tf.GradientTape` adds up the gradients of what is used several times by `AddN`, which begins
    with the first summand whose memory it may overwrite. Which one depends on what other threads
    have finished, and so do the last bits. TensorFlow has no switch for that, so a function takes
    its own's place.
    """
    keep_arithmetic()
    ordered = backprop._default_vspace._replace(aggregate_fn=add_in_order)
    pywrap_tfe.TFE_Py_RegisterVSpace(ordered)


def _process_number(strategy: tf.distribute.Strategy) -> int:
    """That of this process among those that share the run."""
    return jax.process_index() if _ON_JAX else worker_number(strategy.cluster_resolver)


def _element(batch: tuple) -> Any:
    """What a data set holds, of what it gives the function of `map`."""
    return batch if len(batch) > 1 else batch[0]


def _own_rows(values: tf.Tensor) -> tf.Tensor:
    """This process's share of a batch's rows: [B, …] -> [B / processes, …]."""
    num_rows = tf.shape(values)[0] // jax.process_count()
    first_row = jax.process_index() * num_rows
    return values[first_row : first_row + num_rows]


def _all_variables(model: keras.Model) -> Iterator[keras.Variable]:
    yield from model.variables
    yield from model.optimizer.variables
    yield from model.metrics_variables


def make_strategy(
    training: TrainingConfig | FinetuningTrainingConfig, num_devices: int | None = None
) -> tf.distribute.Strategy:
    """The strategy that a configuration asks for; call it before any other TensorFlow operation."""
    _check_combination(training, num_devices)
    build = _distribute_on_jax if _ON_JAX else _build_strategy
    strategy = build(training, num_devices)
    num_replicas = _num_replicas(strategy)
    parts = num_replicas * training.accumulation_steps
    if training.batch_size % parts:
        raise ConfigurationError(
            f"training.batch_size: {training.batch_size} rows cannot be shared equally by "
            f"{num_replicas} devices in {training.accumulation_steps} "
            f"micro-batches each; change it to a multiple of {parts}, or training.strategy or "
            "training.accumulation_steps"
        )
    return strategy


def _num_replicas(strategy: tf.distribute.Strategy) -> int:
    """How many devices share a batch."""
    distribution = keras.distribution.distribution()
    return distribution.device_mesh.devices.size if distribution else strategy.num_replicas_in_sync


def _distribute_on_jax(
    training: TrainingConfig | FinetuningTrainingConfig, num_devices: int | None
) -> tf.distribute.Strategy:
    """Has Keras share each batch among JAX's devices, which hold the same weights."""
    name = training.strategy
    if name == "tpu":
        raise ConfigurationError(
            "training.strategy: tpu is TensorFlow's; on JAX set mirrored for all devices of a "
            "machine, of a TPU, too, or multi_worker for those of several"
        )
    keras.distribution.set_distribution(None)
    if name == "one_device":
        return tf.distribute.get_strategy()
    with contextlib.suppress(RuntimeError):  # JAX runs already, on the devices that it has
        jax.config.update("jax_num_cpu_devices", num_devices or 1)
    if name == "multi_worker":
        join_processes()
    if (num_devices or 1) > jax.local_device_count():
        raise ConfigurationError(f"--devices {num_devices}: JAX has {jax.local_device_count()}")
    devices = keras.distribution.list_devices()
    if name == "mirrored":
        devices = devices[:num_devices]
    if len(devices) > 1:  # one has faster random numbers without, and batches that wait for it
        # The batches are cut already.
        shared = keras.distribution.DataParallel(devices=devices, auto_shard_dataset=False)
        keras.distribution.set_distribution(shared)
    return tf.distribute.get_strategy()


def _build_strategy(
    training: TrainingConfig | FinetuningTrainingConfig, num_devices: int | None
) -> tf.distribute.Strategy:
    name = training.strategy
    if name == "one_device":
        return tf.distribute.get_strategy()
    if name == "mirrored":
        strategy = tf.distribute.MirroredStrategy(_devices(num_devices))
        # Of one device, it would only stand between a step and its batch.
        return strategy if strategy.num_replicas_in_sync > 1 else tf.distribute.get_strategy()
    if name == "multi_worker":
        if num_devices:
            _devices(num_devices)
        return join_workers()
    return join_tpu(training.tpu)


def _check_combination(
    training: TrainingConfig | FinetuningTrainingConfig, num_devices: int | None
) -> None:
    if training.strategy == "one_device" and (num_devices or 1) > 1:
        raise ConfigurationError(
            f"--devices {num_devices}: training.strategy is one_device; set "
            "training.strategy=mirrored"
        )


def _devices(num_devices: int | None) -> list[str] | None:
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


def unused_card(device_file: str) -> str | None:
    """What to do where a card of this machine is not used; `None` where there is none, or it is."""
    # Devices that a run was told not to see are no mistake.
    if not os.path.exists(device_file) or os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return None
    if device_kind() != "CPU":
        return None
    library, extra = ("JAX", "jax_cuda") if _ON_JAX else ("TensorFlow", "cuda")
    return (
        f"{device_file}: there is a GPU that {library} does not list, so the processor computes; "
        f"stop, `pip install -e '.[{extra}]'` for the libraries that it needs, and start again "
        f"(where they are installed, `spanbert-tf --debug` shows what {library} lacks)"
    )


def decide_precision(config: AnyConfig, before: AnyConfig | None, width: int) -> AnyConfig:
    """The configuration of a run with the precision that it computes in from its first step on."""
    training = config.training
    wanted = training.precision
    if wanted == "auto" and before is not None:
        wanted = before.training.precision
    precision = choose_precision(
        wanted, width, of_several_machines=training.strategy == "multi_worker"
    )
    return config.replace(training=training.replace(precision=precision))


def choose_precision(precision: str, width: int, *, of_several_machines: bool = False) -> str:
    """The Keras dtype policy for `training.precision`.

    `auto` is `mixed_bfloat16` on TPUs and where every GPU computes in it (compute capability 8,
    A100 and newer), and `mixed_float16` where every GPU has tensor cores (7, V100). On a processor
    it is `mixed_bfloat16` for a model of width 256 or more where the processor says that it has
    AVX512-BF16 or AMX, and TensorFlow uses them: what else the machine does has no say. It is
    `float32` elsewhere.

    Args:
        precision: `auto`, or a policy's name, which is returned as it is.
        width: the encoder's `hidden_dim`.
        of_several_machines: whether other machines decide for themselves; as processors can
            differ from one to the next, it is `float32` on them.
    """
    if precision != "auto":
        return precision
    kind = device_kind()
    if kind == "TPU":
        return "mixed_bfloat16"
    if kind == "CPU":
        is_faster = width >= _SMALLEST_WIDTH and not of_several_machines and _multiplies_bfloat16()
        return "mixed_bfloat16" if is_faster else "float32"
    capability = _compute_capability()
    if capability >= (8, 0):
        return "mixed_bfloat16"
    return "mixed_float16" if capability >= (7, 0) else "float32"


def device_kind() -> str:
    """What computes: `CPU`, `GPU` or `TPU`."""
    if _ON_JAX:
        return jax.default_backend().upper()
    if tf.config.list_logical_devices("TPU"):
        return "TPU"
    return "GPU" if tf.config.list_physical_devices("GPU") else "CPU"


def _compute_capability() -> tuple[int, int]:
    """That of the oldest GPU; those that say nothing about themselves count as such."""
    if _ON_JAX:
        found = [getattr(device, "compute_capability", "0.0") for device in jax.local_devices()]
        return min(tuple(map(int, one.split("."))) for one in found)
    gpus = tf.config.list_physical_devices("GPU")
    details = [tf.config.experimental.get_device_details(gpu) for gpu in gpus]
    return min(one.get("compute_capability", (0, 0)) for one in details)


def _multiplies_bfloat16() -> bool:
    """Whether this processor has products in bfloat16, and TensorFlow takes them from oneDNN."""
    if _ON_JAX:
        return False
    level = os.environ.get("ONEDNN_MAX_CPU_ISA", "DEFAULT").upper()
    if os.environ.get("TF_ENABLE_ONEDNN_OPTS", "1").lower() in ("0", "false"):
        return False  # TensorFlow's own kernels compute bfloat16 in float32
    if not any(name in level for name in _BFLOAT16_LEVELS):
        return False
    try:
        with open(CPU_INFO, encoding="utf-8") as file:
            lines = (line.partition(":") for line in file)
            flags = next((values for name, _, values in lines if name.strip() == "flags"), "")
    except OSError:  # not Linux
        return False
    return not _BFLOAT16_FLAGS.isdisjoint(flags.split())
