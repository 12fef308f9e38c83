"""Scores every span of a document as a mention (SpanBERT, section 5.1.2; Lee et al., 2017).

Shapes: B documents, T positions of a document, H width of the encoder, W widths of spans, F hidden
width, P selected spans, D width of a span's vector, Q positions of a chunk.
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

NO_SCORE = -1e9  # not minus infinity, whose product with 0 is NaN
_CHUNK = 256


@keras.saving.register_keras_serializable(package="spanbert_tf")
class MentionScorer(keras.layers.Layer):
    """Scores all spans up to a width as mentions, without computing a vector for each span.

    The vector of a span is `[first; last; width embedding; head]`. The head is the mean of its
    positions, weighted by a learned attention. Each position is projected to the hidden layer three
    times: as a first position, as a last position and as a part of a head. The hidden layer of a
    span is a sum of these projections. The head of the next width is
    `mean + share · (next - mean)`, which is exactly softmax attention.

    Args:
        hidden_dim: int. H.
        max_span_width: int. W.
        feature_dim: int. Width of the embeddings of widths.
        ffnn_dim: int. F.
        dropout: float. Dropout rate.
        word_boundaries: bool. Whether spans start and end at word boundaries.
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
        """The width of a span's vector, D."""
        return 3 * self.hidden_dim + self.feature_dim

    def call(
        self,
        states: keras.KerasTensor,
        sentence_indices: keras.KerasTensor,
        begins_word: keras.KerasTensor,
        ends_word: keras.KerasTensor,
        training: bool | None = None,
    ) -> keras.KerasTensor:
        """Scores all spans.

        Args:
            states: outputs of the encoder, float [B, T, H].
            sentence_indices: int [B, T]; negative for padding. A span lies in one sentence.
            begins_word: int [B, T], 1 where a word starts.
            ends_word: int [B, T], 1 where a word ends.
            training: whether to apply dropout.

        Returns:
            Scores, float32 [B, T, W]. Entry [b, t, w] belongs to the span from position t to
            t + w, and is `NO_SCORE` if this is no span.
        """
        sentences = sentence_indices + 1  # 0 is padding, also that of the chunks
        inputs = (states, self._attention(states), sentences, begins_word, ends_word)
        width_scores = self.width_network(
            ops.cast(self.width_prior_embeddings, self.compute_dtype), training=training
        )  # [W]
        if training:  # a loop cannot contain dropout, and a step keeps all results anyway
            padded = [pad_positions(values, self.max_span_width - 1) for values in inputs]
            return self._score_chunk(*padded, width_scores=width_scores, training=True)
        (scores,) = map_chunks(
            lambda *chunk: (self._score_chunk(*chunk, width_scores=width_scores),),
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
        """Computes the vectors of selected spans.

        Args:
            states: outputs of the encoder, float [B, T, H].
            starts: first positions, int32 [B, P].
            ends: last positions, int32 [B, P].
            training: whether to apply dropout.

        Returns:
            Vectors, float [B, P, D].
        """
        widths = ends - starts  # 0 for spans of one position
        table = ops.cast(self.width_embeddings, self.compute_dtype)
        embedded_widths = self.dropout(ops.take(table, widths, axis=0), training=training)
        attention = self._attention(states)
        head = ops.zeros_like(embedded_widths[..., :1])  # [B, P, 1], then [B, P, H]
        total = ops.full_like(ops.cast(widths, "float32"), NO_SCORE)  # [B, P], log of the sum
        for offset in range(self.max_span_width):
            positions = ops.minimum(starts + offset, ends)
            inside = ops.cast(starts + offset <= ends, "float32")  # [B, P]
            logits = gather_rows(attention, positions) + NO_SCORE * (1 - inside)
            total = ops.logaddexp(total, logits)
            share = ops.cast(ops.exp(logits - total) * inside, self.compute_dtype)[..., None]
            head = head + share * (gather_rows(states, positions) - head)
        first = gather_rows(states, starts)
        last = gather_rows(states, ends)
        return ops.concatenate([first, last, embedded_widths, head], axis=-1)

    def _attention(self, states: keras.KerasTensor) -> keras.KerasTensor:
        """Computes the attention logits of positions, float32 [B, T]."""
        return ops.cast(self.head_attention(states)[..., 0], "float32")

    def _score_chunk(
        self,
        states: keras.KerasTensor,
        attention: keras.KerasTensor,
        sentences: keras.KerasTensor,
        begins_word: keras.KerasTensor,
        ends_word: keras.KerasTensor,
        *,
        width_scores: keras.KerasTensor,
        training: bool = False,
    ) -> keras.KerasTensor:
        """Scores the spans that start in the first Q of Q + W - 1 positions, float32 [B, Q, W]."""
        network = self.mention_network
        width = self.hidden_dim
        size = ops.shape(states)[1] - self.max_span_width + 1  # Q
        as_first = network.project(states[:, :size], 0) + network.bias()  # [B, Q, F]
        as_last = network.project(states, width)  # [B, Q + W - 1, F]
        as_part = network.project(states, 2 * width + self.feature_dim)
        table = ops.cast(self.width_embeddings, self.compute_dtype)
        head = as_part[:, :size]  # the head of spans of one position
        total = attention[:, :size]  # [B, Q], log of the sum of exponentials
        scores = []
        for offset in range(self.max_span_width):
            if offset:
                logits = attention[:, offset : offset + size]
                total = ops.logaddexp(total, logits)
                share = ops.cast(ops.exp(logits - total), self.compute_dtype)[..., None]
                head = head + share * (as_part[:, offset : offset + size] - head)
            embedding = table[offset][None, None]
            if training:  # dropout differs between spans
                shape = (*ops.shape(total), self.feature_dim)
                embedding = self.dropout(ops.broadcast_to(embedding, shape), training=True)
            hidden = as_first + as_last[:, offset : offset + size] + head
            hidden = hidden + network.project(embedding, 2 * width)
            score = network.score(hidden, training) + width_scores[offset]
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
