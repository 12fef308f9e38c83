"""The operations of a transformer layer, implemented by `keras.ops` for all backends.

The modules `tensorflow` and `jax` replace some of these functions.

Shapes: B rows, S positions, N heads, D width of a head, H = N · D width of the encoder, R = B · S,
I width of the feed-forward network, V entries of the vocabulary.
"""

import contextlib
import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
from keras import ops
from keras.src.backend.common.variables import AutocastScope

_MASKED = -1e9  # added to the scores of padding
_MASKED_FLOAT16 = -3e4
NUM_16_BITS = 2**16  # number of values of 16 random bits


class Dropout(NamedTuple):
    """A dropout with a drawn seed, so that it drops the same values each time it is applied.

    Attributes:
        rate: share of the values to drop; 0 drops nothing.
        seed: the seed, int [2]; `None` if the rate is 0.
        kernel_seed: seed of a kernel that draws its own random numbers, see `kernel_seed`.
    """

    rate: float = 0.0
    seed: keras.KerasTensor | None = None
    kernel_seed: int = 0

    @classmethod
    def draw(cls, layer: keras.layers.Dropout, kernel_seed: int = 0) -> "Dropout":
        """Draws the next seed of the dropout of a Keras layer."""
        if not layer.rate:
            return cls()
        return cls(layer.rate, layer.seed_generator.next(), kernel_seed)


class LayerConstants(NamedTuple):
    """What a call of a transformer layer reads beside its inputs and its weights.

    None of these values gets a gradient. One that needs a gradient must be an argument of its own,
    like the inputs, down to the function that `pure_call` computes again.

    Attributes:
        padding_mask: int or bool [B, S], 0 for padding.
        weights_dropout: dropout of the attention weights.
        attention_dropout: dropout of the output of attention.
        network_dropout: dropout of the output of the feed-forward network.
    """

    padding_mask: keras.KerasTensor
    weights_dropout: Dropout = Dropout()
    attention_dropout: Dropout = Dropout()
    network_dropout: Dropout = Dropout()


class _DrawnSeed(keras.random.SeedGenerator):
    """A seed generator that returns the same seed at each call."""

    def __init__(self, seed: keras.KerasTensor) -> None:
        self._seed = seed

    def next(self, ordered: bool = True) -> keras.KerasTensor:
        return self._seed


def kernel_seed(layer: keras.layers.Dropout, path: str) -> int:
    """Returns the seed of an attention kernel that draws its own random numbers.

    Only JAX has such a kernel.

    Args:
        layer: dropout of the attention weights.
        path: path of the transformer layer.
    """
    return 0


def apply_dropout(x: keras.KerasTensor, dropout: Dropout) -> keras.KerasTensor:
    """Drops values of a tensor, and multiplies the others by `1 / (1 - rate)`."""
    if not dropout.rate:
        return x
    return keras.random.dropout(x, dropout.rate, seed=_DrawnSeed(dropout.seed))


def num_kept_of_16_bits(rate: float) -> int:
    """Returns how many of the 2^16 values of 16 random bits keep an element: 1 to 2^16 - 1.

    16 bits resolve rates to 1.5e-5. Kept elements are scaled by the rate that is actually used.
    """
    num_kept = round((1 - rate) * NUM_16_BITS)
    return min(max(num_kept, 1), NUM_16_BITS - 1)


def fused_projection(
    x: keras.KerasTensor, kernels: Sequence[keras.KerasTensor], training: bool
) -> keras.KerasTensor:
    """Multiplies rows with several kernels by one matrix product.

    Args:
        x: float tensor [R, H].
        kernels: float tensors [H, H].
        training: whether gradients will be computed.

    Returns:
        The products side by side, [R, kernels · H].
    """
    return ops.matmul(x, ops.concatenate(kernels, axis=1))


def attention(
    by_head: keras.KerasTensor, padding_mask: keras.KerasTensor, dropout: Dropout, training: bool
) -> keras.KerasTensor:
    """Computes scaled dot-product attention (Vaswani et al., 2017, equation 1) with dropout.

    Args:
        by_head: queries, keys and values, float [B, S, 3, N, D].
        padding_mask: int or bool [B, S], 0 for padding.
        dropout: dropout of the attention weights.
        training: whether gradients will be computed.

    Returns:
        A float tensor [B, S, N, D].
    """
    return attend(by_head, padding_mask, lambda weights: apply_dropout(weights, dropout))


def attend(
    by_head: keras.KerasTensor,
    padding_mask: keras.KerasTensor,
    drop: Callable[[keras.KerasTensor], keras.KerasTensor],
) -> keras.KerasTensor:
    """Computes attention by single operations; `drop` maps attention weights [B, N, S, S]."""
    query, key, value = queries_keys_values(by_head)
    scores = ops.matmul(query, ops.transpose(key, (0, 1, 3, 2)))  # [B, N, S, S]
    weights = ops.softmax(scores + padding_scores(padding_mask, query.dtype), axis=-1)
    heads = ops.matmul(drop(weights), value)  # [B, N, S, D]
    return ops.transpose(heads, (0, 2, 1, 3))


def queries_keys_values(by_head: keras.KerasTensor) -> list[keras.KerasTensor]:
    """Splits [B, S, 3, N, D] into queries, divided by √D, keys and values, [B, N, S, D]."""
    by_part = ops.transpose(by_head, (2, 0, 3, 1, 4))  # [3, B, N, S, D]
    query, key, value = ops.unstack(by_part, 3, axis=0)
    head_dim = by_head.shape[-1]
    query = ops.multiply(query, ops.cast(head_dim**-0.5, query.dtype))
    return [query, key, value]


def padding_scores(padding_mask: keras.KerasTensor, dtype: Any) -> keras.KerasTensor:
    """Returns terms to add to scores, large negative numbers for padding, [B, 1, 1, S]."""
    masked = _MASKED
    if keras.backend.standardize_dtype(dtype) == "float16":
        masked = _MASKED_FLOAT16
    is_padding = 1 - ops.cast(padding_mask, dtype)  # [B, S]
    return (is_padding * masked)[:, None, None, :]


def dense_gelu(
    dense: keras.layers.Dense, x: keras.KerasTensor, training: bool
) -> keras.KerasTensor:
    """Computes a projection and its exact GELU.

    Args:
        dense: a layer with the activation `"gelu"`.
        x: float tensor [R, H].
        training: whether gradients will be computed.

    Returns:
        A float tensor [R, I].
    """
    return dense(x)


def gelu_terms(
    x: keras.KerasTensor,
) -> tuple[keras.KerasTensor, keras.KerasTensor, keras.KerasTensor]:
    """Computes x, Φ(x) and φ(x), the normal distribution and its density, in float32.

    GELU(x) is x · Φ(x), and its derivative is Φ(x) + x · φ(x).
    """
    values = ops.cast(x, "float32")
    scaled = values * math.sqrt(0.5)
    distribution = 0.5 + 0.5 * ops.erf(scaled)
    density = ops.exp(-ops.square(scaled)) * (1 / math.sqrt(2 * math.pi))
    return values, distribution, density


def project_and_normalize(
    dense: keras.layers.Layer,
    x: keras.KerasTensor,
    residual: keras.KerasTensor,
    dropout: Dropout,
    norm: keras.layers.LayerNormalization,
    training: bool,
) -> keras.KerasTensor:
    """Computes `norm(residual + dropout(dense(x)))`.

    Args:
        dense: a layer whose kernel has I · H elements, and whose bias is [H].
        x: float tensor [R, I].
        residual: float tensor [R, H].
        dropout: dropout of the projection.
        norm: the layer normalization.
        training: whether gradients will be computed.

    Returns:
        A float tensor [R, H].
    """
    return norm(apply_dropout(project(dense, x), dropout) + residual)


def project(dense: keras.layers.Layer, x: keras.KerasTensor) -> keras.KerasTensor:
    """Multiplies rows [R, I] with the kernel of a layer, and adds its bias, [R, H]."""
    kernel = ops.reshape(dense.kernel, (x.shape[-1], -1))
    return ops.add(ops.matmul(x, kernel), dense.bias)


def normalization_gradients(
    upstream: keras.KerasTensor,
    normalized: keras.KerasTensor,
    inverse: keras.KerasTensor,
    gamma: keras.KerasTensor,
) -> tuple[keras.KerasTensor, keras.KerasTensor, keras.KerasTensor]:
    """Computes the gradients of layer normalization, gamma · normalized + beta (Ba et al., 2016).

    Args:
        upstream: gradient of the outputs, float32 […, H].
        normalized: the inputs minus their mean, divided by their deviation, float32 […, H].
        inverse: one divided by this deviation, float32 […, 1].
        gamma: float32 [H].

    Returns:
        The gradients of the inputs […, H], of gamma [H] and of beta [H], float32.
    """
    scaled = upstream * gamma
    mean = ops.mean(scaled, axis=-1, keepdims=True)  # […, 1]
    product_mean = ops.mean(scaled * normalized, axis=-1, keepdims=True)
    inputs_gradient = inverse * (scaled - mean - normalized * product_mean)
    rows = tuple(range(len(upstream.shape) - 1))
    gamma_gradient = ops.sum(upstream * normalized, axis=rows)
    beta_gradient = ops.sum(upstream, axis=rows)
    return inputs_gradient, gamma_gradient, beta_gradient


def tied_logits(rows: keras.KerasTensor, table: keras.KerasTensor) -> keras.KerasTensor:
    """Computes logits [R, V] from rows [R, H] and the embedding table [V, H]."""
    return ops.matmul(rows, ops.transpose(table))


def placeholder_zeros(shape: tuple[int, ...], dtype: str) -> keras.KerasTensor:
    """Returns zeros that will be overwritten before anything reads them."""
    return ops.zeros(shape, dtype)


def call_in_training(
    layer: keras.layers.Layer, x: keras.KerasTensor, constants: LayerConstants
) -> keras.KerasTensor:
    """Calls `layer.compute` in a training step.

    With `layer.gradient_checkpointing`, only the inputs are stored, and the rest is computed again
    for the gradients (Chen et al., 2016), with the same random numbers.

    Everything that differs between two calls must be an argument, since equal layers share one
    traced function on TensorFlow.

    Args:
        layer: a `TransformerEncoder`.
        x: float tensor [B, S, H].
        constants: the padding and the dropouts of the call.

    Returns:
        A float tensor [B, S, H].
    """
    if not layer.gradient_checkpointing:
        return layer.compute(x, constants, training=True)
    return pure_call(layer)(x, constants)


def pure_call(layer: keras.layers.Layer) -> Callable[..., keras.KerasTensor]:
    """Returns `layer.compute` as a function of inputs, constants and weights.

    Without values of weights, the function uses the layer's own. It does not keep the layer alive,
    because TensorFlow never frees the graph of `keras.remat` (see `custom_gradient`).
    """
    reference: Callable[[], Any] = weakref.ref(layer)  # the caller keeps the layer alive
    is_checkpointed = layer.gradient_checkpointing

    def call(x: Any, constants: LayerConstants, *values: Any) -> Any:
        def compute(x: Any, *values: Any) -> Any:
            layer = reference()
            weights = contextlib.nullcontext()
            if values:
                weights = keras.StatelessScope(_weight_values(layer, values))
            # The second computation is outside of the scope in which Keras casts for the layer.
            with weights, AutocastScope(layer.compute_dtype):
                return layer.compute(x, constants, training=True)

        if is_checkpointed:
            compute = keras.remat(compute)
        return compute(x, *values)

    return call


def _weight_values(layer: keras.layers.Layer, values: Sequence[Any]) -> list[tuple]:
    """Pairs weights with values; frozen weights get values without gradients."""
    pairs = []
    for weight, value in zip(layer.weights, values, strict=True):
        if not weight.trainable:
            value = ops.stop_gradient(value)
        pairs.append((weight, value))
    return pairs


def vocabulary_crossentropy(
    labels: keras.KerasTensor, logits: keras.KerasTensor
) -> tuple[keras.KerasTensor, keras.KerasTensor]:
    """Computes the cross-entropy of each target, and whether its label has the highest logit.

    Args:
        labels: int […].
        logits: float32 […, V].

    Returns:
        Losses in nats, float32 […], and whether the label has the highest logit, bool […]. The
        first of equal logits counts as the highest.
    """
    losses = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
    return losses, ops.equal(ops.argmax(logits, axis=-1), ops.cast(labels, "int32"))
