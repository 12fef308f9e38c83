"""Makes documents of any length for a coreference resolver, in a graph.

Texts become documents of words and sentences; documents become segments that an encoder can read,
each `[CLS] pieces [SEP]`; segments become dense batches. Preparation, preprocessor and exports use
these rules (original `minimize.py`): a segment ends at the last end of a sentence that fits, or of
a word if the sentence is longer than a segment. A longer word is cut.

N or B documents, P pieces of all of them, Q segments of all of them, T positions (of all documents,
or of the longest), special tokens counted; G segments of the longest, L positions of a segment.
"""

from typing import NamedTuple

import tensorflow as tf

from spanbert_tf.data.manifest import NO_SPEAKER, SPECIAL_SPEAKER
from spanbert_tf.text.positions import (
    changes,
    find_sentences,
    given_sentences,
    segment_positions,
)
from spanbert_tf.text.tokenization import WordPieceTokenizer, characters_before
from spanbert_tf.text.vocabulary import SpecialTokenIds, TextRules, begin_words

NO_PIECE = -1
NO_SENTENCE = -1  # of padding
_SEGMENT_MULTIPLE = 32  # L of texts is rounded up to it, so that shapes are few
_NAMES = 2**31 - 3  # names are told apart by a hash


class SegmentedDocuments(NamedTuple):
    """Documents with special tokens; ragged int32 [N, positions] unless it says otherwise.

    Attributes:
        segment_lengths: positions of each segment, ragged int32 [N, segments]; at least one.
        token_ids: ids of the vocabulary.
        pieces: number of the piece in its document; `NO_PIECE` for a special token.
        sentence_indices: index of the sentence, from 0. A [SEP] after the end of a sentence has
            the index of the next sentence, like the [CLS] after it.
        word_indices: index of the word. A [CLS] has the index of the word before it (0 for the
            first), a [SEP] that of the last word.
    """

    segment_lengths: tf.RaggedTensor
    token_ids: tf.RaggedTensor
    pieces: tf.RaggedTensor
    sentence_indices: tf.RaggedTensor
    word_indices: tf.RaggedTensor


class TextDocuments(NamedTuple):
    """Texts as a model reads them, and the places of their words.

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

    Words are BERT's: white space and punctuation separate them. A line end ends a sentence.

    Args:
        vocabulary: entries in order of their ids.
        text_rules: what is done to the text.
        sequence_length: largest number of positions of a segment.
    """

    def __init__(self, vocabulary: list[str], text_rules: TextRules, sequence_length: int) -> None:
        super().__init__()
        self._tokenizer = WordPieceTokenizer.shared(vocabulary, text_rules)
        self._begins_word = tf.constant(begin_words(vocabulary))  # [V]
        self._sequence_length = sequence_length
        self._language = text_rules.language
        self._special = SpecialTokenIds.from_vocabulary(vocabulary)

    def __call__(
        self,
        texts: tf.Tensor,
        speakers: tf.Tensor | None = None,
        sentence_starts: tf.Tensor | None = None,
    ) -> TextDocuments:
        """Reads texts of any length.

        Args:
            texts: string [N]; bytes that are no UTF-8 are replaced.
            speakers: string [N], names with line ends between them: one for each line of the text
                that has words; none for lines without a name.
            sentence_starts: int32 [N, S], see `given_sentences`; by default Python finds the
                sentences, which the graph of an export cannot do.
        """
        texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
        ids, starts, ends = self._tokenizer.tokenize_with_offsets(texts)
        rows = ids.value_rowids()  # [P]
        if sentence_starts is None:
            sentence_bytes = find_sentences(texts, self._language)
        else:
            sentence_bytes = given_sentences(texts, sentence_starts, self._language)
        places = segment_positions(texts, starts, sentence_bytes, first_paragraph=0)
        lines = places.paragraph_indices.flat_values
        is_new = changes(lines) | changes(places.sentence_indices.flat_values) | changes(rows)
        sentences = ids.with_flat_values(tf.cumsum(tf.cast(is_new, tf.int32)))
        begins = tf.gather(self._begins_word, ids.flat_values) | changes(rows)  # [P]
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
        longest = tf.maximum(tf.reduce_max(segmented.segment_lengths.flat_values), 0)  # of no texts
        rounded = longest + -longest % _SEGMENT_MULTIPLE
        features = pack_documents(
            segmented.segment_lengths,
            segmented.token_ids,
            segmented.pieces.with_flat_values(is_special),
            segmented.sentence_indices,
            segmented.word_indices,
            _speakers_of_positions(segmented, places.paragraph_indices, speakers),
            tf.zeros([ids.nrows()], tf.int32),
            pad_id=self._special.pad,
            segment_length=tf.minimum(rounded, self._sequence_length),
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
    """Numbers the speaker of each position, ragged int32 [N, positions]."""
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

    All are ragged int32 [N, pieces]. Indices of sentences and words ascend in a document; only
    their changes matter.
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
        """Looks up values [P] at places [T]; 0 before the document's first piece."""
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
    """Finds where the next piece of the document is missing or has another value; bool [P]."""
    changes = tf.concat([values[1:] != values[:-1], tf.ones_like(values[:1], tf.bool)], axis=0)
    last = tf.boolean_mask(splits[1:] - 1, splits[1:] > splits[:-1])  # [documents with pieces]
    is_last = tf.scatter_nd(last[:, tf.newaxis], tf.ones_like(last), tf.shape(values)) > 0
    return changes | is_last


# A graph, since a book has thousands of turns: 1.1 MB of text took 12.8 s outside of one, and 1.8 s
# in one.
@tf.function(
    input_signature=[
        tf.TensorSpec([None], tf.int32),
        tf.TensorSpec([None], tf.bool),
        tf.TensorSpec([None], tf.bool),
        tf.TensorSpec([], tf.int32),
    ],
    autograph=False,
)
def _cut(
    splits: tf.Tensor, sentence_ends: tf.Tensor, word_ends: tf.Tensor, max_pieces: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Cuts segments: document, first piece and the piece after the last, int32 [Q] each.

    Each turn of the loop cuts the next segment of every document.
    """
    document_ends = splits[1:]  # [N]

    def pieces_after(is_end: tf.Tensor) -> tf.Tensor:
        """Returns 0, and the piece after each end, ascending."""
        return tf.concat([[0], tf.cast(tf.where(is_end)[:, 0], tf.int32) + 1], axis=0)

    ends_of_sentences = pieces_after(sentence_ends)
    ends_of_words = pieces_after(word_ends)

    def last_end(ends: tf.Tensor, limits: tf.Tensor) -> tf.Tensor:
        """Returns the last end that is not beyond each limit [N]; 0 without one."""
        return tf.gather(ends, tf.searchsorted(ends, limits, side="right") - 1)

    def is_unfinished(turn: tf.Tensor, starts: tf.Tensor, found: tf.TensorArray) -> tf.Tensor:
        return (turn == 0) | tf.reduce_any(starts < document_ends)

    def cut_next(turn: tf.Tensor, starts: tf.Tensor, found: tf.TensorArray) -> tuple:
        limits = tf.minimum(starts + max_pieces, document_ends)
        of_sentence = last_end(ends_of_sentences, limits)
        of_word = last_end(ends_of_words, limits)
        ends = tf.where(of_word > starts, of_word, limits)
        ends = tf.where(of_sentence > starts, of_sentence, ends)
        return turn + 1, ends, found.write(turn, ends)

    found = tf.TensorArray(tf.int32, size=0, dynamic_size=True, element_shape=[None])
    _, _, found = tf.while_loop(
        is_unfinished, cut_next, (tf.constant(0), splits[:-1], found), parallel_iterations=1
    )
    ends = tf.transpose(found.stack())  # [N, turns]
    starts = tf.concat([splits[:-1, tf.newaxis], ends[:, :-1]], axis=1)
    # A document of no pieces has one segment, in the first turn.
    is_segment = (ends > starts) | (tf.range(tf.shape(ends)[1]) == 0)
    documents = tf.cast(tf.where(is_segment)[:, 0], tf.int32)
    return documents, tf.boolean_mask(starts, is_segment), tf.boolean_mask(ends, is_segment)


def pack_documents(
    segment_lengths: tf.RaggedTensor,
    token_ids: tf.RaggedTensor,
    is_special: tf.RaggedTensor,
    sentence_indices: tf.RaggedTensor,
    word_indices: tf.RaggedTensor,
    speaker_ids: tf.RaggedTensor,
    genre_ids: tf.Tensor,
    *,
    pad_id: int,
    segment_length: tf.Tensor,
    num_segments: int | None = None,
    width: tf.Tensor | None = None,
) -> dict[str, tf.Tensor]:
    """Makes the features of a batch.

    Args:
        segment_lengths: ragged int32 [B, segments].
        token_ids: ragged int32 [B, positions], as the next four.
        is_special: bool, [CLS] and [SEP].
        sentence_indices: see `segment_documents`.
        word_indices: see `segment_documents`.
        speaker_ids: any numbers; those of one speaker are equal.
        genre_ids: int32 [B].
        pad_id: id of [PAD].
        segment_length: L.
        num_segments: G; the largest number of segments of a document by default.
        width: T; the length of the longest document by default.

    Returns:
        `token_ids`, `padding_mask`, int32 [B, G, L]; of each position of a document
        `piece_positions` (where it stands in the G · L), `sentence_indices` (`NO_SENTENCE` for
        padding), `word_indices`, `speaker_ids`, `segment_indices`, `begins_word`, `ends_word`,
        int32 [B, T]; `genre_ids`, int32 [B].
    """
    lengths = segment_lengths.flat_values  # [Q]
    by_segment = segment_lengths.with_flat_values(
        tf.RaggedTensor.from_row_lengths(token_ids.flat_values, tf.cast(lengths, tf.int64))
    )  # ragged [B, segments, positions]
    dense = by_segment.to_tensor(pad_id)  # [B, most segments, longest]
    _, most, longest = tf.unstack(tf.shape(dense))
    more = 0 if num_segments is None else num_segments - most
    paddings = [[0, 0], [0, more], [0, segment_length - longest]]
    dense = tf.pad(dense, paddings, constant_values=pad_id)  # [B, G, L]
    sizes = tf.pad(segment_lengths.to_tensor(0), paddings[:2])
    padding_mask = tf.sequence_mask(sizes, segment_length, tf.int32)

    documents = segment_lengths.value_rowids()  # [Q]
    own_number = tf.range(tf.size(lengths)) - tf.cast(
        tf.gather(segment_lengths.row_starts(), documents), tf.int32
    )  # of each segment in its document, [Q]
    segment = tf.repeat(tf.range(tf.size(lengths)), lengths)  # of each position, flat
    in_segment = tf.range(tf.size(segment)) - tf.gather(tf.cumsum(lengths, exclusive=True), segment)
    segment_indices = tf.gather(own_number, segment)
    places = segment_indices * segment_length + in_segment
    begins, ends = _word_borders(word_indices.flat_values, is_special.flat_values)

    def padded(values: tf.RaggedTensor, default: int = 0) -> tf.Tensor:
        dense = values.to_tensor(default)
        after = 0 if width is None else width - tf.shape(dense)[1]
        return tf.pad(dense, [[0, 0], [0, after]], constant_values=default)  # [B, T]

    return {
        "token_ids": dense,
        "padding_mask": padding_mask,
        "piece_positions": padded(token_ids.with_flat_values(places)),
        "sentence_indices": padded(sentence_indices, NO_SENTENCE),
        "word_indices": padded(word_indices),
        "speaker_ids": padded(speaker_ids),
        "segment_indices": padded(token_ids.with_flat_values(segment_indices)),
        "begins_word": padded(token_ids.with_flat_values(begins)),
        "ends_word": padded(token_ids.with_flat_values(ends)),
        "genre_ids": genre_ids,
    }


def _word_borders(words: tf.Tensor, is_special: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Finds the first and the last position of each word, int32; special tokens are neither."""
    changes = words[1:] != words[:-1]
    begins = ~is_special & tf.concat([[True], changes | is_special[:-1]], axis=0)
    ends = ~is_special & tf.concat([changes | is_special[1:], [True]], axis=0)
    return tf.cast(begins, tf.int32), tf.cast(ends, tf.int32)
