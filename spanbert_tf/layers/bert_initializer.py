"""The first values of kernels and embeddings, drawn only where they are used."""

import contextlib
import contextvars
from collections.abc import Iterator

import keras

_are_loaded = contextvars.ContextVar("_are_loaded", default=False)


@keras.saving.register_keras_serializable(package="spanbert_tf")
class BertInitializer(keras.initializers.TruncatedNormal):
    """A truncated normal distribution; inside `weights_are_loaded` zeros, which cost nothing.

    Each initializer takes its seed when it is made, so what others draw stays the same.
    """

    def __call__(self, shape: tuple[int, ...], dtype: str | None = None) -> keras.KerasTensor:
        """First values of a variable."""
        if _are_loaded.get():
            return keras.ops.zeros(shape, dtype)
        return super().__call__(shape, dtype)


def bert_initializer() -> BertInitializer:
    """BERT's initializer of kernels and embeddings: a normal cut at two deviations of 0.02."""
    return BertInitializer(stddev=0.02)


@contextlib.contextmanager
def weights_are_loaded(are_loaded: bool = True) -> Iterator[None]:
    """For building a model all of whose weights are loaded before anything reads them.

    Args:
        are_loaded: whether they are; if not, they are drawn as ever.
    """
    token = _are_loaded.set(are_loaded)
    try:
        yield
    finally:
        _are_loaded.reset(token)
