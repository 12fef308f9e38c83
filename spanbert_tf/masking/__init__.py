"""Dynamic masking inside the tf.data graph: which tokens, what stands in for them, the targets.

`MaskingOptions` and `Scheme` are at hand without TensorFlow, for configurations; the rest is
imported when used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from spanbert_tf.masking.options import MaskingOptions
from spanbert_tf.masking.schemes import Scheme

if TYPE_CHECKING:
    from spanbert_tf.masking.candidates import AnnotatedSpans, Blocks
    from spanbert_tf.masking.span_masking import SpanMasker

__all__ = ["AnnotatedSpans", "Blocks", "MaskingOptions", "Scheme", "SpanMasker"]

_MODULES = {"AnnotatedSpans": "candidates", "Blocks": "candidates", "SpanMasker": "span_masking"}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
