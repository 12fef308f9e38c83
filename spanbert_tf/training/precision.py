"""Chooses the precision of a run."""

from spanbert_tf.training.devices import backend
from spanbert_tf.training.run_directory import Config

# A step of a narrower model consists of small operations, which half precision makes no faster.
_SMALLEST_WIDTH = 256


def decide_precision(config: Config, before: Config | None, width: int) -> Config:
    """Replaces `precision: auto` in the configuration of a run; a resumed run keeps its precision.

    Args:
        config: configuration of the command.
        before: configuration with which the run was started; `None` for a new run.
        width: as for `choose_precision`.
    """
    training = config.training
    wanted = training.precision
    if wanted == "auto" and before is not None:
        wanted = before.training.precision
    precision = choose_precision(
        wanted, width, of_several_machines=training.strategy == "multi_worker"
    )
    return config.replace(training=training.replace(precision=precision))


def choose_precision(precision: str, width: int, *, of_several_machines: bool = False) -> str:
    """Returns the name of the Keras dtype policy for `training.precision`.

    `auto` stands for:

    - `mixed_bfloat16` on TPUs, and if all GPUs support it (compute capability 8, A100 and newer);
    - `mixed_float16` if all GPUs have tensor cores (compute capability 7, V100);
    - `mixed_bfloat16` on a CPU with AVX512-BF16 or AMX that TensorFlow uses, for a model of width
      256 or more. The choice is not measured, so it does not depend on the load of the machine;
    - `float32` otherwise.

    Args:
        precision: `auto`, or the name of a policy, which is returned unchanged.
        width: the encoder's `hidden_dim`.
        of_several_machines: whether several machines share the run. They choose separately, and
            their CPUs may differ, so `auto` is `float32` on CPUs then.
    """
    if precision != "auto":
        return precision
    kind = backend.device_kind()
    if kind == "TPU":
        return "mixed_bfloat16"
    if kind == "CPU":
        is_wide = width >= _SMALLEST_WIDTH
        is_faster = is_wide and not of_several_machines and backend.multiplies_bfloat16()
        return "mixed_bfloat16" if is_faster else "float32"
    capability = backend.compute_capability()
    if capability >= (8, 0):
        return "mixed_bfloat16"
    return "mixed_float16" if capability >= (7, 0) else "float32"
