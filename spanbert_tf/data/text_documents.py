"""Texts as documents of words and sentences, in a graph: one rule for preprocessor and export.

N texts, P pieces of all of them.
"""

from typing import NamedTuple

import tensorflow as tf

from spanbert_tf.data.document_batches import pack_documents
from spanbert_tf.data.document_segments import NO_PIECE, SegmentedDocuments, segment_documents
from spanbert_tf.data.schema import NO_SPEAKER, SPECIAL_SPEAKER
from spanbert_tf.text.positions import changes, segment_positions
from spanbert_tf.text.tokenization import WordPieceTokenizer, characters_before
from spanbert_tf.text.vocabulary import Casing, SpecialTokenIds, is_continuation

_NAMES = 2**31 - 3  # names are told apart by a hash


class TextDocuments(NamedTuple):
    """Texts as a model reads them, and where their words stand.

    Attributes:
        features: features of `pack_documents`.
        segmented: pieces with special tokens.
        piece_starts: first character of each piece, ragged int32 [N, pieces].
        piece_ends: the character after each piece.
        word_starts: first character of each word, ragged int32 [N, words].
        word_ends: the character after each word.
    """

    features: dict[str, tf.Tensor]
    segmented: SegmentedDocuments
    piece_starts: tf.RaggedTensor
    piece_ends: tf.RaggedTensor
    word_starts: tf.RaggedTensor
    word_ends: tf.RaggedTensor


class TextReader(tf.Module):
    """Makes documents of texts.

    Words are BERT's: white space and punctuation part them. Sentences are those of
    `segment_positions`: a line end ends one.

    Args:
        vocabulary: entries in order of their ids.
        casing: what is done to the text.
        sequence_length: positions of a segment at most.
    """

    def __init__(self, vocabulary: list[str], casing: Casing, sequence_length: int) -> None:
        super().__init__()
        self._tokenizer = WordPieceTokenizer.shared(vocabulary, casing)
        self._continues = tf.constant([is_continuation(piece) for piece in vocabulary])  # [V]
        self._sequence_length = sequence_length
        self._special = SpecialTokenIds.from_vocabulary(vocabulary)

    def __call__(self, texts: tf.Tensor, speakers: tf.Tensor | None = None) -> TextDocuments:
        """Reads texts of any length.

        Args:
            texts: string [N]; bytes that are no UTF-8 are replaced.
            speakers: string [N], names with line ends between them: one for each line of the text
                that has words; none for lines without a name.
        """
        texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
        ids, starts, ends = self._tokenizer.tokenize_with_offsets(texts)
        rows = ids.value_rowids()  # [P]
        places = segment_positions(texts, starts, first_paragraph=0)
        lines = places.paragraph_indices.flat_values
        is_new = changes(lines) | changes(places.sentence_indices.flat_values) | changes(rows)
        sentences = ids.with_flat_values(tf.cumsum(tf.cast(is_new, tf.int32)))
        begins = ~tf.gather(self._continues, ids.flat_values) | changes(rows)  # [P]
        words = tf.cumsum(tf.cast(begins, tf.int32)) - 1  # of all texts
        first_words = tf.math.unsorted_segment_min(words, rows, ids.nrows())
        own_words = ids.with_flat_values(words - tf.gather(first_words, rows))
        segmented = segment_documents(
            ids,
            sentences,
            own_words,
            sequence_length=self._sequence_length,
            start_id=self._special.start,
            end_id=self._special.end,
        )
        is_special = segmented.pieces.flat_values == NO_PIECE
        features = pack_documents(
            segmented.segment_lengths,
            segmented.token_ids,
            segmented.pieces.with_flat_values(is_special),
            segmented.sentence_indices,
            segmented.word_indices,
            _speakers_of_positions(segmented, places.paragraph_indices, speakers),
            tf.zeros([ids.nrows()], tf.int32),
            pad_id=self._special.pad,
            max_segment_length=self._sequence_length,
        )
        char_starts, char_ends = (
            values.with_flat_values(characters_before(texts, values.flat_values, rows))
            for values in (starts, ends)
        )
        ends_word = tf.concat([begins[1:], tf.ones_like(begins[:1])], axis=0)
        return TextDocuments(
            features,
            segmented,
            char_starts,
            char_ends,
            tf.ragged.boolean_mask(char_starts, ids.with_flat_values(begins)),
            tf.ragged.boolean_mask(char_ends, ids.with_flat_values(ends_word)),
        )


def _speakers_of_positions(
    segmented: SegmentedDocuments, lines: tf.RaggedTensor, speakers: tf.Tensor | None
) -> tf.RaggedTensor:
    """The number of each position's speaker, ragged int32 [N, positions]."""
    pieces = segmented.pieces.flat_values
    rows = segmented.pieces.value_rowids()
    is_special = pieces == NO_PIECE
    if speakers is None:
        numbers = tf.zeros_like(pieces)
    else:
        names = tf.strings.split(speakers, "\n")  # ragged [N, names]
        places = tf.cast(tf.gather(lines.row_starts(), rows), tf.int32) + tf.maximum(pieces, 0)
        flat_lines = tf.concat([lines.flat_values, [0]], axis=0)  # never empty
        line = tf.gather(flat_lines, tf.minimum(places, tf.size(flat_lines) - 1))
        is_named = line < tf.gather(tf.cast(names.row_lengths(), tf.int32), rows)
        flat_names = tf.concat([names.flat_values, [""]], axis=0)
        number = tf.cast(tf.gather(names.row_starts(), rows), tf.int32) + line
        name = tf.gather(flat_names, tf.where(is_named, number, tf.size(flat_names) - 1))
        name = tf.strings.strip(name)
        hashed = SPECIAL_SPEAKER + 1 + tf.strings.to_hash_bucket_fast(name, _NAMES)
        numbers = tf.where(name == "", NO_SPEAKER, tf.cast(hashed, tf.int32))
    return segmented.pieces.with_flat_values(tf.where(is_special, SPECIAL_SPEAKER, numbers))
