"""Models in KerasHub's conventions; importing this package registers them."""

from spanbert_tf.models.span_bert_backbone import SpanBertBackbone
from spanbert_tf.models.span_bert_pretrainer import SpanBertPretrainer

__all__ = ["SpanBertBackbone", "SpanBertPretrainer"]
