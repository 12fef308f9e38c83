"""From the encoder's outputs to scored antecedents (SpanBERT, section 5.1.2).

B documents, T positions, K spans, C antecedents of each. In `select_spans` C candidates, and Q
candidates of a block.
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
        max_segments: int. Rows of the embeddings of the distance in segments.
        settings: dict. Values of `ResolverConfig`, whose defaults stand for those that are missing.
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
        """Scored antecedents of the selected spans.

        Args:
            features: `states`, float [B, positions, H], the encoder's outputs of all segments one
                after the other with padding; `piece_positions`, the place of each position of the
                document in them, `sentence_indices` (negative for padding), `begins_word`,
                `ends_word`, `speaker_ids`, `segment_indices`, int32 [B, T]; `genre_ids`, int32 [B].
            training: whether to apply dropout.

        Returns:
            `span_starts`, `span_ends`, int32 [B, K], positions, in order, the ends inclusive;
            `is_span`, int32 [B, K], 0 where there are fewer; `mention_scores`, float32 [B, K];
            `antecedents`, int32 [B, K, C], indices of spans; `scores`, float32 [B, K, 1 + C], of no
            antecedent (0) and of each antecedent.
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
        """Shapes and types of what `call` returns; K and C depend on the document's length.

        JAX cannot infer them by tracing `call` with unknown lengths.
        """
        batch = features["states"].shape[0]
        of_spans = (batch, None)
        of_pairs = (batch, None, None)
        return {
            "span_starts": keras.KerasTensor(of_spans, "int32"),
            "span_ends": keras.KerasTensor(of_spans, "int32"),
            "is_span": keras.KerasTensor(of_spans, "int32"),
            "mention_scores": keras.KerasTensor(of_spans, "float32"),
            "antecedents": keras.KerasTensor(of_pairs, "int32"),
            "scores": keras.KerasTensor(of_pairs, "float32"),
        }

    def _span_limit(self, num_positions: keras.KerasTensor) -> keras.KerasTensor:
        """Largest number of selected spans of documents with so many positions, int32."""
        share = ops.floor(ops.cast(num_positions, "float32") * self.settings.top_span_ratio)
        return ops.minimum(ops.cast(share, "int32"), self.settings.max_top_spans)

    def _num_slots(self, length: int | keras.KerasTensor) -> int | keras.KerasTensor:
        """K for documents of up to so many positions; at least 1, so that no shape is empty."""
        if isinstance(length, int):  # rounded as in `_span_limit`
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
    """Selects the best candidates, skipping those that cross a better one (Lee et al., 2018).

    Two spans cross if they overlap and neither contains the other. The result is that of taking one
    candidate after the other, the best first, equal ones by (start, end). It is computed in blocks:
    candidates that cross a span of an earlier block are rejected. Inside a block, a candidate is
    rejected if it crosses an accepted better one, and accepted if it crosses no undecided better
    one, until all are decided, mostly in four rounds.

    Args:
        scores: float32 [B, C]; candidate c begins at position c // max_span_width, and ends
            c % max_span_width later.
        limits: int32 [B], largest number of spans to select; at most `max_spans`.
        max_span_width: number of widths of spans.
        max_spans: K.
        no_score: scores up to this one mark what is not a candidate.

    Returns:
        The selected candidates, int32 [B, K], ascending, that is by (start, end); and whether each
        is selected, bool [B, K]: where fewer are, the last are padding, with index 0.
    """
    batch, num_candidates = ops.shape(scores)[:2]
    num_blocks = -(-num_candidates // _BLOCK)
    order = ops.cast(ops.argsort(-scores, axis=-1), "int32")  # stable; [B, C]
    sorted_scores = ops.take_along_axis(scores, order, axis=1)
    padding = [[0, 0], [0, num_blocks * _BLOCK - num_candidates]]
    order = ops.pad(order, padding)
    sorted_scores = ops.pad(sorted_scores, padding, constant_values=no_score)
    limits = limits[:, None]  # [B, 1]
    slots = ops.arange(max_spans, dtype="int32")[None]  # [1, K]

    def borders(candidates: keras.KerasTensor) -> tuple[keras.KerasTensor, keras.KerasTensor]:
        starts = candidates // max_span_width
        return starts, starts + candidates % max_span_width

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
        spans = borders(candidates)
        barred = _crossing(spans, borders(chosen)) & (slots < counts)[:, None]  # [B, Q, K]
        undecided = (block_scores > no_score) & ~ops.any(barred, axis=-1)
        earlier = ops.arange(_BLOCK)[None, :] < ops.arange(_BLOCK)[:, None]
        accepted = _accept(_crossing(spans, spans) & earlier[None], undecided)  # [B, Q]
        ranks = counts + ops.cumsum(ops.cast(accepted, "int32"), axis=1) - 1
        accepted = accepted & (ranks < limits)
        fits = (ranks[:, :, None] == slots[:, None]) & accepted[:, :, None]  # [B, Q, K]
        added = ops.sum(ops.where(fits, candidates[:, :, None], 0), axis=1)  # at most one a slot
        num_accepted = ops.sum(ops.cast(accepted, "int32"), axis=1, keepdims=True)
        return index + 1, chosen + ops.cast(added, "int32"), counts + num_accepted

    chosen = ops.zeros((batch, max_spans), "int32")
    counts = ops.zeros((batch, 1), "int32")
    _, chosen, counts = ops.while_loop(
        is_unfinished, choose_of_block, (ops.convert_to_tensor(0, "int32"), chosen, counts)
    )
    is_chosen = slots < counts  # [B, K]
    ascending = ops.sort(ops.where(is_chosen, chosen, num_candidates), axis=-1)
    return ops.where(is_chosen, ascending, 0), is_chosen


def _crossing(
    spans: tuple[keras.KerasTensor, keras.KerasTensor],
    others: tuple[keras.KerasTensor, keras.KerasTensor],
) -> keras.KerasTensor:
    """Whether spans [B, M] cross others [B, N]; bool [B, M, N]."""
    start = ops.expand_dims(spans[0], 2)  # [B, M, 1]
    end = ops.expand_dims(spans[1], 2)
    other_start = ops.expand_dims(others[0], 1)  # [B, 1, N]
    other_end = ops.expand_dims(others[1], 1)
    begins_inside = (start < other_start) & (other_start <= end) & (end < other_end)
    ends_inside = (other_start < start) & (start <= other_end) & (other_end < end)
    return begins_inside | ends_inside


def _accept(crosses: keras.KerasTensor, undecided: keras.KerasTensor) -> keras.KerasTensor:
    """The candidates of a block that cross no accepted better one, bool [B, Q].

    Args:
        crosses: bool [B, Q, Q], whether a candidate crosses a better one.
        undecided: bool [B, Q], candidates that may be accepted.
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
