"""The variables of a model's encoder, apart from all others and layer by layer."""

import keras
import keras_hub

from spanbert_tf.models import SpanBertBackbone


def encoder_variables(model: keras_hub.models.Task) -> list[keras.Variable]:
    """The trained variables of a model's `backbone`."""
    return _trained(model, of_encoder=True)


def variables_beside_encoder(model: keras_hub.models.Task) -> list[keras.Variable]:
    """The trained variables that are not the encoder's: those of heads and of a task's layers."""
    return _trained(model, of_encoder=False)


def _trained(model: keras_hub.models.Task, *, of_encoder: bool) -> list[keras.Variable]:
    encoder = {id(variable) for variable in model.backbone.variables}
    return [v for v in model.trainable_variables if (id(v) in encoder) == of_encoder]


def encoder_blocks(backbone: SpanBertBackbone) -> list[list[keras.Variable]]:
    """The variables of the embeddings, then of each transformer layer, from below."""
    of_layers = [list(layer.variables) for layer in backbone.transformer_layers]
    known = {id(v) for block in of_layers for v in block}
    known |= {id(v) for v in backbone.pooled_dense.variables}
    embeddings = [v for v in backbone.variables if id(v) not in known]
    return [embeddings, *of_layers]


def layer_factors(backbone: SpanBertBackbone, layer_decay: float) -> dict[str, float]:
    """What the learning rate of each variable is multiplied with, by its path.

    The last layer's rate has the factor once, each layer below and the embeddings once more. The
    pooler and what is beside the encoder have the whole rate (Clark et al., 2020, ELECTRA's code).

    Args:
        backbone: the encoder.
        layer_decay: the factor; 1: all have the whole rate.
    """
    if layer_decay == 1:
        return {}
    blocks = encoder_blocks(backbone)
    return {
        variable.path: layer_decay ** (len(blocks) - depth)
        for depth, block in enumerate(blocks)
        for variable in block
    }
