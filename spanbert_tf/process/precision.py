"""The precision that the devices of this process compute fastest in."""

import os

import tensorflow as tf

# Below this width a step is many small operations, which half precision makes no faster.
_SMALLEST_WIDTH = 256
CPU_INFO = "/proc/cpuinfo"
# Processors with either multiply matrices in bfloat16 1.9 times as fast as in float32 or more.
_BFLOAT16_FLAGS = {"avx512_bf16", "amx_bf16"}
# What ONEDNN_MAX_CPU_ISA names instructions by that include them; below, oneDNN has no products.
_BFLOAT16_LEVELS = ("BF16", "FP16", "AMX", "AVX10", "DEFAULT", "ALL")


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
    if tf.config.list_logical_devices("TPU"):
        return "mixed_bfloat16"
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        is_faster = width >= _SMALLEST_WIDTH and not of_several_machines and _multiplies_bfloat16()
        return "mixed_bfloat16" if is_faster else "float32"
    details = [tf.config.experimental.get_device_details(gpu) for gpu in gpus]
    # Devices that say nothing about themselves count as the oldest.
    capability = min(one.get("compute_capability", (0, 0)) for one in details)
    if capability >= (8, 0):
        return "mixed_bfloat16"
    return "mixed_float16" if capability >= (7, 0) else "float32"


def _multiplies_bfloat16() -> bool:
    """Whether this processor has products in bfloat16, and TensorFlow takes them from oneDNN."""
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
