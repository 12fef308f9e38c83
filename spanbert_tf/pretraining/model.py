"""Builds the model of a run, with its optimizer."""

from spanbert_tf.config import PretrainingConfig
from spanbert_tf.models import SpanBertBackbone, SpanBertPretrainer
from spanbert_tf.training.configured_optimizer import configured_adamw, encoder_variables
from spanbert_tf.training.devices import choose_precision
from spanbert_tf.training.memory import set_recompute
from spanbert_tf.training.optimizers import AdamW
from spanbert_tf.training.schedule import VariableGroup, WarmupLinearDecay


def build_pretrainer(config: PretrainingConfig, vocabulary_size: int) -> SpanBertPretrainer:
    """A new model with random weights; call it inside the scope of the run's strategy."""
    dtype = choose_precision(config.training.precision, config.model.hidden_dim)
    backbone = SpanBertBackbone(
        vocabulary_size=vocabulary_size, **config.model.encoder_options(), dtype=dtype
    )
    objectives = config.objectives
    return SpanBertPretrainer(
        backbone,
        span_boundary=objectives.span_boundary,
        next_sentence=objectives.next_sentence,
        max_span_targets=config.masking.max_span_targets,
        span_position_dim=objectives.span_position_dim,
    )


def compiled_pretrainer(config: PretrainingConfig, vocabulary_size: int) -> SpanBertPretrainer:
    """A new model with its optimizer, both built, so that a checkpoint fits them."""
    model = build_pretrainer(config, vocabulary_size)
    set_recompute(model, config.training.recompute)
    model.compile(
        optimizer=pretraining_optimizer(model, config),
        accumulation_steps=config.training.accumulation_steps,
        auto_scale_loss=False,  # the optimizer's own scale looks at all replicas
        jit_compile=config.training.jit_compile,
        steps_per_execution=config.training.steps_per_execution,
    )
    model.optimizer.build(model.trainable_variables)
    return model


def pretraining_optimizer(model: SpanBertPretrainer, config: PretrainingConfig) -> AdamW:
    """AdamW for the whole model, with other values for the encoder where they are given."""
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
