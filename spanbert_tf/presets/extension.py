"""Adds whole words to the vocabulary of a preset.

A word takes the row of an entry `[unusedN]` while there are some, and a new row then. Its embedding
and its biases begin as the means of those of its pieces (Gee et al., 2022, section 2).
"""

import functools
import re
from collections.abc import Mapping, Sequence

import keras
import numpy as np

from spanbert_tf.errors import BadInputError
from spanbert_tf.files.kinds import convert_keras_command
from spanbert_tf.files.preset import is_adapter
from spanbert_tf.layers import weights_are_loaded
from spanbert_tf.models import (
    SpanBertBackbone,
    SpanBertMaskedLM,
    SpanBertMaskedLMPreprocessor,
    SpanBertTokenizer,
)
from spanbert_tf.models.pretraining_heads import write_heads
from spanbert_tf.presets.preset import Preset
from spanbert_tf.presets.writing import write_preset
from spanbert_tf.text.vocabulary import find_unused_entries

# The head of the span boundary objective has a bias for each entry of the vocabulary, too.
_SPAN_BOUNDARY_BIAS = re.compile(r"(?:.*/)?span_boundary_head/bias")


def tokenizer_to_extend(preset: Preset) -> SpanBertTokenizer:
    """Returns the tokenizer of a preset whose vocabulary can be extended.

    Raises:
        BadInputError: it is another project's preset, or an adapter.
    """
    if is_adapter(preset.name):
        raise BadInputError(
            f"{preset}: is an adapter, whose encoder lies elsewhere; extend the encoder's "
            "vocabulary, and train a new adapter on it"
        )
    tokenizer = preset.tokenizer
    if not isinstance(tokenizer, SpanBertTokenizer):
        raise BadInputError(
            f"{preset}: its tokenizer is a {type(tokenizer).__name__}, not a SpanBertTokenizer; "
            f"{convert_keras_command(preset.name)}"
        )
    return tokenizer


def extend_preset(
    preset: Preset,
    words: Sequence[str],
    output: str,
    *,
    num_markers: int,
    facts: Mapping[str, str] | None = None,
    overwrite: bool = False,
) -> SpanBertTokenizer:
    """Writes a preset whose vocabulary has further words, each of them one piece.

    The new preset holds the encoder and the trained heads of pre-training. The encoder's outputs
    for a text in which no word begins with an added one stay the same to the bit.

    Args:
        preset: the preset.
        words: the words, normalized as the tokenizer does it, none of them in the vocabulary.
        output: directory of the new preset.
        num_markers: how many entries `[unused1]`, `[unused2]` … stay, for the markers of relation
            extraction, which are taken in this order (`make_markers`).
        facts: further lines of the model card: what → value.
        overwrite: whether an earlier preset may be replaced.

    Returns:
        The new tokenizer.

    Raises:
        BadInputError: the preset or the output cannot be used.
    """
    tokenizer = tokenizer_to_extend(preset)
    backbone, masked_lm_head = preset.encoder_and_masked_lm_head()
    pieces = tokenizer.tokenize(list(words))  # of a list of texts it returns a list
    vocabulary, rows = _place(words, tokenizer.get_vocabulary(), num_markers)
    pieces_of_row = dict(zip(rows, pieces, strict=True))

    options = tokenizer.get_config() | {"vocabulary": vocabulary}
    new_tokenizer = SpanBertTokenizer.from_config(options)
    # Embeddings may be padded beyond the vocabulary.
    num_rows = max(len(vocabulary), backbone.vocabulary_size)
    options = backbone.get_config() | {"vocabulary_size": num_rows}
    with weights_are_loaded():
        new_backbone = SpanBertBackbone.from_config(options)
    _assign(new_backbone, backbone, pieces_of_row)
    model: SpanBertBackbone | SpanBertMaskedLM = new_backbone
    if masked_lm_head is not None:
        options = SpanBertMaskedLMPreprocessor.from_preset(preset.name).get_config()
        options["tokenizer"] = new_tokenizer
        preprocessor = SpanBertMaskedLMPreprocessor.from_config(options)
        with weights_are_loaded():
            model = SpanBertMaskedLM(new_backbone, preprocessor)
        _assign(model.masked_lm_head, masked_lm_head, pieces_of_row)
        model.is_head_trained = True
    heads = dict(preset.heads)
    for name, values in heads.items():
        if _SPAN_BOUNDARY_BIAS.fullmatch(name):
            heads[name] = _with_words(values, pieces_of_row, num_rows)
    write_preset(
        model,
        output,
        tokenizer=new_tokenizer if masked_lm_head is None else None,
        write_more=functools.partial(write_heads, heads),
        more_bytes=sum(values.nbytes for values in heads.values()),
        facts=facts,
        overwrite=overwrite,
    )
    return new_tokenizer


def _place(
    words: Sequence[str], vocabulary: Sequence[str], num_markers: int
) -> tuple[list[str], list[int]]:
    """Returns the vocabulary with the words in it, and the row of each word."""
    extended = list(vocabulary)
    free = [extended.index(entry) for entry in find_unused_entries(extended)[num_markers:]]
    rows = free[: len(words)]
    for row, word in zip(rows, words, strict=False):
        extended[row] = word
    for word in words[len(rows) :]:
        rows.append(len(extended))
        extended.append(word)
    return extended, rows


def _assign(
    new: keras.layers.Layer,
    old: keras.layers.Layer,
    pieces_of_row: Mapping[int, Sequence[int]],
) -> None:
    """Gives a layer the weights of another one, and the words their rows in embedding and bias."""
    for variable, found in zip(new.weights, old.weights, strict=True):
        values = keras.ops.convert_to_numpy(found)
        if variable.path.endswith(("token_embedding/embeddings", "masked_lm_head/output_bias")):
            values = _with_words(values, pieces_of_row, variable.shape[0])
        variable.assign(values)


def _with_words(
    values: np.ndarray, pieces_of_row: Mapping[int, Sequence[int]], num_rows: int
) -> np.ndarray:
    """Adds the values of words, the means of their pieces', to those of a vocabulary's entries.

    Args:
        values: float [entries, …].
        pieces_of_row: row of a word → the rows of the pieces that stood for it.
        num_rows: the number of rows with the words, `R`.

    Returns:
        Values of the same dtype, [R, …].
    """
    shape = (num_rows, *values.shape[1:])
    extended = np.zeros(shape, values.dtype)
    extended[: len(values)] = values
    for row, pieces in pieces_of_row.items():
        extended[row] = np.mean(values[list(pieces)], axis=0, dtype=np.float64)
    return extended
