"""Lazy imports, so that a command starts as fast as what it needs allows.

A place is `"package.module:attribute"`, or the name of a module.
"""

import contextlib
import gc
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

# Optional dependencies of TensorFlow and Keras, which both work without them. A command that needs
# one, for example to draw or to score, imports it later.
UNUSED = (
    "IPython",
    "PIL",
    "cv2",
    "googleapiclient",
    "grain",
    "jax",
    "matplotlib",
    "pandas",
    "scipy",
    "sklearn",
)
_NEEDED_BY_JAX = ("jax", "scipy")


def load(place: str) -> Any:
    """Imports a place, and returns the attribute or the module.

    Raises:
        ImportError: there is no such module.
        AttributeError: the module has no such attribute.
    """
    module, _, attribute = place.partition(":")
    found = importlib.import_module(module)
    return getattr(found, attribute) if attribute else found


def lazy_names(
    package: Mapping[str, Any], places: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Makes `__getattr__` and `__dir__` for a package that offers names of its modules.

    Args:
        package: `globals()` of the package.
        places: name → place.
    """

    def get(name: str) -> Any:
        if name in places:
            return load(places[name])
        raise AttributeError(f"module {package['__name__']!r} has no attribute {name!r}")

    return get, lambda: sorted({*package, *places})


def import_tensorflow() -> None:
    """Imports TensorFlow, and Keras with it, in a third of the time, for commands."""
    with _light_import(UNUSED):
        import tensorflow  # noqa: F401


def import_keras(*, leaves_cards: bool = False) -> None:
    """Imports KerasHub and configures TensorFlow, for commands of the command line.

    Args:
        leaves_cards: whether TensorFlow must not reserve the memory of the GPUs, because another
            process needs it. With the JAX backend it never does.
    """
    on_jax = os.environ.get("KERAS_BACKEND") == "jax"
    with _light_import([name for name in UNUSED if not (on_jax and name in _NEEDED_BY_JAX)]):
        import keras_hub  # noqa: F401

        keep_arithmetic()  # as in training, so that `evaluate` gives exactly the scores of a run
        if on_jax or leaves_cards:  # otherwise TensorFlow reserves the whole memory of each GPU
            import tensorflow as tf

            tf.config.set_visible_devices([], "GPU")


def keep_arithmetic() -> None:
    """Turns off two of TensorFlow's graph optimizers.

    The arithmetic optimizer merges chains of additions in an order that depends on names of nodes.
    The layout optimizer only helps images; with 24 layers and micro-batches it takes 40 seconds.
    """
    import tensorflow as tf

    options = {"arithmetic_optimization": False, "layout_optimizer": False}
    tf.config.optimizer.set_experimental_options(options)


def import_figure() -> type:
    """Imports matplotlib and returns its class `Figure`.

    When imported, matplotlib reads a `matplotlibrc` of the working directory, which may belong to
    another user: it may name a module of that directory as the backend, or be a pipe. No
    environment variable prevents this, so matplotlib is imported from another directory. The user's
    own settings still apply.
    """
    if "matplotlib" not in sys.modules:
        with contextlib.chdir("/"):
            import matplotlib  # noqa: F401
    from matplotlib.figure import Figure

    return Figure


@contextlib.contextmanager
def _light_import(unused: Sequence[str]) -> Iterator[None]:
    """Hides packages and collects no garbage while the context lasts.

    What is imported is excluded from garbage collection afterwards, too, because it lives until the
    process ends and each collection would visit it. The one at the end of a process takes 0.8
    seconds.
    """
    is_collecting = gc.isenabled()
    gc.disable()
    try:
        with _hidden(unused):
            yield
            gc.freeze()
    finally:
        if is_collecting:
            gc.enable()


@contextlib.contextmanager
def _hidden(names: Sequence[str]) -> Iterator[None]:
    """Makes packages look as if they were not installed, while the context lasts."""
    hidden = [name for name in names if name not in sys.modules]
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]  # imports of it raise ImportError
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
