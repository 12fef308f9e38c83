"""Which tokens of a passage an answer covers, for training on raw texts.

B passages.
"""

import numpy as np
import tensorflow as tf

_NONE = -1


def tokens_of_answers(
    passages: tf.Tensor,
    answers: tf.Tensor | tuple[tf.Tensor, tf.Tensor],
    token_starts: tf.RaggedTensor,
    token_ends: tf.RaggedTensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    """The first and the last token of each answer.

    Args:
        passages: string [B], in UTF-8.
        answers: string [B], whose first occurrences count; or a tuple of those and int [B], the
            characters where they begin.
        token_starts: int [B, tokens], first byte of each token of the passages.
        token_ends: int [B, tokens], the byte after each token.

    Returns:
        int32 [B] each, the last one inclusive; -1 where the answer is empty, does not stand in the
        passage, or covers no token.

    Raises:
        ValueError: `answers` are not strings.
    """
    texts, characters = answers if isinstance(answers, tuple) else (answers, None)
    texts = tf.reshape(texts, [-1])
    if texts.dtype != tf.string:
        raise ValueError(
            f"y must be the answers as strings, a tuple (answers, starts), or a dict of "
            f"start_positions and end_positions. Received: {texts.dtype.name}"
        )
    if characters is None:
        begins = tf.numpy_function(_find, [passages, texts], tf.int64, stateful=False)
        begins = tf.cast(tf.ensure_shape(begins, [None]), tf.int32)
    else:
        begins = _byte_places(passages, texts, tf.cast(tf.reshape(characters, [-1]), tf.int32))
    sizes = tf.strings.length(texts)
    is_there = (begins >= 0) & (sizes > 0)
    starts, ends = (
        tf.cast(values.to_tensor(values.dtype.max), tf.int64)  # [B, T], padding after all others
        for values in (token_starts, token_ends)
    )
    begin = tf.cast(begins, tf.int64)[:, tf.newaxis]
    stop = begin + tf.cast(sizes, tf.int64)[:, tf.newaxis]
    # Tokens that end before the answer begins, and tokens that begin before it ends.
    first = _count(ends <= begin)
    last = _count(starts < stop) - 1
    is_there &= first <= last
    return tf.where(is_there, first, _NONE), tf.where(is_there, last, _NONE)


def _count(flags: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.cast(flags, tf.int32), axis=1)


def _find(passages: np.ndarray, texts: np.ndarray) -> np.ndarray:
    """The first byte of the first occurrence; -1 for none."""
    pairs = zip(passages, texts, strict=True)
    return np.array([passage.find(text) for passage, text in pairs], np.int64)


def _byte_places(passages: tf.Tensor, texts: tf.Tensor, characters: tf.Tensor) -> tf.Tensor:
    """Bytes of characters of passages; -1 where the text does not stand there."""
    lengths = tf.strings.length(passages, unit="UTF8_CHAR")
    inside = tf.clip_by_value(characters, 0, lengths)
    before = tf.strings.substr(passages, tf.zeros_like(inside), inside, unit="UTF8_CHAR")
    places = tf.strings.length(before)
    found = tf.strings.substr(passages, places, tf.strings.length(texts))
    return tf.where((found == texts) & (inside == characters), places, _NONE)
