"""The first values of kernels and embeddings, which are drawn only where they are used."""

import contextlib
import contextvars
from collections.abc import Iterator

import keras

from spanbert_tf.layers import operations

_DEVIATION_AFTER_CUT = 0.87962566  # of a standard normal that is cut at two deviations
_are_loaded = contextvars.ContextVar("_are_loaded", default=False)


@keras.saving.register_keras_serializable(package="spanbert_tf")
class BertInitializer(keras.initializers.TruncatedNormal):
    """A truncated normal distribution that is not drawn where weights are loaded afterwards.

    Drawing the weights of a base model takes seconds. Each initializer takes its seed when it is
    made, so that inside and outside of `weights_are_loaded` all others draw the same.
    """

    def __call__(self, shape: tuple[int, ...], dtype: str | None = None) -> keras.KerasTensor:
        if _are_loaded.get():
            return operations.placeholder_zeros(shape, keras.backend.standardize_dtype(dtype))
        return super().__call__(shape, dtype)


def bert_initializer() -> BertInitializer:
    """BERT's initializer of kernels and embeddings: a normal cut at two deviations of 0.02."""
    return BertInitializer(stddev=0.02)


def head_initializer() -> BertInitializer:
    """An initializer of outputs: the same cut, with the full deviation of 0.02.

    `bert_initializer`'s values deviate by 0.0176, as the cut leaves them. An output of small
    weights stays longer on the plateau on which all inputs get the same answer.
    """
    return BertInitializer(stddev=0.02 / _DEVIATION_AFTER_CUT)


@contextlib.contextmanager
def weights_are_loaded(are_loaded: bool = True) -> Iterator[None]:
    """A context for building models whose weights are all loaded before anything reads them.

    `BertInitializer` returns zeros there, which cost nothing.

    Args:
        are_loaded: whether they are; if not, first values are drawn as outside of the context.
    """
    token = _are_loaded.set(are_loaded)
    try:
        yield
    finally:
        _are_loaded.reset(token)
