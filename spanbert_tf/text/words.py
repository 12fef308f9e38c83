"""Cuts raw text into words as data that mark their words do (CoNLL's columns), in a graph.

N texts, T tokens of all texts, which stand between spaces.
"""

import tensorflow as tf

TITLES = r"(?:Mr|Mrs|Ms|Dr|Prof|St|Sr|Jr|Gen|Col|Lt|Capt|Sgt|Rev|Gov|Sen|Rep|No|vs)"
# BERT's tokenizer cuts at all of these, too, so that a word is one or more of its words.
# Spaces of so many bytes; and the characters of Chinese, its punctuation included.
_SPACES = {
    1: r"[\t\n\r]",
    2: r"\x{A0}",
    3: r"[\x{1680}\x{2000}-\x{200A}\x{202F}\x{205F}\x{3000}]",
}
_IDEOGRAPH = (
    r"[\x{3400}-\x{4DBF}\x{4E00}-\x{9FFF}\x{F900}-\x{FAFF}"
    r"\x{20000}-\x{2A6DF}\x{2A700}-\x{2CEAF}\x{2F800}-\x{2FA1F}"
    r"\x{3001}-\x{3003}\x{3008}-\x{3011}\x{3014}-\x{301F}"
    r"\x{FF01}-\x{FF03}\x{FF05}-\x{FF0A}\x{FF0C}-\x{FF0F}\x{FF1A}\x{FF1B}\x{FF1F}\x{FF20}"
    r"\x{FF3B}-\x{FF3D}\x{FF3F}\x{FF5B}\x{FF5D}\x{FF5F}-\x{FF65}]"
)
# BERT's punctuation without `@`, `#` and `+`, which are parts of names: @ann, #oslo, C++.
_ASCII_MARKS = r"!-\"$-*,-/:-?\[-`{-~"
_MARK = rf"(?:[{_ASCII_MARKS}]|[^\x00-\x7F\P{{P}}])"
_OTHER = rf"(?:[^{_ASCII_MARKS}\p{{P}}]|[@#])"

_ABBREVIATION = rf"(?:\p{{L}}{{1,2}}\.){{2,}}|(?:\p{{Lu}}|{TITLES})\."
_CORE = rf"{_ABBREVIATION}|{_OTHER}(?:.*?{_OTHER})??"
_PARTS = rf"(?s)^({_MARK}*?)({_CORE})?(['\x{{2019}}][sS])?({_MARK}*)$"


def word_starts(texts: tf.Tensor) -> tf.RaggedTensor:
    """Finds the first bytes of the words of texts.

    Words stand between spaces. Punctuation at their ends is cut off, each mark a word of its own,
    and so is `'s`; an abbreviation keeps its full stop: `U.S.`, `J.`, `Dr.`. Nothing else is cut
    inside: `co-op`, `www.oslo.no`. Each character of Chinese is a word.

    (Operations of TensorFlow alone: servers lack some of TensorFlow Text's.)

    Args:
        texts: string [N], UTF-8.

    Returns:
        Ragged int64 [N, words].
    """
    for size, pattern in _SPACES.items():
        texts = tf.strings.regex_replace(texts, pattern, " " * size)
    content = tf.io.decode_raw(tf.strings.reduce_join(texts), tf.uint8)  # of all texts
    is_inside = content != ord(" ")
    # The tokens hold these bytes, in this order.
    text_lengths = tf.strings.length(texts)
    of_texts = (
        tf.ragged.range(text_lengths).flat_values,  # the place of each byte in its text
        tf.repeat(tf.range(tf.size(texts)), text_lengths),
        tf.bitwise.bitwise_and(content, tf.constant(0xC0, tf.uint8)) != 0x80,
    )
    places, rows, begins_character = (values[is_inside] for values in of_texts)
    tokens = tf.strings.regex_replace(texts, _IDEOGRAPH, r" \0 ")
    tokens = tf.strings.split(tokens, " ").flat_values  # some are empty

    # One call: matching takes most of this function's time.
    parts = tf.strings.split(tf.strings.regex_replace(tokens, _PARTS, r"\1 \2 \3"), " ")
    sizes = tf.strings.length(parts.to_tensor(shape=[None, 3]))  # bytes, int32 [T, 3]
    marks, core, possessive = tf.unstack(sizes, axis=1)
    lengths = tf.strings.length(tokens)
    in_token = tf.ragged.range(lengths).flat_values  # the place of each byte in its token
    begins_word = begins_character & (
        (in_token <= tf.repeat(marks, lengths))
        | (in_token == tf.repeat(marks + core, lengths))
        | (in_token >= tf.repeat(marks + core + possessive, lengths))
    )
    return tf.RaggedTensor.from_value_rowids(
        tf.cast(places[begins_word], tf.int64),
        tf.cast(rows[begins_word], tf.int64),
        tf.size(texts, tf.int64),
    )
