"""What is imported, and when: a command starts as fast as what it needs.

A place is `"package.module:attribute"`, or a module alone.
"""

import contextlib
import gc
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

# TensorFlow and Keras try to import these and go on without them: for models of JAX, data sets of
# Grain's, data frames, estimators, pictures, notebooks, clusters of Google's. What a command draws
# or scores with, it imports itself, later.
UNUSED = (
    "IPython",
    "PIL",
    "cv2",
    "googleapiclient",
    "grain",
    "jax",
    "matplotlib",
    "pandas",
    "sklearn",
)


def load(place: str) -> Any:
    """The module, or its attribute, imported now.

    Raises:
        ImportError: there is no such module.
        AttributeError: it has no such attribute.
    """
    module, _, attribute = place.partition(":")
    found = importlib.import_module(module)
    return getattr(found, attribute) if attribute else found


def lazy_names(
    package: Mapping[str, Any], places: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package that offers names of its modules.

    Args:
        package: `globals()` of the package.
        places: name → place.
    """

    def get(name: str) -> Any:
        if name in places:
            return load(places[name])
        raise AttributeError(f"module {package['__name__']!r} has no attribute {name!r}")

    return get, lambda: sorted({*package, *places})


def import_keras(*, leaves_cards: bool = False) -> None:
    """Imports what all commands with a model need; for the command line, not for its users' code.

    What is imported stays until the end, so the garbage collector, which would go through it again
    and again, never looks at it.

    Args:
        leaves_cards: whether another process needs the memory of the GPUs; with JAX as the backend
            TensorFlow always leaves them alone.
    """
    on_jax = os.environ.get("KERAS_BACKEND") == "jax"
    is_collecting = gc.isenabled()
    gc.disable()
    try:
        with _hidden([name for name in UNUSED if not (on_jax and name == "jax")]):
            import keras_hub  # noqa: F401
        keep_arithmetic()  # as a run has it, whose scores are `evaluate`'s to the bit
        if on_jax or leaves_cards:  # TensorFlow would take, and keep, the whole memory of a GPU
            import tensorflow as tf

            tf.config.set_visible_devices([], "GPU")
        gc.freeze()
    finally:
        if is_collecting:
            gc.enable()


def keep_arithmetic() -> None:
    """From now on TensorFlow leaves additions as they are; it makes one, by name, of any chain.

    Nor does it look for images whose axes it could reorder: there are none, and in the graph of 24
    layers with micro-batches that took 40 seconds.
    """
    import tensorflow as tf

    options = {"arithmetic_optimization": False, "layout_optimizer": False}
    tf.config.optimizer.set_experimental_options(options)


def import_figure() -> type:
    """Matplotlib's `Figure`; the user's settings count, those of the working directory do not.

    matplotlib reads a `matplotlibrc` of the working directory as it is imported, whoever made it:
    one may name a module of that directory as the backend, or be a pipe. No variable of the
    environment comes before it, so it is imported in another directory.
    """
    if "matplotlib" not in sys.modules:
        with contextlib.chdir("/"):
            import matplotlib  # noqa: F401
    from matplotlib.figure import Figure

    return Figure


@contextlib.contextmanager
def _hidden(names: Sequence[str]) -> Iterator[None]:
    """Packages are, for imports, as if they were not installed."""
    hidden = [name for name in names if name not in sys.modules]
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]  # imports of it raise ImportError
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
