"""Layers that KerasHub does not have."""

from spanbert_tf.layers.masked_lm_head import bert_initializer, masked_lm_head
from spanbert_tf.layers.segment_aware_embedding import SegmentAwareEmbedding
from spanbert_tf.layers.span_boundary_head import SpanBoundaryHead
from spanbert_tf.layers.tied_embedding import TiedEmbedding
from spanbert_tf.layers.transformer_encoder import TransformerEncoder

__all__ = [
    "SegmentAwareEmbedding",
    "SpanBoundaryHead",
    "TiedEmbedding",
    "TransformerEncoder",
    "bert_initializer",
    "masked_lm_head",
]
