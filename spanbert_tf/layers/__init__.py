"""Layers that KerasHub does not have."""

from spanbert_tf.layers.masked_lm_head import bert_initializer, masked_lm_head
from spanbert_tf.layers.segment_aware_embedding import SegmentAwareEmbedding
from spanbert_tf.layers.span_boundary_head import SpanBoundaryHead
from spanbert_tf.layers.tied_embedding import TiedEmbedding

__all__ = [
    "SegmentAwareEmbedding",
    "SpanBoundaryHead",
    "TiedEmbedding",
    "bert_initializer",
    "masked_lm_head",
]
