"""The precision that a run computes in."""

from spanbert_tf.training.devices import backend
from spanbert_tf.training.run_directory import AnyConfig

# Below this width a step is many small operations, which half precision makes no faster.
_SMALLEST_WIDTH = 256


def decide_precision(config: AnyConfig, before: AnyConfig | None, width: int) -> AnyConfig:
    """The configuration of a run with the precision that it computes in from its first step on.

    Args:
        config: configuration of the command.
        before: configuration that the run was begun with; `None` for a new one.
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
