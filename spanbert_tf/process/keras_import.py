"""Imports TensorFlow and Keras without what only others need: half of the time that they take."""

import contextlib
import gc
import sys
from collections.abc import Iterator

# TensorFlow and Keras try to import these and go on without them: for models of JAX, data frames,
# estimators, pictures, notebooks, clusters of Google's. What a command draws or scores with, it
# imports itself, later.
UNUSED = ("IPython", "PIL", "cv2", "googleapiclient", "jax", "matplotlib", "pandas", "sklearn")


def import_keras() -> None:
    """Imports what all commands with a model need; for the command line, not for its users' code.

    What is imported stays until the end, so the garbage collector, which would go through it again
    and again, never looks at it.
    """
    is_collecting = gc.isenabled()
    gc.disable()
    try:
        with _hidden(UNUSED):
            import keras_hub  # noqa: F401
        gc.freeze()
    finally:
        if is_collecting:
            gc.enable()


@contextlib.contextmanager
def _hidden(names: tuple[str, ...]) -> Iterator[None]:
    """Packages are, for imports, as if they were not installed."""
    hidden = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # `None`: the import system raises ImportError
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
