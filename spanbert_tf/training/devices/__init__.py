"""The devices of a run, and the processes that share it.

`backend` is the module of Keras' backend, `tensorflow` or `jax`; both have the same functions.
"""

import contextlib
import math
import os

import keras
import tensorflow as tf

from spanbert_tf.config import FinetuningTrainingConfig, TrainingConfig
from spanbert_tf.config.run import check_equal_parts
from spanbert_tf.errors import ConfigurationError, MismatchError
from spanbert_tf.terminal import print_line
from spanbert_tf.training.cluster import Cluster

if keras.backend.backend() == "jax":
    from spanbert_tf.training.devices import jax as backend
else:
    from spanbert_tf.training.devices import tensorflow as backend  # type: ignore[no-redef]

# Errors that are raised if another worker cannot be reached any more.
LOST_WORKER_ERRORS = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    *backend.LOST_WORKER_ERRORS,
)
NVIDIA_CARD = "/dev/nvidia0"  # exists where the driver is loaded, also in containers with a GPU


class Devices:
    """The devices and processes of a run; create it before any other TensorFlow operation.

    It also sets the order of sums and determinism for the whole process.

    Args:
        training: section `training` of the configuration.
        num_devices: as for `make_strategy`.

    Attributes:
        strategy: distribution strategy of the run. On JAX it is TensorFlow's default, and Keras
            shares each batch among the devices of a `keras.distribution`.
        num_replicas: number of devices that share a batch.
        are_several: whether several processes share the run.
        are_tpu: whether TensorFlow trains on a TPU, where each shape has its own compiled step.
        is_chief: whether this process writes.

    Raises:
        ConfigurationError: as for `make_strategy`.
    """

    def __init__(
        self, training: TrainingConfig | FinetuningTrainingConfig, num_devices: int | None = None
    ) -> None:
        self.strategy = make_strategy(training, num_devices)
        self.num_replicas = _num_replicas(self.strategy)
        self.are_several = training.strategy == "multi_worker"
        self.are_tpu = isinstance(self.strategy, tf.distribute.TPUStrategy)
        self.is_chief = not self.are_several or Cluster.from_environment().is_chief
        backend.keep_order_of_sums()
        if training.deterministic:
            tf.config.experimental.enable_op_determinism()

    def scope(self) -> contextlib.AbstractContextManager:
        """Returns the context in which the variables of the run must be created."""
        return self.strategy.scope()

    def for_workers(self, batches: tf.data.Dataset) -> tf.data.Dataset:
        """Gives each of several workers its own rows of every global batch.

        The rows are taken last, so every worker computes the whole batch; masking 256 rows takes
        7 ms.

        Args:
            batches: the global batches, which are the same in every worker.
        """
        return backend.take_own_rows(batches) if self.are_several else batches

    def leave(self, model: keras.Model) -> None:
        """Separates the processes of a run: from now on each computes for itself."""
        if self.are_several:
            backend.leave_cluster(model)

    def say(self, line: str) -> None:
        """Prints a line; of several workers, only the chief does."""
        if self.is_chief:
            print_line(line)

    def describe(self, model: keras.Model, precision: str) -> str:
        """Describes the size of the model, the devices and the precision."""
        parameters = sum(math.prod(variable.shape) for variable in model.trainable_variables)
        devices = f"{self.num_replicas} {backend.device_kind()}"
        if self.num_replicas > 1:
            devices += f" as {self.num_replicas} replicas"
        return f"{parameters:,} trained parameters on {devices} in {precision}"

    def chip_kind(self) -> str:
        """Returns the name that the driver gives to the first device; empty if it gives none."""
        return backend.chip_kind()

    def any(self, flag: bool) -> bool:
        """Whether `flag` is true in any of the processes; all of them must call this."""
        return self._sum(int(flag)) > 0 if self.are_several else flag

    def wait_for_all(self) -> None:
        """Returns when all processes have called this."""
        self.any(False)

    def agreed(self, value: int) -> int:
        """Returns the mean of a number over all processes; all of them must call this."""
        return self._sum(value) // self.num_replicas if self.are_several else value

    def check_same_step(self, step: int, directory: str) -> None:
        """Checks that all processes start with the same step."""
        if self.are_several and self._sum(step) != step * self.num_replicas:
            raise MismatchError(
                f"{directory}: this worker found step {step}, others another one; all workers need "
                "the same --output on a file system that they share"
            )

    def _sum(self, value: int) -> int:
        return backend.sum_over_replicas(self.strategy, value)


def make_strategy(
    training: TrainingConfig | FinetuningTrainingConfig, num_devices: int | None = None
) -> tf.distribute.Strategy:
    """Makes the strategy of a configuration; call it before any other TensorFlow operation.

    Args:
        training: section `training` of the configuration.
        num_devices: number of devices of this machine to use; all by default.

    Raises:
        ConfigurationError: the devices do not exist or cannot share the batch equally, or other
            processes of the run cannot be reached.
    """
    if training.strategy == "one_device" and (num_devices or 1) > 1:
        raise ConfigurationError(
            f"--devices {num_devices}: training.strategy is one_device; set "
            "training.strategy=mirrored"
        )
    strategy = backend.make_strategy(training, num_devices)
    check_equal_parts(
        "training.batch_size",
        training.batch_size,
        num_devices=_num_replicas(strategy),
        accumulation_steps=training.accumulation_steps,
        advice="change it to a multiple of {parts}, or training.strategy or "
        "training.accumulation_steps",
    )
    return strategy


def _num_replicas(strategy: tf.distribute.Strategy) -> int:
    """Returns the number of devices that share a batch."""
    distribution = keras.distribution.distribution()
    if distribution:
        return distribution.device_mesh.devices.size
    return strategy.num_replicas_in_sync


def unused_card(device_file: str) -> str | None:
    """Returns advice if a GPU of this machine is not used; `None` if there is nothing to advise."""
    # A user may hide GPUs from a run on purpose.
    if not os.path.exists(device_file) or os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return None
    if backend.device_kind() != "CPU":
        return None
    library = backend.LIBRARY
    return (
        f"{device_file}: there is a GPU that {library} does not list, so the processor computes; "
        f"stop, `pip install 'spanbert_tf[{backend.GPU_EXTRA}]'` for the libraries that it needs, "
        "and start again (where they are installed, `spanbert-tf --debug` shows what "
        f"{library} lacks)"
    )
