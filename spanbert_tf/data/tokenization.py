"""The one tokenizer of the project: preparation, presets and exports all call it."""

from collections.abc import Sequence

import tensorflow as tf
import tensorflow_text as tf_text

from spanbert_tf.vocabulary import CONTINUATION_PREFIX, UNKNOWN_TOKEN


def word_piece_tokenizer(
    vocabulary: Sequence[str], *, lowercase: bool
) -> tf_text.FastBertTokenizer:
    """BERT's text normalisation and WordPiece as two TensorFlow Text operations.

    Special tokens in the text are text: `[MASK]` becomes `[`, `MASK` (or its pieces), `]`.

    Args:
        vocabulary: entries in order of their ids.
        lowercase: lower-case the text and strip accents first (uncased vocabularies).

    Returns:
        A tokenizer whose `tokenize(strings [N])` gives a ragged int32 tensor [N, pieces].
    """
    return tf_text.FastBertTokenizer(
        list(vocabulary),
        suffix_indicator=CONTINUATION_PREFIX,
        unknown_token=UNKNOWN_TOKEN,
        token_out_type=tf.int32,
        lower_case_nfd_strip_accents=lowercase,
    )
