"""Builds the model of a run."""

from spanbert_tf.config import PretrainingConfig
from spanbert_tf.models import SpanBertBackbone, SpanBertPretrainer
from spanbert_tf.pretraining.optimizer import pretraining_optimizer
from spanbert_tf.process.precision import choose_precision
from spanbert_tf.training.replicated_model import ReplicatedModel


def build_pretrainer(config: PretrainingConfig, vocabulary_size: int) -> SpanBertPretrainer:
    """A new model with random weights; call it inside the scope of the run's strategy.

    Args:
        config: configuration of the run.
        vocabulary_size: entries of the records' vocabulary.
    """
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


def compiled_pretrainer(config: PretrainingConfig, vocabulary_size: int) -> ReplicatedModel:
    """A new model with its optimizer, both built, so that a checkpoint fits them."""
    pretrainer = build_pretrainer(config, vocabulary_size)
    model = ReplicatedModel(pretrainer, config.training.accumulation_steps)
    model.compile(
        optimizer=pretraining_optimizer(pretrainer, config),
        auto_scale_loss=False,  # the optimizer's own scale looks at all replicas
        jit_compile=config.training.jit_compile,
        steps_per_execution=config.training.steps_per_execution,
    )
    model.optimizer.build(model.trainable_variables)
    return model
