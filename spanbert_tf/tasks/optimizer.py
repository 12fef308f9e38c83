"""The optimizer of a fine-tuning run: which variables it trains, and with which values."""

import keras_hub

from spanbert_tf.config.finetuning import FinetuningOptimizerConfig, TaskLayersConfig
from spanbert_tf.errors import ConfigurationError
from spanbert_tf.models import SpanBertBackbone
from spanbert_tf.training.configured_optimizer import (
    configured_adamw,
    encoder_blocks,
    variables_beside_encoder,
)
from spanbert_tf.training.optimizers import AdamW
from spanbert_tf.training.schedule import VariableGroup, WarmupLinearDecay


def finetuning_optimizer(
    model: keras_hub.models.Task,
    config: FinetuningOptimizerConfig,
    *,
    num_steps: int,
) -> AdamW:
    """AdamW for the encoder, with other values for the task's own layers where they are given.

    Args:
        model: a model whose `backbone` is the encoder; all other variables are the task's own.
        config: configuration of the optimizer.
        num_steps: steps of the whole run; the learning rates decay to 0 at its end.
    """

    def schedule(learning_rate: float, warmup_fraction: float) -> WarmupLinearDecay:
        return WarmupLinearDecay(learning_rate, int(warmup_fraction * num_steps), num_steps)

    groups = []
    layers = config.task_layers
    if layers != TaskLayersConfig():

        def own(name: str) -> float:
            value = getattr(layers, name)
            return getattr(config, name) if value is None else value

        group = VariableGroup(
            tuple(variable.path for variable in variables_beside_encoder(model)),
            schedule(own("learning_rate"), own("warmup_fraction")),
            own("weight_decay"),
            own("epsilon"),
            layers.global_clipnorm,
        )
        groups.append(group)
    learning_rate = schedule(config.learning_rate, config.warmup_fraction)
    return configured_adamw(config, model.backbone, learning_rate, groups)


def freeze_layers(backbone: SpanBertBackbone, num_layers: int) -> None:
    """Leaves the embeddings and the first transformer layers as they are.

    Args:
        backbone: the encoder.
        num_layers: how many transformer layers; 0: nothing, not even the embeddings.

    Raises:
        ConfigurationError: it has fewer layers.
    """
    if num_layers > backbone.num_layers:
        raise ConfigurationError(
            f"optimizer.frozen_layers: is {num_layers} and the encoder has {backbone.num_layers} "
            "layers; set it to these at most"
        )
    for block in encoder_blocks(backbone)[: num_layers + 1] if num_layers else []:
        for variable in block:
            variable.trainable = False


def add_adapters(model: keras_hub.models.Task, rank: int) -> None:
    """Low-rank adapters of queries and values, to train in place of the encoder (Hu et al., 2021).

    The file of weights of such an encoder holds kernels with the adapters' product.

    Args:
        model: a model whose `backbone` is the encoder; from now on, only its adapters are trained
            beside the task's own layers, and a pooler that the task reads and nothing has trained.
        rank: rank of the adapters.
    """
    backbone = model.backbone
    backbone.enable_lora(rank)
    for variable in backbone.trainable_variables:  # Keras leaves the biases beside the adapters
        variable.trainable = "lora" in variable.name
    if model.reads_pooler and not backbone.is_pooler_trained:
        backbone.pooled_dense.trainable = True  # the task's layers would read random features
