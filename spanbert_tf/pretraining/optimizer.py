"""The optimizer of a pre-training run."""

from spanbert_tf.config import PretrainingConfig
from spanbert_tf.models import SpanBertPretrainer
from spanbert_tf.training.configured_optimizer import configured_adamw
from spanbert_tf.training.encoder_variables import encoder_variables
from spanbert_tf.training.optimizers import AdamW
from spanbert_tf.training.schedule import WarmupLinearDecay
from spanbert_tf.training.variable_groups import VariableGroup


def pretraining_optimizer(model: SpanBertPretrainer, config: PretrainingConfig) -> AdamW:
    """AdamW for the whole model, with other values for the encoder where they are given.

    Args:
        model: the model; its heads are all that is not its `backbone`.
        config: configuration of the run.
    """
    optimizer, num_head_steps = config.optimizer, config.training.head_steps

    def schedule(learning_rate: float, first_step: int = 0) -> WarmupLinearDecay:
        steps = (optimizer.warmup_steps, config.training.schedule_steps, first_step)
        return WarmupLinearDecay(learning_rate, *steps)

    groups = []
    if num_head_steps or optimizer.encoder_learning_rate is not None:
        encoder = VariableGroup(
            tuple(variable.path for variable in encoder_variables(model)),
            schedule(optimizer.encoder_learning_rate or optimizer.learning_rate, num_head_steps),
            optimizer.weight_decay,
            optimizer.epsilon,
        )
        groups.append(encoder)
    learning_rate = schedule(optimizer.learning_rate)
    return configured_adamw(optimizer, model.backbone, learning_rate, groups)
