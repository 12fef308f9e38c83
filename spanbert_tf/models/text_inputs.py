"""Texts as preprocessors take them.

B texts.
"""

import tensorflow as tf


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
