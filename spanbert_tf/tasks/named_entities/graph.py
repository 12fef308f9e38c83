"""Finds the entities of texts in a graph, for scores, exports and raw prediction.

Dimensions: N texts; T pieces, E entities and R rows of all texts; S positions of a row.
"""

from typing import NamedTuple

import keras_hub
import tensorflow as tf

from spanbert_tf.tasks.graphs import map_row_chunks
from spanbert_tf.tasks.named_entities.records import BEGIN, INSIDE, OUTSIDE
from spanbert_tf.text.positions import changes
from spanbert_tf.text.tokenization import WordPieceTokenizer, characters_before, clean_texts
from spanbert_tf.text.vocabulary import begin_words
from spanbert_tf.text.words import word_starts

Pieces = tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]  # ids, first and last bytes


class Entities(NamedTuple):
    """The entities of texts, ragged [N, entities]."""

    types: tf.RaggedTensor  # string
    scores: tf.RaggedTensor  # float32, mean probability of the labels
    words: tf.RaggedTensor  # string, slices of the texts, with their case and accents
    starts: tf.RaggedTensor  # int32, first characters
    ends: tf.RaggedTensor  # int32, the characters after the last


class EntityDecoder(tf.Module):
    """Finds entities as the `token-classification` pipeline of `transformers` does.

    Neighbouring pieces of one type are an entity; a label `B-TYPE` begins a new one.

    Args:
        model: a `SpanBertTokenClassifier` with its preprocessor. Its labels, tokenizer and
            `aggregation_strategy` are used.
    """

    def __init__(self, model: keras_hub.models.Task) -> None:
        super().__init__()
        tokenizer = model.preprocessor.tokenizer
        vocabulary = tokenizer.get_vocabulary()
        self._tokenizer = WordPieceTokenizer.shared(vocabulary, tokenizer.text_rules)
        self._begins_word = tf.constant(begin_words(vocabulary))
        types = [_type_of(label) for label in model.labels]
        names = sorted({name for name in types if name is not None})
        self._type_names = tf.constant([OUTSIDE, *names])
        type_ids: dict[str | None, int] = {None: 0}
        for type_id, name in enumerate(names, start=1):
            type_ids[name] = type_id
        self._types = tf.constant([type_ids[name] for name in types])  # of the labels
        self._begins = tf.constant([label.startswith(BEGIN) for label in model.labels])
        self._strategy = model.aggregation_strategy

    def tokenize(self, texts: tf.Tensor) -> Pieces:
        """Returns the ids of the pieces of texts, string [N], and their places in bytes."""
        return self._tokenizer.tokenize_with_offsets(texts)

    def keeps_label(self, texts: tf.Tensor, pieces: Pieces) -> tf.Tensor:
        """Whether each piece keeps its label, bool [T]. Others take that of the last one that does.

        Args:
            texts: string [N].
            pieces: word pieces of them, from `tokenize`.
        """
        ids, starts, _ = pieces
        rows = ids.value_rowids()
        if self._strategy == "simple":
            return tf.ones_like(ids.flat_values, tf.bool)
        if self._strategy == "first":
            return tf.gather(self._begins_word, ids.flat_values) | changes(rows)
        return changes(_words_of_bytes(texts, starts)) | changes(rows)

    def decode(
        self,
        texts: tf.Tensor,
        pieces: Pieces,
        labels: tf.Tensor,
        scores: tf.Tensor,
        keeps_label: tf.Tensor,
    ) -> Entities:
        """Finds the entities of texts by the labels of their pieces.

        Args:
            texts: string [N].
            pieces: word pieces of them, from `tokenize`.
            labels: numbers of the pieces' labels, int32 [T].
            scores: their probabilities, float32 [T].
            keeps_label: as `keeps_label` returned, bool [T].
        """
        _, starts, ends = (values.flat_values for values in pieces)  # [T] each
        rows = pieces[0].value_rowids()
        source = label_sources(keeps_label)
        labels = tf.gather(labels, source)
        types = tf.gather(self._types, labels)
        is_inside = types > 0
        is_new = changes(types) | changes(rows) | (tf.gather(self._begins, labels) & keeps_label)
        is_first = is_inside & is_new
        is_followed = tf.concat([is_inside[1:] & ~is_new[1:], [False]], axis=0)[: tf.size(rows)]
        is_last = is_inside & ~is_followed
        entity = tf.cumsum(tf.cast(is_first, tf.int32)) - 1  # [T], index of the entity
        num_entities = tf.reduce_sum(tf.cast(is_first, tf.int32))  # E
        weights = tf.cast(is_inside & keeps_label, tf.float32)
        segments = tf.where(is_inside, entity, -1)

        def sum_of_entities(values: tf.Tensor) -> tf.Tensor:
            return tf.math.unsorted_segment_sum(values, segments, num_entities)

        sums = sum_of_entities(weights * tf.gather(scores, source))
        text_rows = rows[is_first]  # [E]
        firsts = starts[is_first]  # bytes
        limits = ends[is_last]  # bytes
        flat = (
            tf.gather(self._type_names, types[is_first]),
            tf.math.divide_no_nan(sums, sum_of_entities(weights)),
            tf.strings.substr(tf.gather(texts, text_rows), firsts, limits - firsts),
            characters_before(texts, firsts, text_rows),
            characters_before(texts, limits, text_rows),
        )
        num_texts = tf.size(texts, tf.int64)
        return Entities(
            *(tf.RaggedTensor.from_value_rowids(values, text_rows, num_texts) for values in flat)
        )


class FindEntities(tf.Module):
    """The graph function of the export.

    Args:
        model: a classifier of tokens with its preprocessor.
    """

    def __init__(self, model: keras_hub.models.Task) -> None:
        super().__init__()
        self._model = model
        self._decoder = EntityDecoder(model)
        model.preprocessor.build()
        self._pack = model.preprocessor.packer
        self._room = model.preprocessor.sequence_length - 2  # [CLS], [SEP]

    def find(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        """Finds the entities of texts, string [N]; returns fields of `Entities`, [N, entities]."""
        texts = clean_texts(text)
        pieces = self._decoder.tokenize(texts)
        labels, scores = self._labels(pieces[0])
        keeps_label = self._decoder.keeps_label(texts, pieces)
        entities = self._decoder.decode(texts, pieces, labels, scores, keeps_label)
        return {name: values.to_tensor() for name, values in entities._asdict().items()}

    def _labels(self, ids: tf.RaggedTensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Computes the labels of all pieces and their probabilities.

        Texts are cut to rows as `prepare named_entities` cuts them.
        """
        sizes = ids.row_lengths()  # [N]
        counts = tf.maximum(-(-sizes // self._room), 1)  # rows of each text
        firsts = tf.ragged.range(counts).flat_values * self._room  # [R]
        lengths = tf.minimum(tf.repeat(sizes, counts) - firsts, self._room)
        rows = self._pack(tf.RaggedTensor.from_row_lengths(ids.flat_values, lengths))
        features = rows.features(segment_aware=False)

        def best(x: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
            return best_labels(self._model(x, training=False))

        labels, scores = map_row_chunks(best, features, (tf.int32, tf.float32))  # [R, S]
        positions = tf.range(tf.shape(labels)[1])[tf.newaxis]
        is_piece = (positions > 0) & (positions < rows.lengths[:, tf.newaxis] - 1)
        return labels[is_piece], scores[is_piece]


def best_labels(outputs: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the most probable label of each position, int32 [R, S], and its probability."""
    probabilities = tf.nn.softmax(tf.cast(outputs, tf.float32))
    labels = tf.argmax(probabilities, axis=-1, output_type=tf.int32)
    return labels, tf.reduce_max(probabilities, axis=-1)


def label_sources(keeps_label: tf.Tensor) -> tf.Tensor:
    """Returns the index of the piece whose label each piece takes, int32 [T].

    Args:
        keeps_label: whether each piece keeps its own label, bool [T]; true for the first one.
    """
    indices = tf.range(tf.size(keeps_label))
    return tf.gather(indices[keeps_label], tf.cumsum(tf.cast(keeps_label, tf.int32)) - 1)


def _words_of_bytes(texts: tf.Tensor, places: tf.RaggedTensor) -> tf.Tensor:
    """Returns the index of the word that each place is in, over all texts, int32 [T].

    Args:
        texts: string [N].
        places: bytes of the texts, ragged int64 [N, places].
    """
    starts = word_starts(texts)
    text_starts = tf.cumsum(tf.cast(tf.strings.length(texts), tf.int64), exclusive=True)

    def over_all_texts(values: tf.RaggedTensor) -> tf.Tensor:
        return values.flat_values + tf.gather(text_starts, values.value_rowids())

    return tf.searchsorted(over_all_texts(starts), over_all_texts(places), side="right")


def _type_of(label: str) -> str | None:
    """Returns the type that a label names; `None` for the label outside of entities."""
    return None if label == OUTSIDE else label.removeprefix(BEGIN).removeprefix(INSIDE)
