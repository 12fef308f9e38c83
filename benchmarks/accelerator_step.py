"""The step of pre-training that `benchmarks.accelerator` times: Keras on JAX, without TensorFlow.

`KERAS_BACKEND` must be `jax` before Keras is imported.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence

import jax
import keras
import numpy as np

from spanbert_tf.conversion.names import MASKED_LM_HEAD
from spanbert_tf.conversion.parameters import encoder_parameters, part_parameters
from spanbert_tf.models import SpanBertBackbone, SpanBertPretrainer
from spanbert_tf.training import adamw


def pretrainer(
    sizes: Mapping[str, int],
    *,
    dropout: float,
    dtype: str = "mixed_bfloat16",
    attention_dropout: bool = True,
    span_boundary: bool = False,
) -> SpanBertPretrainer:
    """A new model with its optimizer, as pre-training has them.

    Args:
        sizes: arguments of `SpanBertBackbone`.
        dropout: rate of all dropouts.
        dtype: the policy; float32 weights that are computed with in bfloat16 by default.
        attention_dropout: whether attention's weights have it, too.
        span_boundary: whether SBO is trained beside MLM.
    """
    of_attention = dropout if attention_dropout else 0.0
    backbone = SpanBertBackbone(
        **sizes, dropout=dropout, attention_dropout=of_attention, dtype=dtype
    )
    model = SpanBertPretrainer(backbone, span_boundary=span_boundary)
    model.compile(optimizer=adamw())
    model.optimizer.build(model.trainable_variables)
    return model


def training_steps(
    model: SpanBertPretrainer, batches: Sequence[dict[str, np.ndarray]]
) -> tuple[Callable[[int], float], bool]:
    """Steps as `fit` compiles them; the model's own variables are no more.

    Args:
        model: what `pretrainer` returned.
        batches: are on the device before the first step, and taken in turns.

    Returns:
        A function that trains so many steps, waits for them, and returns the mean MLM loss of all
        so far; and whether a fused kernel of cuDNN is in the step.
    """
    arrays = [jax.device_put(batch) for batch in batches]
    source = itertools.cycle(arrays)
    of_model = (
        model.trainable_variables,
        model.non_trainable_variables,
        model.optimizer.variables,
        model.metrics_variables,
    )
    state = tuple([variable.value for variable in variables] for variables in of_model)
    step = jax.jit(model.train_step, donate_argnums=0).lower(state, arrays[0]).compile()
    is_fused = "fmha" in step.as_text()

    def train(count: int) -> float:
        nonlocal state
        for _ in range(count):
            logs, state = step(state, next(source))
        jax.block_until_ready((logs, state))
        return float(logs["masked_lm_loss"])

    return train, is_fused


def randomize(model: SpanBertPretrainer) -> None:
    """Moves all weights, so that no bias is 0 and no two layers are alike."""
    random = np.random.default_rng(0)
    for variable in model.trainable_variables:
        variable.assign_add(random.normal(0.0, 0.02, variable.shape))


def arrays_of(model: SpanBertPretrainer) -> dict[str, np.ndarray]:
    """Weights of encoder and MLM head by their names in `transformers`."""
    backbone = model.backbone
    parameters = encoder_parameters(backbone)
    parameters += part_parameters(MASKED_LM_HEAD, model.masked_lm_head)
    return {parameter.name: parameter.to_array() for parameter in parameters}


def describe_device() -> str:
    """The first device and the versions that matter."""
    return f"{jax.devices()[0].device_kind}, JAX {jax.__version__}, Keras {keras.__version__}"
