"""Cuts documents into segments that an encoder can read, each `[CLS] pieces [SEP]`, in a graph.

Preprocessor and exports of coreference resolution call this one rule (original `minimize.py`): a
segment takes what fits, back to the last end of a sentence; of a longer sentence, back to the last
end of a word; a longer word is cut. Preparation follows it in NumPy, and a test compares both.

N documents, P pieces of all of them, Q segments of all of them, T positions of all of them, special
tokens counted.
"""

from typing import NamedTuple

import tensorflow as tf

NO_PIECE = -1


class SegmentedDocuments(NamedTuple):
    """Documents with special tokens; ragged int32 [N, positions] unless it says otherwise.

    Attributes:
        segment_lengths: positions of each segment, ragged int32 [N, segments]; at least one.
        token_ids: ids of the vocabulary.
        pieces: which piece of its document stands there; `NO_PIECE` for a special token.
        sentence_indices: index of its sentence, from 0. A [SEP] after the end of a sentence
            already has the next one's, as the [CLS] after it.
        word_indices: index of its word. A [CLS] has that of the word before it (0 at first), a
            [SEP] that of the last one.
    """

    segment_lengths: tf.RaggedTensor
    token_ids: tf.RaggedTensor
    pieces: tf.RaggedTensor
    sentence_indices: tf.RaggedTensor
    word_indices: tf.RaggedTensor


def segment_documents(
    token_ids: tf.RaggedTensor,
    sentence_indices: tf.RaggedTensor,
    word_indices: tf.RaggedTensor,
    *,
    sequence_length: int,
    start_id: int,
    end_id: int,
) -> SegmentedDocuments:
    """Cuts documents into segments and adds [CLS] and [SEP].

    Args:
        token_ids: ids of pieces, ragged int32 [N, pieces].
        sentence_indices: ascending in a document, ragged int32 [N, pieces]; only where they change
            matters.
        word_indices: the same of words.
        sequence_length: positions of a segment at most.
        start_id: id of [CLS].
        end_id: id of [SEP].
    """
    splits = tf.cast(token_ids.row_splits, tf.int32)  # [N + 1]
    sentence_ends, word_ends = (
        _is_end(values.flat_values, splits) for values in (sentence_indices, word_indices)
    )  # bool [P] each
    documents, starts, ends = _cut(splits, sentence_ends, word_ends, sequence_length - 2)  # [Q]
    lengths = ends - starts + 2  # [Q]
    segment = tf.repeat(tf.range(tf.size(lengths)), lengths)  # [T]
    position = tf.range(tf.size(segment)) - tf.gather(tf.cumsum(lengths, exclusive=True), segment)
    is_first = position == 0
    is_last = position == tf.gather(lengths, segment) - 1
    is_special = is_first | is_last
    piece = tf.gather(starts, segment) + position - 1  # [T] of all documents

    def of_piece(values: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
        """Values [P] at places [T], 0 before the document's first piece."""
        first = tf.gather(tf.gather(splits, documents), segment)
        padded = tf.concat([values, [0]], axis=0)  # never empty
        found = tf.gather(padded, tf.clip_by_value(places, 0, tf.size(values)))
        return tf.where(places < first, 0, found)

    # The number of sentence ends before a piece, in its document.
    num_ends = tf.cumsum(tf.cast(sentence_ends, tf.int32))  # [P]
    sentence = num_ends - tf.cast(sentence_ends, tf.int32)
    of_document = tf.gather(tf.concat([[0], num_ends], axis=0), splits[:-1])  # [N]
    first_sentence = tf.gather(tf.gather(of_document, documents), segment)  # [T]
    # [CLS] has the number of sentences that have ended before it, [SEP] before and with it.
    ended = tf.gather(tf.concat([[0], num_ends], axis=0), piece + tf.cast(is_first, tf.int32))
    padded = tf.concat([sentence, [0]], axis=0)
    inside = tf.gather(padded, tf.clip_by_value(piece, 0, tf.size(sentence)))
    sentences = tf.where(is_special, ended, inside) - first_sentence
    # The piece before either special token tells its word.
    words = of_piece(word_indices.flat_values, piece - tf.cast(is_last, tf.int32))
    num_documents = token_ids.nrows()
    row_lengths = tf.math.unsorted_segment_sum(
        tf.cast(lengths, tf.int64), documents, num_documents
    )  # [N]

    def ragged(values: tf.Tensor) -> tf.RaggedTensor:
        return tf.RaggedTensor.from_row_lengths(values, row_lengths)

    ids = tf.where(is_first, start_id, end_id)
    ids = tf.where(is_special, ids, of_piece(token_ids.flat_values, piece))
    own = piece - tf.gather(tf.gather(splits, documents), segment)
    return SegmentedDocuments(
        tf.RaggedTensor.from_value_rowids(lengths, tf.cast(documents, tf.int64), num_documents),
        ragged(ids),
        ragged(tf.where(is_special, NO_PIECE, own)),
        ragged(sentences),
        ragged(words),
    )


def _is_end(values: tf.Tensor, splits: tf.Tensor) -> tf.Tensor:
    """Where the next piece of the document is missing or has another value; bool [P]."""
    changes = tf.concat([values[1:] != values[:-1], tf.ones_like(values[:1], tf.bool)], axis=0)
    last = tf.boolean_mask(splits[1:] - 1, splits[1:] > splits[:-1])  # [documents with pieces]
    is_last = tf.scatter_nd(last[:, tf.newaxis], tf.ones_like(last), tf.shape(values)) > 0
    return changes | is_last


def _cut(
    splits: tf.Tensor, sentence_ends: tf.Tensor, word_ends: tf.Tensor, max_pieces: int
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Document, first piece and the piece after the last of each segment, int32 [Q] each."""
    places = [  # after each end, ascending
        tf.cast(tf.where(is_end)[:, 0], tf.int32) + 1 for is_end in (sentence_ends, word_ends)
    ]
    num_documents = tf.size(splits) - 1

    def last_end(ends: tf.Tensor, limit: tf.Tensor) -> tf.Tensor:
        """The last end that is not beyond a limit; 0 without one."""
        count = tf.searchsorted(ends, limit[tf.newaxis], side="right")[0]
        return tf.where(count > 0, tf.gather(tf.concat([[0], ends], axis=0), count), 0)

    def cut_one(
        number: tf.Tensor, document: tf.Tensor, start: tf.Tensor, found: tf.TensorArray
    ) -> tuple:
        document_end = splits[document + 1]
        limit = tf.minimum(start + max_pieces, document_end)
        of_sentence, of_word = (last_end(ends, limit) for ends in places)
        end = tf.where(of_word > start, of_word, limit)
        end = tf.where(of_sentence > start, of_sentence, end)
        found = found.write(number, tf.stack([document, start, end]))
        return number + 1, document + tf.cast(end == document_end, tf.int32), end, found

    found = tf.TensorArray(tf.int32, size=0, dynamic_size=True, element_shape=[3])
    *_, found = tf.while_loop(
        lambda number, document, start, found: document < num_documents,
        cut_one,
        (tf.constant(0), tf.constant(0), tf.constant(0), found),
        parallel_iterations=1,
    )
    return tuple(tf.unstack(found.stack(), axis=1))
