"""Dynamic masking in a tf.data graph: selects tokens, replaces them, and lists the targets.

`MaskingOptions` and `Scheme`, which configurations use, do not import TensorFlow. The other names
are imported on first use.
"""

from typing import TYPE_CHECKING

from spanbert_tf.lazy import lazy_names
from spanbert_tf.masking.options import MaskingOptions
from spanbert_tf.masking.schemes import Scheme

if TYPE_CHECKING:
    from spanbert_tf.masking.masker import SpanMasker
    from spanbert_tf.masking.spans import AnnotatedSpans, Blocks

__all__ = ["AnnotatedSpans", "Blocks", "MaskingOptions", "Scheme", "SpanMasker"]

_PLACES = {
    "AnnotatedSpans": "spanbert_tf.masking.spans:AnnotatedSpans",
    "Blocks": "spanbert_tf.masking.spans:Blocks",
    "SpanMasker": "spanbert_tf.masking.masker:SpanMasker",
}
__getattr__, __dir__ = lazy_names(globals(), _PLACES)
