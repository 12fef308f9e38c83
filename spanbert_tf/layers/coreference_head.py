"""Computes scored antecedents from the outputs of the encoder (SpanBERT, section 5.1.2).

Shapes: B documents, T positions of a document, H width of the encoder, W widths of spans, P
selected spans, A antecedents of a span, Q candidates of a block.
"""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from spanbert_tf.config.coreference import ResolverConfig
from spanbert_tf.layers.antecedent_scorer import AntecedentScorer, Spans
from spanbert_tf.layers.mention_scorer import NO_SCORE, MentionScorer
from spanbert_tf.layers.scoring_network import gather_rows

_BLOCK = 512


@keras.saving.register_keras_serializable(package="spanbert_tf")
class CoreferenceHead(keras.layers.Layer):
    """Scores all spans, selects the best that do not cross, and scores their antecedents.

    Args:
        hidden_dim: int. Width of the encoder.
        max_segments: int. Number of distances in segments that have an embedding.
        settings: dict. Arguments of `ResolverConfig`.
    """

    def __init__(
        self,
        hidden_dim: int,
        max_segments: int = 3,
        settings: Mapping[str, Any] | None = None,
        **kwargs,
    ) -> None:
        super().__init__(**kwargs)
        self.hidden_dim = hidden_dim
        self.max_segments = max_segments
        self.settings = ResolverConfig(**settings or {})
        self.mention_scorer = MentionScorer(
            hidden_dim,
            max_span_width=self.settings.max_span_width,
            feature_dim=self.settings.feature_dim,
            ffnn_dim=self.settings.ffnn_dim,
            dropout=self.settings.dropout,
            word_boundaries=self.settings.word_boundaries,
            dtype=self.dtype_policy,
            name="mention_scorer",
        )
        self.antecedent_scorer = AntecedentScorer(
            self.mention_scorer.span_dim,
            max_segments=max_segments,
            max_antecedents=self.settings.max_antecedents,
            depth=self.settings.depth,
            feature_dim=self.settings.feature_dim,
            ffnn_dim=self.settings.ffnn_dim,
            dropout=self.settings.dropout,
            dtype=self.dtype_policy,
            name="antecedent_scorer",
        )
        self.built = True

    def call(
        self, features: dict[str, keras.KerasTensor], training: bool | None = None
    ) -> dict[str, keras.KerasTensor]:
        """Selects spans, and scores their antecedents.

        Args:
            features: a dict of `states`, float [B, positions, H], the outputs of the encoder for
                all segments with their padding; of `piece_positions`, the index in `states` of each
                position of the document, `sentence_indices` (negative for padding), `begins_word`,
                `ends_word`, `speaker_ids` and `segment_indices`, int32 [B, T]; and of `genre_ids`,
                int32 [B].
            training: whether to apply dropout.

        Returns:
            A dict of `span_starts` and `span_ends`, int32 [B, P], the first and the last position
            of each span, in order; `is_span`, int32 [B, P], 0 for padding; `mention_scores`,
            float32 [B, P]; `antecedents`, int32 [B, P, A], indices of spans; and `scores`, float32
            [B, P, 1 + A], the score 0 of no antecedent, and the scores of the antecedents.
        """
        states = gather_rows(features["states"], features["piece_positions"])  # [B, T, H]
        sentences = features["sentence_indices"]
        all_scores = self.mention_scorer(
            states, sentences, features["begins_word"], features["ends_word"], training=training
        )  # [B, T, W]
        batch, length = ops.shape(sentences)[:2]
        flat = ops.reshape(all_scores, (batch, length * self.settings.max_span_width))
        num_positions = ops.sum(ops.cast(sentences >= 0, "int32"), axis=1)  # [B]
        candidates, is_span = select_spans(
            ops.stop_gradient(flat),
            self._span_limit(num_positions),
            max_span_width=self.settings.max_span_width,
            max_spans=self._num_slots(length),
            no_score=NO_SCORE,
        )
        starts = candidates // self.settings.max_span_width
        ends = starts + candidates % self.settings.max_span_width
        mention_scores = ops.where(is_span, gather_rows(flat, candidates), NO_SCORE)
        spans = Spans(
            self.mention_scorer.represent(states, starts, ends, training=training),
            mention_scores,
            is_span,
            gather_rows(features["speaker_ids"], starts),
            gather_rows(features["segment_indices"], starts),
            features["genre_ids"],
        )
        antecedents, scores = self.antecedent_scorer(spans, training=training)
        return {
            "span_starts": starts,
            "span_ends": ends,
            "is_span": ops.cast(is_span, "int32"),
            "mention_scores": mention_scores,
            "antecedents": antecedents,
            "scores": scores,
        }

    def compute_output_spec(
        self, features: dict[str, keras.KerasTensor], training: bool | None = None
    ) -> dict[str, keras.KerasTensor]:
        """Returns the shapes and dtypes of the outputs of `call`.

        P and A depend on the length of the document, so JAX cannot infer them by tracing `call`.
        """
        batch = features["states"].shape[0]
        span_shape = (batch, None)
        pair_shape = (batch, None, None)
        return {
            "span_starts": keras.KerasTensor(span_shape, "int32"),
            "span_ends": keras.KerasTensor(span_shape, "int32"),
            "is_span": keras.KerasTensor(span_shape, "int32"),
            "mention_scores": keras.KerasTensor(span_shape, "float32"),
            "antecedents": keras.KerasTensor(pair_shape, "int32"),
            "scores": keras.KerasTensor(pair_shape, "float32"),
        }

    def _span_limit(self, num_positions: keras.KerasTensor) -> keras.KerasTensor:
        """Computes the maximum number of spans of a document from its length, int32."""
        share = ops.floor(ops.cast(num_positions, "float32") * self.settings.top_span_ratio)
        return ops.minimum(ops.cast(share, "int32"), self.settings.max_top_spans)

    def _num_slots(self, length: int | keras.KerasTensor) -> int | keras.KerasTensor:
        """Computes P from the length of the longest document; at least 1, to avoid empty shapes."""
        if isinstance(length, int):
            # Rounds in float32, like `_span_limit`.
            share = int(np.float32(length) * np.float32(self.settings.top_span_ratio))
            return max(min(share, self.settings.max_top_spans), 1)
        return ops.maximum(self._span_limit(length), 1)

    def get_config(self) -> dict:
        return {
            **super().get_config(),
            "hidden_dim": self.hidden_dim,
            "max_segments": self.max_segments,
            "settings": self.settings.model_dump(),
        }


def select_spans(
    scores: keras.KerasTensor,
    limits: keras.KerasTensor,
    *,
    max_span_width: int,
    max_spans: int | keras.KerasTensor,
    no_score: float,
) -> tuple[keras.KerasTensor, keras.KerasTensor]:
    """Selects the best candidates, except those that cross a better one (Lee et al., 2018).

    Two spans cross if they overlap and neither contains the other. The result is that of accepting
    one candidate after the other, from the best to the worst, and equal ones by (start, end). It is
    computed in blocks of candidates. Candidates that cross a span of an earlier block are rejected.
    Inside of a block, a candidate is rejected if it crosses an accepted better one, and accepted if
    it crosses no undecided better one. This is repeated until all are decided, mostly four times.

    Args:
        scores: float32 [B, T · W]. Candidate c starts at position c // W, and ends c % W positions
            later.
        limits: maximum number of spans to select from each document, int32 [B].
        max_span_width: W.
        max_spans: P, at least the largest limit.
        no_score: scores up to this one belong to no candidate.

    Returns:
        The selected candidates, int32 [B, P], in ascending order, that is by (start, end); and
        whether each is selected, bool [B, P]. Padding comes last and has index 0.
    """
    batch, num_candidates = ops.shape(scores)[:2]
    num_blocks = -(-num_candidates // _BLOCK)
    padding = num_blocks * _BLOCK - num_candidates
    order, sorted_scores = _sort_candidates(scores, padding, no_score)
    limits = limits[:, None]  # [B, 1]
    slots = ops.arange(max_spans, dtype="int32")[None]  # [1, P]

    def is_unfinished(
        index: keras.KerasTensor, chosen: keras.KerasTensor, counts: keras.KerasTensor
    ) -> keras.KerasTensor:
        return (index < num_blocks) & ops.any(counts < limits)

    def choose_of_block(
        index: keras.KerasTensor, chosen: keras.KerasTensor, counts: keras.KerasTensor
    ) -> tuple:
        first = (0, index * _BLOCK)
        candidates = ops.slice(order, first, (batch, _BLOCK))  # [B, Q]
        block_scores = ops.slice(sorted_scores, first, (batch, _BLOCK))
        spans = _borders(candidates, max_span_width)
        chosen_spans = _borders(chosen, max_span_width)
        barred = _crossing(spans, chosen_spans) & (slots < counts)[:, None]  # [B, Q, P]
        undecided = (block_scores > no_score) & ~ops.any(barred, axis=-1)
        place = ops.arange(_BLOCK)
        is_better = place[None, :] < place[:, None]  # [Q, Q]; the best candidates come first
        accepted = _accept(_crossing(spans, spans) & is_better[None], undecided)  # [B, Q]
        ranks = counts + ops.cumsum(ops.cast(accepted, "int32"), axis=1) - 1
        accepted = accepted & (ranks < limits)
        fits = (ranks[:, :, None] == slots[:, None]) & accepted[:, :, None]  # [B, Q, P]
        # The sum has at most one candidate for each slot.
        added = ops.sum(ops.where(fits, candidates[:, :, None], 0), axis=1)  # [B, P]
        num_accepted = ops.sum(ops.cast(accepted, "int32"), axis=1, keepdims=True)
        return index + 1, chosen + ops.cast(added, "int32"), counts + num_accepted

    chosen = ops.zeros((batch, max_spans), "int32")
    counts = ops.zeros((batch, 1), "int32")
    _, chosen, counts = ops.while_loop(
        is_unfinished, choose_of_block, (ops.convert_to_tensor(0, "int32"), chosen, counts)
    )
    is_chosen = slots < counts  # [B, P]
    ascending = ops.sort(ops.where(is_chosen, chosen, num_candidates), axis=-1)
    return ops.where(is_chosen, ascending, 0), is_chosen


def _sort_candidates(
    scores: keras.KerasTensor, padding: int | keras.KerasTensor, no_score: float
) -> tuple[keras.KerasTensor, keras.KerasTensor]:
    """Sorts candidates from the best to the worst.

    Args:
        scores: float32 [B, T · W].
        padding: number of entries to append.
        no_score: score of the padding.

    Returns:
        The candidates, int32, and their scores, float32, [B, T · W + padding] each. Equal
        candidates keep their order.
    """
    order = ops.cast(ops.argsort(-scores, axis=-1), "int32")
    sorted_scores = ops.take_along_axis(scores, order, axis=1)
    pads = [[0, 0], [0, padding]]
    return ops.pad(order, pads), ops.pad(sorted_scores, pads, constant_values=no_score)


def _borders(
    candidates: keras.KerasTensor, max_span_width: int
) -> tuple[keras.KerasTensor, keras.KerasTensor]:
    """Returns the first and the last positions of candidates."""
    starts = candidates // max_span_width
    return starts, starts + candidates % max_span_width


def _crossing(
    spans: tuple[keras.KerasTensor, keras.KerasTensor],
    others: tuple[keras.KerasTensor, keras.KerasTensor],
) -> keras.KerasTensor:
    """Compares spans with others; bool [B, spans, others], whether they cross."""
    start = ops.expand_dims(spans[0], 2)  # [B, spans, 1]
    end = ops.expand_dims(spans[1], 2)
    other_start = ops.expand_dims(others[0], 1)  # [B, 1, others]
    other_end = ops.expand_dims(others[1], 1)
    begins_inside = (start < other_start) & (other_start <= end) & (end < other_end)
    ends_inside = (other_start < start) & (start <= other_end) & (other_end < end)
    return begins_inside | ends_inside


def _accept(crosses: keras.KerasTensor, undecided: keras.KerasTensor) -> keras.KerasTensor:
    """Accepts the candidates of a block that cross no accepted better one, bool [B, Q].

    Args:
        crosses: whether each candidate crosses each better one, bool [B, Q, Q].
        undecided: the candidates that may be accepted, bool [B, Q].
    """

    def decide(accepted: keras.KerasTensor, undecided: keras.KerasTensor) -> tuple:
        rejected = ops.any(crosses & accepted[:, None], axis=-1)
        undecided = undecided & ~rejected
        free = undecided & ~ops.any(crosses & undecided[:, None], axis=-1)
        return accepted | free, undecided & ~free

    accepted, _ = ops.while_loop(
        lambda accepted, undecided: ops.any(undecided),
        decide,
        (ops.zeros_like(undecided), undecided),
    )
    return accepted
