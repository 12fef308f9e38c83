"""Scores every span of a document as a mention (SpanBERT, section 5.1.2; Lee et al., 2017).

B documents, T positions, H width of the encoder, W widths of spans, F hidden width, K spans, D
width of a span's vector, Q positions of a chunk.
"""

import keras
from keras import ops

from spanbert_tf.layers.bert_initializer import bert_initializer
from spanbert_tf.layers.scoring_network import (
    ScoringNetwork,
    gather_rows,
    map_chunks,
    pad_positions,
)

NO_SCORE = -1e9  # in place of minus infinity, whose product with 0 is NaN
_CHUNK = 256


@keras.saving.register_keras_serializable(package="spanbert_tf")
class MentionScorer(keras.layers.Layer):
    """Mention scores of all spans up to a width, computed without a vector for each span.

    A span's vector is `[first; last; width embedding; head]`, where the head is the mean of its
    positions, weighted by a learned attention. Each position is projected to the hidden layer once
    as a first position, once as a last one and once as a part of a head; a span's hidden layer is a
    sum of these. A head is updated for the next width by `mean + share · (next - mean)`, which is
    exactly softmax attention.

    Args:
        hidden_dim: int. H.
        max_span_width: int. W.
        feature_dim: int. Width of the embeddings of widths.
        ffnn_dim: int. F.
        dropout: float.
        word_boundaries: bool. Whether spans begin and end where words do.
    """

    def __init__(
        self,
        hidden_dim: int,
        max_span_width: int = 30,
        feature_dim: int = 20,
        ffnn_dim: int = 3000,
        dropout: float = 0.3,
        word_boundaries: bool = False,
        **kwargs,
    ) -> None:
        super().__init__(**kwargs)
        self.hidden_dim = hidden_dim
        self.max_span_width = max_span_width
        self.feature_dim = feature_dim
        self.ffnn_dim = ffnn_dim
        self.dropout_rate = dropout
        self.word_boundaries = word_boundaries

        def table(name: str) -> keras.Variable:
            shape = (max_span_width, feature_dim)
            return self.add_weight(shape=shape, initializer=bert_initializer(), name=name)

        def network(input_dim: int, name: str) -> ScoringNetwork:
            return ScoringNetwork(input_dim, ffnn_dim, dropout, dtype=self.dtype_policy, name=name)

        self.width_embeddings = table("width_embeddings")
        self.width_prior_embeddings = table("width_prior_embeddings")
        self.head_attention = keras.layers.Dense(
            1, kernel_initializer=bert_initializer(), dtype=self.dtype_policy, name="head_attention"
        )
        self.head_attention.build((None, None, hidden_dim))
        self.mention_network = network(self.span_dim, "mention_scores")
        self.width_network = network(feature_dim, "width_scores")
        self.dropout = keras.layers.Dropout(dropout, dtype=self.dtype_policy, name="dropout")
        self.built = True

    def build(self, states_shape: tuple, *others: tuple, **named: tuple) -> None:
        """Does nothing: the constructor builds everything."""

    @property
    def span_dim(self) -> int:
        """D, the width of a span's vector."""
        return 3 * self.hidden_dim + self.feature_dim

    def call(
        self,
        states: keras.KerasTensor,
        sentence_indices: keras.KerasTensor,
        begins_word: keras.KerasTensor,
        ends_word: keras.KerasTensor,
        training: bool | None = None,
    ) -> keras.KerasTensor:
        """The scores of all spans.

        Args:
            states: float [B, T, H], of the encoder.
            sentence_indices: int [B, T]; a span lies in one sentence. Negative for padding.
            begins_word: int [B, T].
            ends_word: int [B, T].
            training: whether to apply dropout.

        Returns:
            float32 [B, T, W], the span from position t to t + w; `NO_SCORE` where there is no span.
        """
        sentences = sentence_indices + 1  # 0 is padding, also that of the chunks
        inputs = (states, self._attention(states), sentences, begins_word, ends_word)
        of_widths = self.width_network(
            ops.cast(self.width_prior_embeddings, self.compute_dtype), training=training
        )  # [W]
        if training:  # dropout cannot be in a loop, and a step keeps all results anyway
            padded = [pad_positions(values, self.max_span_width - 1) for values in inputs]
            return self._score_chunk(*padded, of_widths=of_widths, training=True)
        (scores,) = map_chunks(
            lambda *chunk: (self._score_chunk(*chunk, of_widths=of_widths),),
            inputs,
            [self.max_span_width],
            _CHUNK,
            look_ahead=self.max_span_width - 1,
        )
        return scores

    def represent(
        self,
        states: keras.KerasTensor,
        starts: keras.KerasTensor,
        ends: keras.KerasTensor,
        training: bool | None = None,
    ) -> keras.KerasTensor:
        """The vectors of some spans.

        Args:
            states: float [B, T, H].
            starts: int32 [B, K].
            ends: int32 [B, K], inclusive.
            training: whether to apply dropout.

        Returns:
            float [B, K, D].
        """
        widths = ends - starts  # from 0
        table = ops.cast(self.width_embeddings, self.compute_dtype)
        of_widths = self.dropout(ops.take(table, widths, axis=0), training=training)
        attention = self._attention(states)
        head = ops.zeros_like(of_widths[..., :1])  # [B, K, 1], then [B, K, H]
        total = ops.full_like(ops.cast(widths, "float32"), NO_SCORE)  # [B, K], log of the sum
        for offset in range(self.max_span_width):
            places = ops.minimum(starts + offset, ends)
            inside = ops.cast(starts + offset <= ends, "float32")  # [B, K]
            logits = gather_rows(attention, places) + NO_SCORE * (1 - inside)
            total = ops.logaddexp(total, logits)
            share = ops.cast(ops.exp(logits - total) * inside, self.compute_dtype)[..., None]
            head = head + share * (gather_rows(states, places) - head)
        first = gather_rows(states, starts)
        last = gather_rows(states, ends)
        return ops.concatenate([first, last, of_widths, head], axis=-1)

    def _attention(self, states: keras.KerasTensor) -> keras.KerasTensor:
        """Attention logits of the positions, float32 [B, T]."""
        return ops.cast(self.head_attention(states)[..., 0], "float32")

    def _score_chunk(
        self,
        states: keras.KerasTensor,
        attention: keras.KerasTensor,
        sentences: keras.KerasTensor,
        begins_word: keras.KerasTensor,
        ends_word: keras.KerasTensor,
        *,
        of_widths: keras.KerasTensor,
        training: bool = False,
    ) -> keras.KerasTensor:
        """Scores [B, Q, W] of the spans that begin in the first Q of Q + W - 1 positions."""
        network, width = self.mention_network, self.hidden_dim
        size = ops.shape(states)[1] - self.max_span_width + 1  # Q
        as_first = network.project(states[:, :size], 0) + network.bias()  # [B, Q, F]
        as_last = network.project(states, width)  # [B, Q + W - 1, F]
        as_part = network.project(states, 2 * width + self.feature_dim)
        table = ops.cast(self.width_embeddings, self.compute_dtype)
        head = as_part[:, :size]  # of spans of one position
        total = attention[:, :size]  # [B, Q], log of the sum of exponentials
        scores = []
        for offset in range(self.max_span_width):
            if offset:
                logits = attention[:, offset : offset + size]
                total = ops.logaddexp(total, logits)
                share = ops.cast(ops.exp(logits - total), self.compute_dtype)[..., None]
                head = head + share * (as_part[:, offset : offset + size] - head)
            embedding = table[offset][None, None]
            if training:  # each span drops values of its own
                shape = (*ops.shape(total), self.feature_dim)
                embedding = self.dropout(ops.broadcast_to(embedding, shape), training=True)
            hidden = as_first + as_last[:, offset : offset + size] + head
            hidden = hidden + network.project(embedding, 2 * width)
            score = network.score(hidden, training) + of_widths[offset]
            is_span = sentences[:, :size] == sentences[:, offset : offset + size]
            is_span = is_span & (sentences[:, :size] > 0)
            if self.word_boundaries:
                is_span = is_span & (begins_word[:, :size] > 0)
                is_span = is_span & (ends_word[:, offset : offset + size] > 0)
            scores.append(ops.where(is_span, score, NO_SCORE))
        return ops.stack(scores, axis=-1)

    def get_config(self) -> dict:
        return {
            **super().get_config(),
            "hidden_dim": self.hidden_dim,
            "max_span_width": self.max_span_width,
            "feature_dim": self.feature_dim,
            "ffnn_dim": self.ffnn_dim,
            "dropout": self.dropout_rate,
            "word_boundaries": self.word_boundaries,
        }
