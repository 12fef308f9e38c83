"""Documents in segments as the dense batches that a coreference resolver reads.

B documents, G segments of the longest, L positions of a segment, T positions of a document.
"""

import tensorflow as tf

NO_SENTENCE = -1  # of padding
_SEGMENT_MULTIPLE = 32  # L is rounded up to it, so that shapes are few


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
    width: tf.Tensor | None = None,
    max_segment_length: int | None = None,
) -> dict[str, tf.Tensor]:
    """The features of a batch.

    Args:
        segment_lengths: ragged int32 [B, segments].
        token_ids: ragged int32 [B, positions], as the next four.
        is_special: bool, [CLS] and [SEP].
        sentence_indices: see `segment_documents`.
        word_indices: see `segment_documents`.
        speaker_ids: any numbers; those of one speaker are equal.
        genre_ids: int32 [B].
        pad_id: id of [PAD].
        width: T; that of the longest document by default.
        max_segment_length: L is not rounded up beyond it.

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
    dense = by_segment.to_tensor(pad_id)  # [B, G, longest]
    longest = tf.shape(dense)[2]
    room = -longest % _SEGMENT_MULTIPLE
    if max_segment_length is not None:
        room = tf.minimum(room, tf.maximum(max_segment_length - longest, 0))
    paddings = [[0, 0], [0, 0], [0, room]]
    dense = tf.pad(dense, paddings, constant_values=pad_id)  # [B, G, L]
    padding_mask = tf.sequence_mask(segment_lengths.to_tensor(0), tf.shape(dense)[2], tf.int32)

    documents = segment_lengths.value_rowids()  # [Q]
    own_number = tf.range(tf.size(lengths)) - tf.cast(
        tf.gather(segment_lengths.row_starts(), documents), tf.int32
    )  # of each segment in its document, [Q]
    segment = tf.repeat(tf.range(tf.size(lengths)), lengths)  # of each position, flat
    in_segment = tf.range(tf.size(segment)) - tf.gather(tf.cumsum(lengths, exclusive=True), segment)
    segment_indices = tf.gather(own_number, segment)
    places = segment_indices * tf.shape(dense)[2] + in_segment
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
    """Which positions are the first and the last of their word, int32; special tokens neither."""
    changes = words[1:] != words[:-1]
    begins = ~is_special & tf.concat([[True], changes | is_special[:-1]], axis=0)
    ends = ~is_special & tf.concat([changes | is_special[1:], [True]], axis=0)
    return tf.cast(begins, tf.int32), tf.cast(ends, tf.int32)
