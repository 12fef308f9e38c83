"""Finds the clusters of documents and of texts in a graph, for scores, exports and raw prediction.

Dimensions: B documents, N texts; K spans of a document, or mentions of the text with the most.
"""

from typing import NamedTuple

import keras_hub
import numpy as np
import tensorflow as tf

from spanbert_tf.data.documents import TextReader
from spanbert_tf.serving.exporting import Signatures
from spanbert_tf.tasks.coreference.records import Clusters
from spanbert_tf.tasks.graphs import no_sentences, sentence_specs, text_specs
from spanbert_tf.text.tokenization import clean_texts

NO_CLUSTER = -1
_NO_PLACE = -1


class LinkedSpans(NamedTuple):
    """The spans of documents as words, in the order of (start, end); int32 [B, K]."""

    first_words: tf.Tensor
    last_words: tf.Tensor  # inclusive
    clusters: tf.Tensor  # numbered by their first mentions; `NO_CLUSTER`: the span is no mention


def link_spans(
    model: keras_hub.models.Task, x: dict[str, tf.Tensor], outputs: dict[str, tf.Tensor]
) -> LinkedSpans:
    """Finds the clusters that a model predicts.

    Each span is linked to its best antecedent, unless having none scores higher; linked spans are a
    cluster. A model without word boundaries can have several spans of the same words: only the
    first of them that is in a cluster counts.

    Args:
        model: a `SpanBertCoreferenceResolver`.
        x: `word_indices`, int32 [B, T], the index of the word at each position.
        outputs: what the model returned for the documents.
    """
    best = tf.argmax(outputs["scores"], axis=-1, output_type=tf.int32)  # [B, K]; 0: no antecedent
    antecedents = tf.gather(outputs["antecedents"], tf.maximum(best - 1, 0), batch_dims=2)
    is_span = outputs["is_span"] > 0
    own = tf.broadcast_to(tf.range(tf.shape(best)[1])[tf.newaxis], tf.shape(best))
    has_antecedent = (best > 0) & is_span
    roots = _roots(tf.where(has_antecedent, antecedents, own))
    words = x["word_indices"]
    first = tf.gather(words, outputs["span_starts"], batch_dims=1)
    last = tf.gather(words, outputs["span_ends"], batch_dims=1)
    is_mention = is_span & (_count_by_root(roots, is_span) > 1)
    if model.singletons:
        is_mention |= is_span & (outputs["mention_scores"] > 0)
    same = (first[:, :, tf.newaxis] == first[:, tf.newaxis]) & (
        last[:, :, tf.newaxis] == last[:, tf.newaxis]
    )
    is_earlier = own[:1, :, tf.newaxis] > own[:1, tf.newaxis]  # [1, K, K]
    is_mention &= ~tf.reduce_any(same & is_earlier & is_mention[:, tf.newaxis], axis=-1)
    if not model.singletons:
        is_mention &= _count_by_root(roots, is_mention) > 1
    return LinkedSpans(first, last, _numbered(roots, is_mention))


def clusters_of(first: np.ndarray, last: np.ndarray, numbers: np.ndarray) -> Clusters:
    """Converts a document's row of `LinkedSpans` to lists of word spans."""
    clusters: Clusters = [[] for _ in range(int(numbers.max(initial=-1)) + 1)]
    for start, end, number in zip(first.tolist(), last.tolist(), numbers.tolist(), strict=True):
        if number != NO_CLUSTER:
            clusters[number].append((start, end))
    return clusters


def _roots(parents: tf.Tensor) -> tf.Tensor:
    """Follows links to the first span of each cluster, int32 [B, K]."""
    (roots,) = tf.while_loop(
        lambda roots: tf.reduce_any(tf.gather(roots, roots, batch_dims=1) != roots),
        lambda roots: (tf.gather(roots, roots, batch_dims=1),),
        (parents,),
        shape_invariants=(tf.TensorShape([None, None]),),
    )
    return roots


def _flat_roots(roots: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns roots as indices among all spans [B · K], and the number of all spans."""
    num_documents, num_spans = tf.unstack(tf.shape(roots))
    offsets = num_spans * tf.range(num_documents)[:, tf.newaxis]
    return tf.reshape(roots + offsets, [-1]), num_documents * num_spans


def _count_by_root(roots: tf.Tensor, is_counted: tf.Tensor) -> tf.Tensor:
    """Counts for each span the counted spans with the same root, int32 [B, K]."""
    flat, total = _flat_roots(roots)
    ones = tf.cast(tf.reshape(is_counted, [-1]), tf.int32)
    counts = tf.math.unsorted_segment_sum(ones, flat, total)
    return tf.reshape(tf.gather(counts, flat), tf.shape(roots))


def _numbered(roots: tf.Tensor, is_mention: tf.Tensor) -> tf.Tensor:
    """Numbers the clusters in the order of their first mentions, int32 [B, K]."""
    flat, total = _flat_roots(roots)
    places = tf.range(total)
    mentioned = tf.where(tf.reshape(is_mention, [-1]), places, total)
    firsts = tf.gather(tf.math.unsorted_segment_min(mentioned, flat, total), flat)
    is_first = tf.reshape(firsts == places, tf.shape(roots)) & is_mention
    numbers = tf.reshape(tf.cumsum(tf.cast(is_first, tf.int32), axis=1) - 1, [-1])
    own = tf.gather(numbers, tf.minimum(firsts, total - 1))
    return tf.where(is_mention, tf.reshape(own, tf.shape(roots)), NO_CLUSTER)


class ResolveTexts(tf.Module):
    """The graph functions of the export.

    Args:
        resolver: a `SpanBertCoreferenceResolver` with its preprocessor.
    """

    def __init__(self, resolver: keras_hub.models.Task) -> None:
        super().__init__()
        self._model = resolver
        # All signatures share one function, since tracing the model takes seconds.
        self._resolve = tf.function(self.resolve, self.specs(), autograph=False)
        preprocessor = resolver.preprocessor
        tokenizer = preprocessor.tokenizer
        self._reader = TextReader(
            tokenizer.get_vocabulary(), tokenizer.text_rules, preprocessor.sequence_length
        )

    @staticmethod
    def specs() -> list[tf.TensorSpec]:
        """Returns the specs of the inputs of `resolve`."""
        return text_specs("text", "speakers") + sentence_specs("sentence_starts")

    def resolve(
        self, text: tf.Tensor, speakers: tf.Tensor, sentence_starts: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Finds the mentions of texts and their clusters.

        Args:
            text: string [N], of any length; bytes that are not UTF-8 are replaced.
            speakers: string [N], see `TextReader`.
            sentence_starts: int32 [N, sentences], see `given_sentences`.

        Returns:
            `starts`, `ends`, `clusters`, int32 [N, K], and `mentions`, string [N, K].
        """
        num_texts = tf.shape(text)[0]
        # The model needs a document: without texts it gets an empty one, whose row is cut off.
        added = tf.fill([tf.cast(num_texts == 0, tf.int32)], "")
        num_added = tf.size(added)
        sentence_starts = tf.pad(sentence_starts, [[0, num_added], [0, 0]], constant_values=-1)
        text = clean_texts(tf.concat([text, added], axis=0))
        speakers = tf.concat([speakers, added], axis=0)
        documents = self._reader(text, speakers, sentence_starts)
        x = documents.features
        linked = link_spans(self._model, x, self._model(x, training=False))
        is_mention = linked.clusters != NO_CLUSTER  # [N, spans]

        def of_words(values: tf.RaggedTensor, words: tf.Tensor) -> tf.RaggedTensor:
            dense = tf.pad(values.to_tensor(_NO_PLACE), [[0, 0], [0, 1]])  # never empty
            inside = tf.minimum(words, tf.shape(dense)[1] - 1)
            return tf.ragged.boolean_mask(tf.gather(dense, inside, batch_dims=1), is_mention)

        starts = of_words(documents.word_starts, linked.first_words).to_tensor(_NO_PLACE)
        ends = of_words(documents.word_ends, linked.last_words).to_tensor(_NO_PLACE)
        clusters = tf.ragged.boolean_mask(linked.clusters, is_mention).to_tensor(NO_CLUSTER)
        repeated = tf.repeat(text[:, tf.newaxis], tf.shape(starts)[1], axis=1)
        mentions = tf.strings.substr(
            repeated, tf.maximum(starts, 0), tf.maximum(ends - starts, 0), unit="UTF8_CHAR"
        )
        found = {"starts": starts, "ends": ends, "clusters": clusters, "mentions": mentions}
        return {name: values[:num_texts] for name, values in found.items()}

    def signatures(self) -> Signatures:
        """Returns a signature of texts, one of dialogues, and one that takes sentences, too."""

        def of_dialogues(text: tf.Tensor, speakers: tf.Tensor) -> dict[str, tf.Tensor]:
            return self._resolve(text, speakers, no_sentences(text))

        def of_texts(text: tf.Tensor) -> dict[str, tf.Tensor]:
            return of_dialogues(text, tf.fill(tf.shape(text), ""))

        specs = self.specs()
        return {
            "serving_default": (of_texts, specs[:1]),
            "dialogue": (of_dialogues, specs[:2]),
            "sentences": (self._resolve, specs),
        }
