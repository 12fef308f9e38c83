"""Layers that KerasHub does not have."""

from spanbert_tf.layers.antecedent_scorer import AntecedentScorer
from spanbert_tf.layers.bert_initializer import (
    BertInitializer,
    bert_initializer,
    head_initializer,
    weights_are_loaded,
)
from spanbert_tf.layers.coreference_head import CoreferenceHead
from spanbert_tf.layers.low_rank_adapter import LowRankAdapter
from spanbert_tf.layers.masked_lm_head import masked_lm_head
from spanbert_tf.layers.mention_scorer import MentionScorer
from spanbert_tf.layers.scoring_network import ScoringNetwork
from spanbert_tf.layers.segment_aware_embedding import SegmentAwareEmbedding
from spanbert_tf.layers.span_boundary_head import SpanBoundaryHead
from spanbert_tf.layers.tied_embedding import TiedEmbedding
from spanbert_tf.layers.transformer_encoder import TransformerEncoder

__all__ = [
    "AntecedentScorer",
    "BertInitializer",
    "CoreferenceHead",
    "LowRankAdapter",
    "MentionScorer",
    "ScoringNetwork",
    "SegmentAwareEmbedding",
    "SpanBoundaryHead",
    "TiedEmbedding",
    "TransformerEncoder",
    "bert_initializer",
    "head_initializer",
    "masked_lm_head",
    "weights_are_loaded",
]
