"""The optimizers of the papers and of a configuration, and how a configuration compiles a task."""

from collections.abc import Sequence

import keras
import keras_hub

from spanbert_tf.config.finetuning import (
    FinetuningConfig,
    FinetuningOptimizerConfig,
    TaskLayersConfig,
)
from spanbert_tf.config.pretraining import OptimizerConfig
from spanbert_tf.errors import ConfigurationError
from spanbert_tf.layers import TransformerEncoder
from spanbert_tf.models import SpanBertBackbone
from spanbert_tf.models.span_bert_task import SpanBertTask
from spanbert_tf.training import update_operations
from spanbert_tf.training.optimizer import AdamW, VariableGroup, WarmupLinearDecay


def adamw(
    learning_rate: float = 1e-4,
    warmup_steps: int = 10_000,
    total_steps: int = 2_400_000,
    weight_decay: float = 0.1,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-8,
    global_clipnorm: float | None = 1.0,
    dynamic_loss_scale: bool = False,
) -> AdamW:
    """The optimizer of SpanBERT's pre-training; the defaults are the paper's (4.2).

    They are made for 2.4 M steps: a shorter training needs `warmup_steps` and `total_steps` of its
    own, or it ends before the rate has reached its peak.

    One step, with the gradient g clipped to a global norm and the learning rate r of the schedule:
    `w -= r * weight_decay * w` (kernels and embeddings only), then
    `w -= r * sqrt(1 - beta_2**t) / (1 - beta_1**t) * m / (sqrt(v) + epsilon)`.
    Epsilon is added before the bias correction of v, as in fairseq; PyTorch adds it after, which
    at t = 1 is an epsilon 32 times smaller. Where the gradients are well above 1e-8 the two agree.
    (The original BERT corrects no bias: `AdamW(bias_correction=False)`.)

    Args:
        learning_rate: peak of the schedule.
        warmup_steps: steps of linear warm-up.
        total_steps: step in which the linear decay reaches 0.
        weight_decay: decoupled decay, multiplied by the learning rate. The paper says 0.1, the
            released command 0.01.
        beta_1: decay of the first moment.
        beta_2: decay of the second moment.
        epsilon: see above.
        global_clipnorm: limit of the gradients' global norm (released command); None: no clipping.
        dynamic_loss_scale: for models that compute in float16, see `AdamW`.

    Returns:
        A Keras optimizer for `model.compile`.
    """
    return AdamW(
        learning_rate=WarmupLinearDecay(learning_rate, warmup_steps, total_steps),
        weight_decay=weight_decay,
        beta_1=beta_1,
        beta_2=beta_2,
        epsilon=epsilon,
        global_clipnorm=global_clipnorm,
        dynamic_loss_scale=dynamic_loss_scale,
    )


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

    Raises:
        ConfigurationError: gradients are to be added up on JAX in another type than their own.
    """
    if config.all_reduce_dtype and not update_operations.HAS_ALL_REDUCE:
        raise ConfigurationError(
            f"optimizer.all_reduce_dtype: {config.all_reduce_dtype}: is TensorFlow's alone, on JAX "
            "XLA adds gradients up; set it to null"
        )
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
        all_reduce_dtype=config.all_reduce_dtype,
        groups=groups,
        learning_rate_factors=layer_factors(backbone, config.layer_decay),
    )


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


def compile_task(model: keras_hub.models.Task, config: FinetuningConfig, num_steps: int) -> None:
    """Gives a task's model its optimizer, built, and what else the step of its run is made of.

    Args:
        model: a model whose `backbone` is the encoder.
        config: configuration of the run.
        num_steps: steps of the whole run.

    Raises:
        ConfigurationError: more layers are to be frozen than there are, or none can be recomputed.
    """
    freeze_layers(model.backbone, config.optimizer.frozen_layers)
    set_gradient_checkpointing(model, config.training.recompute)
    model.compile(
        optimizer=finetuning_optimizer(model, config.optimizer, num_steps=num_steps),
        metrics=None,  # beside those of the objective
        accumulation_steps=config.training.accumulation_steps,
        jit_compile=config.training.jit_compile,
        steps_per_execution=config.training.steps_per_execution,
    )
    model.optimizer.build(model.trainable_variables)


def train_new_pooler(model: SpanBertTask, *, is_pooler_trained: bool) -> None:
    """Trains a pooler beside the adapters of an encoder, where nothing has trained it before.

    Otherwise the task's layers would read random features.

    Args:
        model: a task whose encoder has adapters, before it is compiled.
        is_pooler_trained: whether anything has trained the encoder's pooler.
    """
    model.backbone.pooled_dense.trainable = model.reads_pooler and not is_pooler_trained


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
    """
    if layer_decay == 1:
        return {}
    blocks = encoder_blocks(backbone)
    return {
        variable.path: layer_decay ** (len(blocks) - depth)
        for depth, block in enumerate(blocks)
        for variable in block
    }


def set_gradient_checkpointing(model: keras.Model, recompute: str) -> None:
    """Sets whether the encoder's layers are computed again for their gradients; call before `fit`.

    Args:
        model: any task.
        recompute: `layers` or `none`, the value of `training.recompute`.

    Raises:
        ConfigurationError: `layers`, of a model that has no layers of this project.
    """
    layers = [part for part in model._flatten_layers() if isinstance(part, TransformerEncoder)]
    if recompute == "layers" and not layers:
        raise ConfigurationError(
            f"training.recompute: is {recompute}, and {type(model).__name__} has no transformer "
            "layers of this project; set it to none"
        )
    for layer in layers:
        layer.gradient_checkpointing = recompute == "layers"
