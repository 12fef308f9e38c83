"""The head of the masked-language model, and the token embedding that it is tied to.

B rows, S positions, K targets, H width, V vocabulary.
"""

import keras
import keras_hub
from keras import ops

from spanbert_tf.layers import operations
from spanbert_tf.layers.bert_initializer import bert_initializer


def masked_lm_head(backbone: keras_hub.models.Backbone) -> keras_hub.layers.MaskedLMHead:
    """KerasHub's head with BERT's exact GELU and the backbone's epsilon, tied to its embedding.

    Args:
        backbone: a `SpanBertBackbone`.

    Returns:
        A layer that takes the encoder's output [B, S, H] and `mask_positions` [B, K], and returns
        logits [B, K, V].
    """
    return keras_hub.layers.MaskedLMHead(
        vocabulary_size=backbone.vocabulary_size,
        token_embedding=backbone.token_embedding,
        intermediate_activation="gelu",  # Keras' default is the exact one (erf)
        layer_norm_epsilon=backbone.layer_norm_epsilon,
        kernel_initializer=bert_initializer(),
        dtype=backbone.dtype_policy,
        name="masked_lm_head",
    )


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
        logits = operations.tied_logits(ops.cast(rows, self.compute_dtype), table)  # [B · K, V]
        return ops.reshape(logits, (*ops.shape(inputs)[:-1], self.input_dim))
