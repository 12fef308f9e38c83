"""Cuts raw text into words as data that mark their words do (CoNLL's columns), in a graph.

N texts, T tokens of all texts, which stand between spaces.
"""

import tensorflow as tf
import tensorflow_text as tf_text

from spanbert_tf.text.positions import TITLES

# BERT's tokenizer cuts at all of these, too, so that a word is one or more of its words.
_SPACES = r"[ \t\n\r\p{Zs}]+"
_IDEOGRAPH = (
    r"[\x{3400}-\x{4DBF}\x{4E00}-\x{9FFF}\x{F900}-\x{FAFF}\x{20000}-\x{2A6DF}\x{2A700}-\x{2CEAF}"
    r"\x{2F800}-\x{2FA1F}]"
)
# BERT's punctuation without `@`, `#` and `+`, which are parts of names: @ann, #oslo, C++.
_ASCII_MARKS = r"!-\"$-*,-/:-?\[-`{-~"
_MARK = rf"(?:[{_ASCII_MARKS}]|[^\x00-\x7F\P{{P}}])"
_OTHER = rf"(?:[^{_ASCII_MARKS}\p{{P}}]|[@#])"

_ABBREVIATION = rf"(?:\p{{L}}{{1,2}}\.){{2,}}|(?:\p{{Lu}}|{TITLES})\."
_CORE = rf"{_ABBREVIATION}|{_OTHER}(?:.*?{_OTHER})??"
_PARTS = rf"(?s)^({_MARK}*?)({_CORE})?(['\x{{2019}}][sS])?({_MARK}*)$"


def word_starts(texts: tf.Tensor) -> tf.RaggedTensor:
    """The first bytes of the words of texts.

    Words stand between spaces. Punctuation at their ends is cut off, each mark a word of its own,
    and so is `'s`; an abbreviation keeps its full stop: `U.S.`, `J.`, `Dr.`. Nothing else is cut
    inside: `co-op`, `www.oslo.no`. An ideograph is a word.

    Args:
        texts: string [N], UTF-8.

    Returns:
        Ragged int64 [N, words].
    """
    tokens, token_starts, _ = tf_text.regex_split_with_offsets(
        texts, f"{_SPACES}|{_IDEOGRAPH}", _IDEOGRAPH
    )
    parts = [
        tf.strings.regex_replace(tokens.flat_values, _PARTS, rf"\{number}") for number in (1, 2, 3)
    ]
    marks, core, possessive = (tf.strings.length(part) for part in parts)  # bytes, int32 [T]
    core_ends = marks + core
    tail_starts = core_ends + possessive

    lengths = tf.strings.length(tokens.flat_values)
    content = tf.io.decode_raw(tf.strings.reduce_join(tokens.flat_values), tf.uint8)  # of all
    is_character = tf.bitwise.bitwise_and(content, tf.constant(0xC0, tf.uint8)) != 0x80
    token_of_byte = tf.repeat(tf.range(tf.size(lengths)), lengths)
    places = tf.ragged.range(lengths).flat_values  # of each byte in its token

    def of_bytes(values: tf.Tensor) -> tf.Tensor:
        return tf.gather(values, token_of_byte)

    is_start = is_character & (
        (places <= of_bytes(marks))
        | (places == of_bytes(core_ends))
        | (places >= of_bytes(tail_starts))
    )
    starts = of_bytes(token_starts.flat_values) + tf.cast(places, tf.int64)
    rows = of_bytes(tokens.value_rowids())
    return tf.RaggedTensor.from_value_rowids(
        starts[is_start], rows[is_start], tf.size(texts, tf.int64)
    )
