"""Operations that the graph functions of several tasks share.

Dimensions: N texts, R rows of all of them, C rows of a chunk.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from spanbert_tf.files.text_files import without_surrogates
from spanbert_tf.serving.description import Description
from spanbert_tf.text.sentences import find_sentence_starts

MAX_ROWS = 32  # rows of a chunk: the default batch size of `predict`


def text_specs(*names: str) -> list[tf.TensorSpec]:
    """Returns the specs of a signature's inputs that are texts, string [N]."""
    return [tf.TensorSpec([None], tf.string, name=name) for name in names]


def sentence_specs(*names: str) -> list[tf.TensorSpec]:
    """Returns the specs of a signature's inputs for `given_sentences`, int32 [N, sentences]."""
    return [tf.TensorSpec([None, None], tf.int32, name=name) for name in names]


def no_sentences(texts: tf.Tensor) -> tf.Tensor:
    """Returns the input for `given_sentences` that gives none for texts, string [N]."""
    return tf.zeros([tf.size(texts), 0], tf.int32)


def string_tensor(texts: Sequence[str]) -> tf.Tensor:
    """Converts texts to a tensor, string [N]. Halves of surrogate pairs, as in JSON, become `?`."""
    return tf.constant([text.encode("utf-8", "replace") for text in texts], tf.string)


def sentences_of(description: Description, text: str) -> list[int]:
    """Finds the first characters of the sentences of a raw text, as records are split.

    Args:
        description: what tells the language of the model.
        text: the text that a graph gets through `string_tensor`.
    """
    language = description.text_rules.language
    return find_sentence_starts(without_surrogates(text), language)


def map_row_chunks(
    function: Callable[[Any], Any],
    rows: Any,
    dtypes: Any,
    max_rows: int | tf.Tensor = MAX_ROWS,
) -> Any:
    """Applies a function to one chunk of rows after the other, so that memory is bounded.

    It works in a graph and eagerly.

    Args:
        function: takes a chunk, the structure of `rows` with tensors [C, …], and returns a
            structure of tensors [C, …].
        rows: a structure of tensors [R, …].
        dtypes: the structure of the types that the function returns.
        max_rows: the largest C. All chunks have the same size; the last row is repeated to fill the
            last one.

    Returns:
        The structure that the function returns, with tensors [R, …].
    """
    num_rows = tf.shape(tf.nest.flatten(rows)[0])[0]
    num_chunks = tf.maximum(-(-num_rows // max_rows), 1)  # one call even if there are no rows
    size = -(-num_rows // num_chunks)  # C

    def of_chunk(index: tf.Tensor) -> Any:
        taken = tf.minimum(index * size + tf.range(size), num_rows - 1)
        chunk = tf.nest.map_structure(lambda values: tf.gather(values, taken), rows)
        return function(chunk)

    chunks = tf.map_fn(
        of_chunk, tf.range(num_chunks), parallel_iterations=1, fn_output_signature=dtypes
    )

    def joined(values: tf.Tensor) -> tf.Tensor:
        shape = tf.concat([[num_chunks * size], tf.shape(values)[2:]], axis=0)
        return tf.reshape(values, shape)[:num_rows]

    return tf.nest.map_structure(joined, chunks)
