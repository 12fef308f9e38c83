"""Makes the optimizers of the papers and of configurations, and compiles a task."""

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
    """Makes the optimizer of SpanBERT's pre-training; the defaults are the paper's (4.2).

    The defaults are made for 2.4 M steps. Set `warmup_steps` and `total_steps` for a shorter
    training, or it ends before the learning rate has reached its peak.

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
        global_clipnorm: limit of the gradients' global norm (released command); `None` for no
            clipping.
        dynamic_loss_scale: whether to scale the loss, for models that compute in float16; see
            `AdamW`.

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
    """Makes an AdamW from a configuration. It scales the loss if the encoder computes in float16.

    Args:
        config: configuration of the optimizer.
        backbone: the encoder; `layer_decay` gives its layers different learning rates.
        learning_rate: schedule of all variables that are in no group.
        groups: groups of variables with their own values.

    Raises:
        ConfigurationError: `all_reduce_dtype` is set on JAX, where XLA adds up the gradients.
    """
    if config.all_reduce_dtype and not update_operations.HAS_ALL_REDUCE:
        raise ConfigurationError(
            f"optimizer.all_reduce_dtype: {config.all_reduce_dtype}: needs TensorFlow; on JAX, XLA "
            "adds up the gradients: set it to null"
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
    """Makes the AdamW of a fine-tuning run; `task_layers` may give the task's layers other values.

    Args:
        model: a model whose `backbone` is the encoder. All other layers are the task's.
        config: configuration of the optimizer.
        num_steps: number of steps of the whole run. The learning rates decay to 0 at its end.
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
    """Compiles the model of a task as the configuration says, and builds its optimizer.

    Args:
        model: a model whose `backbone` is the encoder.
        config: configuration of the run.
        num_steps: number of steps of the whole run.

    Raises:
        ConfigurationError: `frozen_layers` exceeds the number of layers, or
            `gradient_checkpointing` is set for an encoder that does not support it.
    """
    freeze_layers(model.backbone, config.optimizer.frozen_layers)
    set_gradient_checkpointing(model, config.training.gradient_checkpointing)
    model.compile(
        optimizer=finetuning_optimizer(model, config.optimizer, num_steps=num_steps),
        metrics=None,  # the objective has metrics of its own
        accumulation_steps=config.training.accumulation_steps,
        jit_compile=config.training.jit_compile,
        steps_per_execution=config.training.steps_per_execution,
    )
    model.optimizer.build(model.trainable_variables)


def train_new_pooler(model: SpanBertTask, *, is_pooler_trained: bool) -> None:
    """Makes the pooler trainable beside the adapters if the task reads it and it is untrained.

    Otherwise the task's layers would read random features.

    Args:
        model: a task whose encoder has adapters; it is not compiled yet.
        is_pooler_trained: whether the encoder's pooler was ever trained.
    """
    model.backbone.pooled_dense.trainable = model.reads_pooler and not is_pooler_trained


def freeze_layers(backbone: SpanBertBackbone, num_layers: int) -> None:
    """Freezes the embeddings and the first transformer layers.

    Args:
        backbone: the encoder.
        num_layers: number of transformer layers to freeze; 0 freezes nothing, not even the
            embeddings.

    Raises:
        ConfigurationError: the encoder has fewer layers.
    """
    if num_layers > backbone.num_layers:
        raise ConfigurationError(
            f"optimizer.frozen_layers: is {num_layers} and the encoder has {backbone.num_layers} "
            "layers; set it to these at most"
        )
    if num_layers == 0:
        return
    for block in encoder_blocks(backbone)[: num_layers + 1]:
        for variable in block:
            variable.trainable = False


def encoder_variables(model: keras_hub.models.Task) -> list[keras.Variable]:
    """Returns the trained variables of a model's `backbone`."""
    return _trained(model, of_encoder=True)


def variables_beside_encoder(model: keras_hub.models.Task) -> list[keras.Variable]:
    """Returns the trained variables outside of the encoder: those of the heads or of the task."""
    return _trained(model, of_encoder=False)


def _trained(model: keras_hub.models.Task, *, of_encoder: bool) -> list[keras.Variable]:
    encoder = {id(variable) for variable in model.backbone.variables}
    return [
        variable
        for variable in model.trainable_variables
        if (id(variable) in encoder) == of_encoder
    ]


def encoder_blocks(backbone: SpanBertBackbone) -> list[list[keras.Variable]]:
    """Returns lists of variables: those of the embeddings, then those of each transformer layer."""
    layer_blocks = []
    other_ids = {id(variable) for variable in backbone.pooled_dense.variables}
    for layer in backbone.transformer_layers:
        layer_blocks.append(list(layer.variables))
        other_ids.update(id(variable) for variable in layer.variables)
    embeddings = [variable for variable in backbone.variables if id(variable) not in other_ids]
    return [embeddings, *layer_blocks]


def layer_factors(backbone: SpanBertBackbone, layer_decay: float) -> dict[str, float]:
    """Maps the path of each variable to the factor of its learning rate.

    The learning rate of the last layer is multiplied by `layer_decay` once, that of each layer
    below and of the embeddings once more. The pooler and the layers outside of the encoder have
    the full learning rate (Clark et al., 2020, ELECTRA's code).
    """
    factors: dict[str, float] = {}
    if layer_decay == 1:
        return factors
    blocks = encoder_blocks(backbone)
    for depth, block in enumerate(blocks):
        for variable in block:
            factors[variable.path] = layer_decay ** (len(blocks) - depth)
    return factors


def set_gradient_checkpointing(model: keras.Model, is_on: bool) -> None:
    """Switches gradient checkpointing of the encoder's layers on or off; call it before `fit`.

    Args:
        model: any task.
        is_on: value of `training.gradient_checkpointing`.

    Raises:
        ConfigurationError: `is_on`, and the model has no `TransformerEncoder`.
    """
    layers = [part for part in model._flatten_layers() if isinstance(part, TransformerEncoder)]
    if is_on and not layers:
        raise ConfigurationError(
            f"training.gradient_checkpointing: is true, and {type(model).__name__} has no "
            "transformer layers of this project; set it to false"
        )
    for layer in layers:
        layer.gradient_checkpointing = is_on
