"""The precision that the devices of this process compute fastest in."""

import functools
import time

import tensorflow as tf

# Below this width a step is many small operations, which half precision makes no faster.
_SMALLEST_WIDTH = 256
_PRODUCT_SIZE, _PRODUCT_ROUNDS = 512, 20
_LEAST_GAIN = 1.5  # of the products alone; the rest of a step gains less


def choose_precision(precision: str, width: int, *, of_several_machines: bool = False) -> str:
    """The Keras dtype policy for `training.precision`.

    `auto` is `mixed_bfloat16` on TPUs and where every GPU computes in it (compute capability 8,
    A100 and newer), and `mixed_float16` where every GPU has tensor cores (7, V100). On a processor
    it is `mixed_bfloat16` for a model of width 256 or more where matrix products in it are
    measured to be 1.5 times as fast, as with AVX512-BF16 or AMX. It is `float32` elsewhere.

    Args:
        precision: `auto`, or a policy's name, which is returned as it is.
        width: the encoder's `hidden_dim`.
        of_several_machines: whether other machines decide for themselves; as a measurement can
            differ from one to the next, it is `float32` on their processors.
    """
    if precision != "auto":
        return precision
    if tf.config.list_logical_devices("TPU"):
        return "mixed_bfloat16"
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        is_faster = (
            width >= _SMALLEST_WIDTH and not of_several_machines and bfloat16_gain() >= _LEAST_GAIN
        )
        return "mixed_bfloat16" if is_faster else "float32"
    details = [tf.config.experimental.get_device_details(gpu) for gpu in gpus]
    # Devices that say nothing about themselves count as the oldest.
    capability = min(one.get("compute_capability", (0, 0)) for one in details)
    if capability >= (8, 0):
        return "mixed_bfloat16"
    return "mixed_float16" if capability >= (7, 0) else "float32"


@functools.cache
def bfloat16_gain() -> float:
    """How many times as fast the processor multiplies matrices in bfloat16 as in float32."""
    dtypes = (tf.float32, tf.bfloat16)
    with tf.device("CPU:0"):
        matrices = [tf.ones([_PRODUCT_SIZE, _PRODUCT_SIZE], dtype) for dtype in dtypes]
        # In turns, so that what else the machine does meets both.
        rounds = [[_product_seconds(matrix) for matrix in matrices] for _ in range(_PRODUCT_ROUNDS)]
    fastest, fastest_half = (min(seconds) for seconds in zip(*rounds, strict=True))
    return fastest / fastest_half


def _product_seconds(matrix: tf.Tensor) -> float:
    start = time.perf_counter()
    tf.linalg.matmul(matrix, matrix).numpy()
    return time.perf_counter() - start
