"""Dynamic masking inside the tf.data graph: which tokens, what stands in for them, the targets."""

from spanbert_tf.masking.candidates import AnnotatedSpans, Blocks
from spanbert_tf.masking.options import MaskingOptions
from spanbert_tf.masking.span_masking import SpanMasker

__all__ = ["AnnotatedSpans", "Blocks", "MaskingOptions", "SpanMasker"]
