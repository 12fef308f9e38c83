"""The layers over an encoder that give logits: dropout and a dense layer."""

import keras

from spanbert_tf.layers import bert_initializer


def classifier_layers(
    num_classes: int,
    dropout: float,
    dtype: str | keras.DTypePolicy,
    activation: str | None = None,
) -> tuple[keras.layers.Dropout, keras.layers.Dense]:
    """New layers, to be called one after the other on float [..., H].

    Args:
        num_classes: C, width of the output.
        dropout: rate before the dense layer.
        dtype: precision of both.
        activation: name of the dense layer's activation; `None`: linear.
    """
    return (
        keras.layers.Dropout(dropout, dtype=dtype, name="classifier_dropout"),
        keras.layers.Dense(
            num_classes,
            activation=activation,
            kernel_initializer=bert_initializer(),
            dtype=dtype,
            name="logits",
        ),
    )
