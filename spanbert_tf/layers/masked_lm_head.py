"""The head of the masked-language model.

Shapes: B rows, S positions, K prediction slots, H width, V entries of the vocabulary.
"""

import keras_hub

from spanbert_tf.layers.bert_initializer import bert_initializer


def masked_lm_head(backbone: keras_hub.models.Backbone) -> keras_hub.layers.MaskedLMHead:
    """Creates KerasHub's head with BERT's exact GELU and the backbone's epsilon and embedding.

    Args:
        backbone: a `SpanBertBackbone`.

    Returns:
        A layer that takes the encoder's output [B, S, H] and `mask_positions` [B, K], and returns
        logits [B, K, V].
    """
    return keras_hub.layers.MaskedLMHead(
        vocabulary_size=backbone.vocabulary_size,
        token_embedding=backbone.token_embedding,
        intermediate_activation="gelu",  # the exact one (erf) by default in Keras
        layer_norm_epsilon=backbone.layer_norm_epsilon,
        kernel_initializer=bert_initializer(),
        dtype=backbone.dtype_policy,
        name="masked_lm_head",
    )
