"""The optimizer that a configuration describes, of pre-training or of fine-tuning."""

from collections.abc import Sequence

from spanbert_tf.config.finetuning import FinetuningOptimizerConfig
from spanbert_tf.config.pretraining import OptimizerConfig
from spanbert_tf.models import SpanBertBackbone
from spanbert_tf.training.encoder_variables import layer_factors
from spanbert_tf.training.optimizers import AdamW
from spanbert_tf.training.schedule import WarmupLinearDecay
from spanbert_tf.training.variable_groups import VariableGroup


def configured_adamw(
    config: OptimizerConfig | FinetuningOptimizerConfig,
    backbone: SpanBertBackbone,
    learning_rate: WarmupLinearDecay,
    groups: Sequence[VariableGroup],
) -> AdamW:
    """AdamW with the values of a configuration; it scales the loss of an encoder in float16.

    Args:
        config: configuration of the optimizer.
        backbone: the encoder, whose layers may have rates of their own.
        learning_rate: schedule of all variables that are in no group.
        groups: variables with values of their own.
    """
    return AdamW(
        learning_rate=learning_rate,
        weight_decay=config.weight_decay,
        beta_1=config.beta_1,
        beta_2=config.beta_2,
        epsilon=config.epsilon,
        bias_correction=config.bias_correction,
        global_clipnorm=config.global_clipnorm,
        clipnorm=config.clipnorm,
        exclude_from_weight_decay=config.exclude_from_weight_decay,
        dynamic_loss_scale=backbone.compute_dtype == "float16",
        groups=groups,
        learning_rate_factors=layer_factors(backbone, config.layer_decay),
    )
