"""Texts as preprocessors take them.

B texts.
"""

from typing import TypeVar

import tensorflow as tf

Outputs = TypeVar("Outputs")


def flat_texts(texts: tf.Tensor) -> tf.Tensor:
    """Texts as string [B].

    Args:
        texts: string [B], [B, 1] (a column of a table) or [] (one text).

    Raises:
        ValueError: they have another shape; flattened, each input would become several.
    """
    texts = tf.convert_to_tensor(texts)  # outside of a graph NumPy's strings come as they are
    if texts.shape.rank is not None and any(size != 1 for size in texts.shape[1:]):
        raise ValueError(
            "texts must have the shape [batch]; give pairs as a tuple of two, "
            f"x=(first, second). Received: {list(texts.shape)}"
        )
    return tf.reshape(texts, [-1])


def is_one_text(texts: tf.Tensor) -> bool:
    """Whether it is one text, string [], so that the outputs have no dimension B either."""
    return tf.convert_to_tensor(texts).shape.rank == 0


def of_one_text(outputs: Outputs) -> Outputs:
    """A structure of tensors [1, …] without their first dimension."""
    return tf.nest.map_structure(lambda values: values[0], outputs)
