"""From the encoder's outputs to scored antecedents (SpanBERT, section 5.1.2).

B documents, T positions, K spans, C antecedents of each.
"""

import keras
import numpy as np
from keras import ops

from spanbert_tf.layers.antecedent_scorer import AntecedentScorer, Spans
from spanbert_tf.layers.chunks import gather_rows
from spanbert_tf.layers.mention_scorer import NO_SCORE, MentionScorer
from spanbert_tf.layers.span_selection import select_spans


@keras.saving.register_keras_serializable(package="spanbert_tf")
class CoreferenceHead(keras.layers.Layer):
    """Scores all spans, keeps the best that do not cross, and scores their antecedents.

    Args:
        hidden_dim: int. Width of the encoder.
        max_segments: int. Rows of the embeddings of the distance in segments.
        word_boundaries: bool. Whether spans begin and end where words do.
        depth: int. Passes of the antecedents' scores.
        max_span_width: int. Positions of a span at most.
        top_span_ratio: float. Spans that are kept, for each position.
        max_top_spans: int. Spans that are kept at most.
        max_antecedents: int. C at most.
        feature_dim: int. Width of embeddings.
        ffnn_dim: int. Hidden width of the scoring networks.
        dropout: float.
    """

    def __init__(
        self,
        hidden_dim: int,
        max_segments: int = 3,
        word_boundaries: bool = False,
        depth: int = 2,
        max_span_width: int = 30,
        top_span_ratio: float = 0.4,
        max_top_spans: int = 3900,
        max_antecedents: int = 50,
        feature_dim: int = 20,
        ffnn_dim: int = 3000,
        dropout: float = 0.3,
        **kwargs,
    ) -> None:
        super().__init__(**kwargs)
        self._config = {
            "hidden_dim": hidden_dim,
            "max_segments": max_segments,
            "word_boundaries": word_boundaries,
            "depth": depth,
            "max_span_width": max_span_width,
            "top_span_ratio": top_span_ratio,
            "max_top_spans": max_top_spans,
            "max_antecedents": max_antecedents,
            "feature_dim": feature_dim,
            "ffnn_dim": ffnn_dim,
            "dropout": dropout,
        }
        self.max_span_width = max_span_width
        self.top_span_ratio = top_span_ratio
        self.max_top_spans = max_top_spans
        self.mention_scorer = MentionScorer(
            hidden_dim,
            max_span_width=max_span_width,
            feature_dim=feature_dim,
            ffnn_dim=ffnn_dim,
            dropout=dropout,
            word_boundaries=word_boundaries,
            dtype=self.dtype_policy,
            name="mention_scorer",
        )
        self.antecedent_scorer = AntecedentScorer(
            self.mention_scorer.span_dim,
            max_segments=max_segments,
            max_antecedents=max_antecedents,
            depth=depth,
            feature_dim=feature_dim,
            ffnn_dim=ffnn_dim,
            dropout=dropout,
            dtype=self.dtype_policy,
            name="antecedent_scorer",
        )
        self.built = True

    def call(
        self, features: dict[str, keras.KerasTensor], training: bool | None = None
    ) -> dict[str, keras.KerasTensor]:
        """Scored antecedents of the spans that are kept.

        Args:
            features: `states`, float [B, positions, H], the encoder's outputs of all segments one
                after the other with padding; `piece_positions`, where in them each position of the
                document is, `sentence_indices` (negative for padding), `begins_word`, `ends_word`,
                `speaker_ids`, `segment_indices`, int32 [B, T]; `genre_ids`, int32 [B].
            training: whether dropout drops.

        Returns:
            `span_starts`, `span_ends`, int32 [B, K], positions, in order, the ends inclusive;
            `is_span`, int32 [B, K], 0 where there are fewer; `mention_scores`, float32 [B, K];
            `antecedents`, int32 [B, K, C], numbers of spans; `scores`, float32 [B, K, 1 + C], of no
            antecedent (0) and of each.
        """
        states = gather_rows(features["states"], features["piece_positions"])  # [B, T, H]
        sentences = features["sentence_indices"]
        all_scores = self.mention_scorer(
            states, sentences, features["begins_word"], features["ends_word"], training=training
        )  # [B, T, W]
        batch, length = ops.shape(sentences)[0], ops.shape(sentences)[1]
        flat = ops.reshape(all_scores, (batch, length * self.max_span_width))
        num_positions = ops.sum(ops.cast(sentences >= 0, "int32"), axis=1)  # [B]
        candidates, is_span = select_spans(
            ops.stop_gradient(flat),
            self._span_limit(num_positions),
            max_span_width=self.max_span_width,
            max_spans=self._num_slots(length),
            no_score=NO_SCORE,
        )
        starts = candidates // self.max_span_width
        ends = starts + candidates % self.max_span_width
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

        JAX cannot find them by tracing `call` with lengths that are no numbers.
        """
        batch = features["states"].shape[0]
        of_spans, of_pairs = (batch, None), (batch, None, None)
        return {
            "span_starts": keras.KerasTensor(of_spans, "int32"),
            "span_ends": keras.KerasTensor(of_spans, "int32"),
            "is_span": keras.KerasTensor(of_spans, "int32"),
            "mention_scores": keras.KerasTensor(of_spans, "float32"),
            "antecedents": keras.KerasTensor(of_pairs, "int32"),
            "scores": keras.KerasTensor(of_pairs, "float32"),
        }

    def _span_limit(self, num_positions: keras.KerasTensor) -> keras.KerasTensor:
        """How many spans of documents of so many positions are kept at most, int32."""
        share = ops.floor(ops.cast(num_positions, "float32") * self.top_span_ratio)
        return ops.minimum(ops.cast(share, "int32"), self.max_top_spans)

    def _num_slots(self, length: int | keras.KerasTensor) -> int | keras.KerasTensor:
        """K for documents of up to so many positions; at least one, that shapes are not empty."""
        if isinstance(length, int):  # rounded as in `_span_limit`
            share = int(np.float32(length) * np.float32(self.top_span_ratio))
            return max(min(share, self.max_top_spans), 1)
        return ops.maximum(self._span_limit(length), 1)

    @property
    def settings(self) -> dict[str, int | float | bool]:
        """The arguments of the constructor, without the width of the encoder."""
        return {name: value for name, value in self._config.items() if name != "hidden_dim"}

    def get_config(self) -> dict:
        return {**super().get_config(), **self._config}
