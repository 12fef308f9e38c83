"""The token embedding, to which the heads over the vocabulary are tied.

Shapes: B rows, S positions, K prediction slots, H width, V entries of the vocabulary.
"""

import keras
from keras import ops

from spanbert_tf.layers import operations


@keras.saving.register_keras_serializable(package="spanbert_tf")
class TiedEmbedding(keras.layers.ReversibleEmbedding):
    """A `keras.layers.ReversibleEmbedding` whose reverse is one product of two matrices.

    The reverse of Keras' layer is a batched product of inputs [B, K, H]. TensorFlow repeats the
    table for each row, and computes B gradients of shape [H, V] that it then adds up, which took
    half of the step of a base model. Here the inputs of all rows form a matrix [B · K, H].

    Call arguments:
        inputs: int ids [B, S]; with `reverse`, floats [B, K, H].
        reverse: bool. Whether to return logits.

    Returns:
        Embeddings [B, S, H], or logits [B, K, V].
    """

    def call(self, inputs: keras.KerasTensor, reverse: bool = False) -> keras.KerasTensor:
        if not reverse:
            return super().call(inputs)
        rows = ops.reshape(inputs, (-1, inputs.shape[-1]))  # [B · K, H]
        # Keras' embeddings do not cast to the compute dtype. Without the cast, this product, the
        # largest of the model, would be in float32 under mixed precision.
        table = ops.cast(self.embeddings, self.compute_dtype)  # [V, H]
        logits = operations.tied_logits(ops.cast(rows, self.compute_dtype), table)  # [B · K, V]
        return ops.reshape(logits, (*ops.shape(inputs)[:-1], self.input_dim))
