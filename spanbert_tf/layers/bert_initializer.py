"""The first values of kernels and embeddings, drawn only where they are used."""

import contextlib
import contextvars
import math
import mmap
from collections.abc import Iterator

import keras
import numpy as np

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

_DEVIATION_AFTER_CUT = 0.87962566  # of a standard normal that is cut at two deviations
_drawn = keras.initializers.TruncatedNormal.__call__
_are_loaded = contextvars.ContextVar("_are_loaded", default=False)


def bert_initializer() -> keras.initializers.Initializer:
    """BERT's initializer of kernels and embeddings: a normal cut at two deviations of 0.02."""
    return keras.initializers.TruncatedNormal(stddev=0.02)


def head_initializer() -> keras.initializers.Initializer:
    """An initializer of outputs: the same cut, with the full deviation of 0.02.

    `bert_initializer`'s values deviate by 0.0176, as the cut leaves them. An output of small
    weights stays longer on the plateau on which all inputs get the same answer.
    """
    return keras.initializers.TruncatedNormal(stddev=0.02 / _DEVIATION_AFTER_CUT)


@contextlib.contextmanager
def weights_are_loaded(are_loaded: bool = True) -> Iterator[None]:
    """For building a model all of whose weights are loaded before anything reads them.

    BERT's first values, ours and KerasHub's, are zeros meanwhile, which cost nothing. (KerasHub has
    no way to say so: its `from_preset` draws what it then overwrites.) Each initializer takes its
    seed when it is made, so what others draw stays the same.

    Args:
        are_loaded: whether they are; if not, they are drawn as ever.
    """
    token = _are_loaded.set(are_loaded)
    try:
        yield
    finally:
        _are_loaded.reset(token)


def _zeros_or_drawn(
    initializer: keras.initializers.TruncatedNormal,
    shape: tuple[int, ...],
    dtype: str | None = None,
) -> keras.KerasTensor:
    """First values of a variable; zeros inside `weights_are_loaded`."""
    if _are_loaded.get():
        return _zeros(shape, keras.backend.standardize_dtype(dtype))
    return _drawn(initializer, shape, dtype)


keras.initializers.TruncatedNormal.__call__ = _zeros_or_drawn


def _zeros(shape: tuple[int, ...], dtype: str) -> keras.KerasTensor:
    """Zeros; on TensorFlow of memory that is taken when it is written, and these never are."""
    is_own = keras.backend.backend() == "tensorflow" and tf.executing_eagerly()
    if not is_own or dtype not in ("float32", "float16"):  # those of NumPy
        return keras.ops.zeros(shape, dtype)
    size = math.prod(shape) * np.dtype(dtype).itemsize
    # Pages of their own: what `np.zeros` gets may have been used before, and is written then.
    memory = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    values = np.frombuffer(memory, dtype, math.prod(shape)).reshape(shape)
    return tf.experimental.dlpack.from_dlpack(values.__dlpack__())
