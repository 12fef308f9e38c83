"""Initializes kernels and embeddings, but draws no values that will be overwritten."""

import contextlib
import contextvars
from collections.abc import Iterator

import keras

from spanbert_tf.layers import operations

# Standard deviation of a standard normal distribution that is truncated at 2.
_TRUNCATED_DEVIATION = 0.87962566
_are_loaded = contextvars.ContextVar("_are_loaded", default=False)


@keras.saving.register_keras_serializable(package="spanbert_tf")
class BertInitializer(keras.initializers.TruncatedNormal):
    """A truncated normal initializer that returns zeros inside of `weights_are_loaded`.

    Drawing the weights of a base model takes seconds. An initializer gets its seed from the
    constructor, so skipping one does not change the values of others.
    """

    def __call__(self, shape: tuple[int, ...], dtype: str | None = None) -> keras.KerasTensor:
        if _are_loaded.get():
            return operations.placeholder_zeros(shape, keras.backend.standardize_dtype(dtype))
        return super().__call__(shape, dtype)


def bert_initializer() -> BertInitializer:
    """Returns BERT's initializer: a normal with deviation 0.02, truncated at two deviations."""
    return BertInitializer(stddev=0.02)


def head_initializer() -> BertInitializer:
    """Returns an initializer of output layers, whose truncated values have a deviation of 0.02.

    The values of `bert_initializer` have a deviation of 0.0176 after truncation. With smaller
    weights, training stays longer on the plateau on which all inputs get the same answer.
    """
    return BertInitializer(stddev=0.02 / _TRUNCATED_DEVIATION)


@contextlib.contextmanager
def weights_are_loaded(are_loaded: bool = True) -> Iterator[None]:
    """Opens a context to build models whose weights are all loaded before anything reads them.

    Inside of it, `BertInitializer` returns zeros, which cost nothing.

    Args:
        are_loaded: whether the weights will be loaded; `False` makes the context do nothing.
    """
    token = _are_loaded.set(are_loaded)
    try:
        yield
    finally:
        _are_loaded.reset(token)
