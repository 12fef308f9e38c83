"""Scores the spans before a span as its antecedents (Lee et al., 2018; SpanBERT, 5.1.2).

Shapes: B documents, P selected spans, A antecedents of a span, D width of a span's vector, F hidden
width, E width of the features of a pair, Q spans of a chunk.
"""

from typing import NamedTuple

import keras
from keras import ops

from spanbert_tf.layers.bert_initializer import bert_initializer
from spanbert_tf.layers.mention_scorer import NO_SCORE
from spanbert_tf.layers.scoring_network import ScoringNetwork, gather_rows, map_chunks

NUM_DISTANCES = 10  # buckets: 0, 1, 2, 3, 4, 5-7, 8-15, 16-31, 32-63, 64 and more
NUM_GENRES = 7
_BUCKETS = [0, 1, 2, 3, 4, *[5] * 3, *[6] * 8, *[7] * 16, *[8] * 32, 9]  # of distances 0 to 64
_CHUNK = 64


class Spans(NamedTuple):
    """The selected spans of documents, in order.

    Attributes:
        vectors: float [B, P, D].
        scores: float32 [B, P], mention scores.
        is_span: bool [B, P], `False` for padding.
        speakers: int32 [B, P], ids of the speakers.
        segments: int32 [B, P], indices of the segments in the document.
        genres: int32 [B], ids of the documents' genres.
    """

    vectors: keras.KerasTensor
    scores: keras.KerasTensor
    is_span: keras.KerasTensor
    speakers: keras.KerasTensor
    segments: keras.KerasTensor
    genres: keras.KerasTensor


@keras.saving.register_keras_serializable(package="spanbert_tf")
class AntecedentScorer(keras.layers.Layer):
    """Selects the best antecedents by a bilinear score, and scores them by a network.

    The network scores in `depth` passes. Between two passes, a gate mixes the vector of each span
    with the mean of its antecedents' vectors. The vectors are refined `depth - 1` times, because
    nothing uses them after the last pass.

    Args:
        span_dim: int. D.
        max_segments: int. Number of distances in segments that have an embedding.
        max_antecedents: int. Maximum of A.
        depth: int. Number of passes.
        feature_dim: int. Width of each embedding.
        ffnn_dim: int. F.
        dropout: float. Dropout rate.
    """

    def __init__(
        self,
        span_dim: int,
        max_segments: int = 3,
        max_antecedents: int = 50,
        depth: int = 2,
        feature_dim: int = 20,
        ffnn_dim: int = 3000,
        dropout: float = 0.3,
        **kwargs,
    ) -> None:
        super().__init__(**kwargs, autocast=False)  # scores stay in float32
        self.span_dim = span_dim
        self.max_segments = max_segments
        self.max_antecedents = max_antecedents
        self.depth = depth
        self.feature_dim = feature_dim
        self.ffnn_dim = ffnn_dim
        self.dropout_rate = dropout

        def table(rows: int, name: str) -> keras.Variable:
            shape = (rows, feature_dim)
            return self.add_weight(shape=shape, initializer=bert_initializer(), name=name)

        def dense(units: int, input_dim: int, name: str) -> keras.layers.Dense:
            layer = keras.layers.Dense(
                units, kernel_initializer=bert_initializer(), dtype=self.dtype_policy, name=name
            )
            layer.build((None, input_dim))
            return layer

        self.prior_distance_embeddings = table(NUM_DISTANCES, "prior_distance_embeddings")
        self.distance_embeddings = table(NUM_DISTANCES, "distance_embeddings")
        self.speaker_embeddings = table(2, "speaker_embeddings")
        self.genre_embeddings = table(NUM_GENRES, "genre_embeddings")
        self.segment_embeddings = table(max_segments, "segment_embeddings")
        self.prior_distance_scores = dense(1, feature_dim, "prior_distance_scores")
        self.source_projection = dense(span_dim, span_dim, "source_projection")
        self.pair_network = ScoringNetwork(
            3 * span_dim + 4 * feature_dim,
            ffnn_dim,
            dropout,
            dtype=self.dtype_policy,
            name="pair_scores",
        )
        if depth > 1:
            self.gate = dense(span_dim, 2 * span_dim, "gate")
        self.dropout = keras.layers.Dropout(dropout, dtype=self.dtype_policy, name="dropout")
        self.built = True

    def call(
        self, spans: Spans | tuple, training: bool | None = None
    ) -> tuple[keras.KerasTensor, keras.KerasTensor]:
        """Selects and scores antecedents.

        Args:
            spans: spans of documents; a plain tuple in a loaded model.
            training: whether to apply dropout.

        Returns:
            The antecedents, int32 [B, P, A], as indices of spans; and scores, float32
            [B, P, 1 + A]: 0 for no antecedent, then those of the antecedents, or `NO_SCORE` if a
            span has fewer antecedents.
        """
        spans = Spans(*spans)
        vectors = ops.cast(spans.vectors, self.compute_dtype)
        spans = spans._replace(vectors=vectors)
        coarse, antecedents = self._best_by_coarse_score(spans, training)
        for index in range(self.depth):
            scores, vectors = self._score(
                spans._replace(vectors=vectors),
                coarse,
                antecedents,
                refine=index < self.depth - 1,
                training=training,
            )
        scores = ops.where(coarse > NO_SCORE / 2, scores, NO_SCORE)
        return antecedents, ops.pad(scores, [[0, 0], [0, 0], [1, 0]])

    def _best_by_coarse_score(
        self, spans: Spans, training: bool | None
    ) -> tuple[keras.KerasTensor, keras.KerasTensor]:
        """Finds the best coarse scores, float32 [B, P, A], and antecedents, int32 [B, P, A]."""
        source = self.dropout(self.source_projection(spans.vectors), training=training)
        target = self.dropout(spans.vectors, training=training)
        pairs = ops.cast(ops.matmul(source, ops.swapaxes(target, 1, 2)), "float32")  # [B, P, P]
        table = ops.cast(self.prior_distance_embeddings, self.compute_dtype)
        priors = self.prior_distance_scores(self.dropout(table, training=training))[:, 0]
        ranks = ops.arange(ops.shape(pairs)[1], dtype="int32")
        distances = ranks[:, None] - ranks[None]  # [P, P]
        pairs = pairs + ops.take(ops.cast(priors, "float32"), distance_buckets(distances))[None]
        pairs = pairs + spans.scores[:, :, None] + spans.scores[:, None]
        is_pair = spans.is_span[:, :, None] & spans.is_span[:, None] & (distances > 0)[None]
        pairs = ops.where(is_pair, pairs, NO_SCORE)
        count = ops.shape(pairs)[1]
        if isinstance(count, int):
            count = min(count, self.max_antecedents)
        else:  # a tensor, in a graph for all lengths
            count = ops.minimum(count, self.max_antecedents)
        coarse, antecedents = ops.top_k(pairs, count)
        return coarse, ops.cast(antecedents, "int32")

    def _score(
        self,
        spans: Spans,
        coarse: keras.KerasTensor,
        antecedents: keras.KerasTensor,
        refine: bool,
        training: bool | None,
    ) -> tuple[keras.KerasTensor, keras.KerasTensor | None]:
        """Computes the scores of a pass, float32 [B, P, A], and the vectors for the next pass."""
        # The part of the hidden layer that depends on the antecedent, once for each span.
        as_antecedent = self.pair_network.project(spans.vectors, self.span_dim)  # [B, P, F]

        def score_chunk(
            vectors: keras.KerasTensor,
            speakers: keras.KerasTensor,
            segments: keras.KerasTensor,
            ranks: keras.KerasTensor,
            coarse: keras.KerasTensor,
            antecedents: keras.KerasTensor,
        ) -> tuple[keras.KerasTensor, ...]:
            others = gather_rows(spans.vectors, antecedents)  # [B, Q, A, D]
            features = self._features(spans, speakers, segments, ranks, antecedents)
            features = self.dropout(features, training=training)  # [B, Q, A, E]
            pairs = ops.concatenate([vectors[:, :, None] * others, features], axis=-1)
            hidden = self.pair_network.project(pairs, 2 * self.span_dim)  # [B, Q, A, F]
            hidden = hidden + gather_rows(as_antecedent, antecedents)
            own = self.pair_network.project(vectors, 0) + self.pair_network.bias()
            scores = coarse + self.pair_network.score(hidden + own[:, :, None], training)
            if not refine:
                return (scores,)
            return scores, ops.cast(self._refined(vectors, others, coarse, scores), "float32")

        ranks = ops.zeros_like(spans.segments) + ops.arange(
            ops.shape(coarse)[1], dtype="int32"
        )  # [B, P]
        inputs = (spans.vectors, spans.speakers, spans.segments, ranks, coarse, antecedents)
        if training:
            results = score_chunk(*inputs)
        else:
            widths = [ops.shape(coarse)[2]]
            if refine:
                widths.append(self.span_dim)
            results = map_chunks(score_chunk, inputs, widths, _CHUNK)
        if not refine:
            return results[0], None
        return results[0], ops.cast(results[1], self.compute_dtype)

    def _features(
        self,
        spans: Spans,
        speakers: keras.KerasTensor,
        segments: keras.KerasTensor,
        ranks: keras.KerasTensor,
        antecedents: keras.KerasTensor,
    ) -> keras.KerasTensor:
        """Concatenates the four embeddings of pairs, float [B, Q, A, E]."""
        same_speaker = speakers[:, :, None] == gather_rows(spans.speakers, antecedents)
        apart = segments[:, :, None] - gather_rows(spans.segments, antecedents)
        genres = ops.zeros_like(antecedents) + spans.genres[:, None, None]
        distances = ops.maximum(ranks[:, :, None] - antecedents, 0)
        embedded = [
            self._embed(self.speaker_embeddings, ops.cast(same_speaker, "int32")),
            self._embed(self.genre_embeddings, genres),
            self._embed(self.distance_embeddings, distance_buckets(distances)),
            self._embed(self.segment_embeddings, ops.clip(apart, 0, self.max_segments - 1)),
        ]
        return ops.concatenate(embedded, axis=-1)

    def _embed(self, table: keras.Variable, rows: keras.KerasTensor) -> keras.KerasTensor:
        return ops.take(ops.cast(table, self.compute_dtype), rows, axis=0)

    def _refined(
        self,
        vectors: keras.KerasTensor,
        others: keras.KerasTensor,
        coarse: keras.KerasTensor,
        scores: keras.KerasTensor,
    ) -> keras.KerasTensor:
        """Mixes vectors [B, Q, D] with the means of their antecedents' vectors [B, Q, A, D]."""
        scores = ops.where(coarse > NO_SCORE / 2, scores, NO_SCORE)
        scores = ops.pad(scores, [[0, 0], [0, 0], [1, 0]])
        shares = ops.cast(ops.softmax(scores, axis=-1), self.compute_dtype)  # [B, Q, 1 + A]
        own_share = shares[:, :, :1]  # [B, Q, 1]
        other_shares = shares[:, :, None, 1:]  # [B, Q, 1, A]
        mean = own_share * vectors + ops.matmul(other_shares, others)[:, :, 0]  # [B, Q, D]
        gate = ops.sigmoid(self.gate(ops.concatenate([vectors, mean], axis=-1)))
        return gate * mean + (1 - gate) * vectors

    def get_config(self) -> dict:
        return {
            **super().get_config(),
            "span_dim": self.span_dim,
            "max_segments": self.max_segments,
            "max_antecedents": self.max_antecedents,
            "depth": self.depth,
            "feature_dim": self.feature_dim,
            "ffnn_dim": self.ffnn_dim,
            "dropout": self.dropout_rate,
        }


def distance_buckets(distances: keras.KerasTensor) -> keras.KerasTensor:
    """Returns the bucket of each distance, int32; see `NUM_DISTANCES`."""
    return ops.take(ops.convert_to_tensor(_BUCKETS, "int32"), ops.clip(distances, 0, 64), axis=0)
