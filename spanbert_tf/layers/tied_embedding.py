"""The token embedding that also gives the logits of the heads."""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="spanbert_tf")
class TiedEmbedding(keras.layers.ReversibleEmbedding):
    """`keras.layers.ReversibleEmbedding` whose reverse multiplies matrices, not batches of them.

    With inputs [B, K, H], TensorFlow's batched product repeats the table for each example, and
    its gradient is B tables of [H, V] that are then added up: on a base model that alone took
    half of a step. Rows of all examples as one matrix [B · K, H] need one table.

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
        # Keras' embeddings do not cast by themselves: under mixed precision this product, the
        # largest of all, would be in float32.
        table = ops.cast(self.embeddings, self.compute_dtype)  # [V, H]
        logits = ops.matmul(ops.cast(rows, self.compute_dtype), ops.transpose(table))
        return ops.reshape(logits, (*ops.shape(inputs)[:-1], self.input_dim))
