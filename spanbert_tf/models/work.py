"""Counts the work of training steps: tokens, positions and floating-point operations.

The counts are metrics of the model, so the device adds them up, over replicas and micro-batches,
and nothing waits for them before they are read.

Shapes: B rows or documents, S positions, K prediction slots, H width, V vocabulary.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
from keras import ops

from spanbert_tf.models.span_bert_backbone import SpanBertBackbone

_GIGA = 1e9  # operations are added up in billions, since float32 ends at 3.4e38

IsTrained = Callable[[keras.Variable], bool]


class Work(NamedTuple):
    """The work of some training steps, over all devices.

    Attributes:
        tokens: number of tokens, with special tokens and without padding.
        positions: number of positions, with padding.
        operations: floating-point operations; 0.0 if they are not known.
    """

    tokens: float
    positions: float
    operations: float


class WorkMetrics:
    """Keras' metrics that add up the work of the steps since they were reset.

    Sums of float32 are exact up to 16 million tokens, and later wrong by less than 1 in 10,000 for
    intervals of up to a thousand steps.
    """

    def __init__(self) -> None:
        self._tokens = keras.metrics.Sum(name="work_tokens")
        self._positions = keras.metrics.Sum(name="work_positions")
        self._operations = keras.metrics.Sum(name="work_operations")

    @property
    def metrics(self) -> list[keras.Metric]:
        """The metrics, whose values are no result of the model."""
        return [self._tokens, self._positions, self._operations]

    def update(
        self,
        x: Any,
        sample_weight: keras.KerasTensor | None,
        operations: keras.KerasTensor | float,
    ) -> None:
        """Adds a batch.

        Args:
            x: inputs of the model. Only a dict with `padding_mask`, int [B, …, S], has tokens.
            sample_weight: a row with weight 0 in [B] is padding. Other shapes are not regarded.
            operations: floating-point operations of the batch in billions.
        """
        mask = x.get("padding_mask") if isinstance(x, dict) else None
        if mask is None:
            return
        is_token = ops.cast(mask, "float32")  # [B, …, S]
        self._positions.update_state(ops.sum(ops.ones_like(is_token)))
        if sample_weight is not None and len(sample_weight.shape) == 1:
            is_row = ops.cast(ops.not_equal(sample_weight, 0), "float32")  # [B]
            is_token *= ops.reshape(is_row, (-1, *[1] * (len(is_token.shape) - 1)))
        self._tokens.update_state(ops.sum(is_token))
        self._operations.update_state(operations)

    def read(self) -> Work:
        """Returns the sums; it waits for the device."""
        return Work(
            tokens=float(self._tokens.result()),
            positions=float(self._positions.result()),
            operations=float(self._operations.result()) * _GIGA,
        )


def encoder_operations(
    backbone: SpanBertBackbone, mask: keras.KerasTensor, is_trained: IsTrained
) -> keras.KerasTensor | float:
    """Computes the floating-point operations of an encoder in a training step.

    A layer multiplies each position by 4 H² + 2 H F weights (F: `intermediate_dim`), and each of
    the S positions of a row by all S positions twice (2 S² H products a row). A product is two
    operations, forwards. The gradients of the inputs take as many, unless nothing below is trained,
    and those of the weights as many again, unless the weights are frozen. So a step that trains all
    layers takes

        6 · B · S · layers · (4 H² + 2 H F + 2 S H),

    as in Chowdhery et al. (2022), PaLM, appendix B. What is recomputed to save memory is not
    counted, neither are norms, activations and the small products of adapters.

    Args:
        backbone: the encoder.
        mask: padding mask of a batch, [B, …, S].
        is_trained: says whether a variable is trained.

    Returns:
        Operations in billions, a number or a float32 scalar.
    """
    width = backbone.hidden_dim
    num_weights = 4 * width**2 + 2 * width * backbone.intermediate_dim
    above = {id(variable) for variable in backbone.pooled_dense.variables}
    for layer in backbone.transformer_layers:
        above.update(id(variable) for variable in layer.variables)
    embeddings = [variable for variable in backbone.variables if id(variable) not in above]
    has_gradient = any(map(is_trained, embeddings))
    products_by_weights = 0
    products_of_positions = 0
    for layer in backbone.transformer_layers:
        has_gradient = has_gradient or any(map(is_trained, layer.variables))
        trains_weights = is_trained(layer._feedforward_output_dense.kernel)
        products_by_weights += num_weights * (1 + has_gradient + trains_weights)
        products_of_positions += 2 * width * (1 + 2 * has_gradient)
    length = _size(mask, -1)
    num_positions = 1.0
    for axis in range(len(mask.shape)):
        num_positions *= _size(mask, axis)
    products = num_positions * (products_by_weights + length * products_of_positions)
    return 2 / _GIGA * products


def slot_operations(
    slots: keras.KerasTensor, weights: list[keras.Variable], is_trained: IsTrained
) -> keras.KerasTensor | float:
    """Computes the operations of a head that multiplies each slot by some matrices.

    Args:
        slots: a feature of the slots, [B, K], or of the rows, [B].
        weights: the matrices.
        is_trained: says whether a variable is trained. The inputs of the head always count as
            having gradients.

    Returns:
        Operations in billions, a number or a float32 scalar.
    """
    num_slots = 1.0
    for axis in range(len(slots.shape)):
        num_slots *= _size(slots, axis)
    products = sum(
        weight.shape[0] * weight.shape[1] * (2 + is_trained(weight)) for weight in weights
    )
    return 2 / _GIGA * products * num_slots


def _size(tensor: keras.KerasTensor, axis: int) -> keras.KerasTensor | float:
    """Returns the size of an axis: a number if it is known, otherwise a float32 scalar."""
    size = tensor.shape[axis]
    if size is None:
        return ops.cast(ops.shape(tensor)[axis], "float32")
    return float(size)
