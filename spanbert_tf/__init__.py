"""SpanBERT and SegaBERT in TensorFlow and Keras.

Importing this package is cheap: its parts are loaded when they are first used.
"""

import importlib
from types import ModuleType

__version__ = "0.1.0"

_SUBMODULES = (
    "config",
    "conversion",
    "data",
    "errors",
    "layers",
    "masking",
    "models",
    "presets",
    "question_answering",
    "serving",
    "training",
)


def __getattr__(name: str) -> ModuleType:
    if name in _SUBMODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_SUBMODULES])
