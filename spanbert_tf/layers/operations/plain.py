"""The operations of a transformer layer in Keras' own operations, which every backend has.

`tensorflow` and `jax` take from here what they do not compute in another way.

B rows, S positions, N heads, D width of a head, H = N · D, R = B · S, I width of the feed-forward
network, V vocabulary.
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
NUM_16_BITS = 2**16  # values that 16 random bits can have


class Dropout(NamedTuple):
    """A dropout whose random number is drawn: it drops the same values each time it is applied.

    Attributes:
        rate: share of the values that are dropped; 0 drops nothing.
        seed: the random number, int [2]; `None` where the rate is 0.
        kernel_seed: seed of a kernel that counts its random numbers itself, see `kernel_seed`.
    """

    rate: float = 0.0
    seed: keras.KerasTensor | None = None
    kernel_seed: int = 0

    @classmethod
    def draw(cls, layer: keras.layers.Dropout, kernel_seed: int = 0) -> "Dropout":
        """The dropout of a Keras layer, with the layer's next random number."""
        if not layer.rate:
            return cls()
        return cls(layer.rate, layer.seed_generator.next(), kernel_seed)


class _DrawnSeed(keras.random.SeedGenerator):
    """A seed generator that returns the same number at each call."""

    def __init__(self, seed: keras.KerasTensor) -> None:
        self._seed = seed

    def next(self, ordered: bool = True) -> keras.KerasTensor:
        return self._seed


def kernel_seed(layer: keras.layers.Dropout, path: str) -> int:
    """The seed of the attention kernel that draws its own random numbers; only JAX has one.

    Args:
        layer: dropout of the attention weights.
        path: path of the transformer layer.
    """
    return 0


def apply_dropout(x: keras.KerasTensor, dropout: Dropout) -> keras.KerasTensor:
    """Drops values of a float tensor, and scales the others by `1 / (1 - rate)`."""
    if not dropout.rate:
        return x
    return keras.random.dropout(x, dropout.rate, seed=_DrawnSeed(dropout.seed))


def num_kept_of_16_bits(rate: float) -> int:
    """How many of the 2^16 values of 16 random bits keep a value: never none, never all.

    16 bits resolve rates to 1.5e-5. Kept values are scaled by the rate that is really used.
    """
    num_kept = round((1 - rate) * NUM_16_BITS)
    return min(max(num_kept, 1), NUM_16_BITS - 1)


def fused_projection(
    x: keras.KerasTensor, kernels: Sequence[keras.KerasTensor], training: bool
) -> keras.KerasTensor:
    """One matrix product with several kernels.

    Args:
        x: float tensor [R, H].
        kernels: K float tensors [H, H].
        training: whether gradients will be taken.

    Returns:
        The K products side by side, [R, K · H].
    """
    return ops.matmul(x, ops.concatenate(kernels, axis=1))


def attention(
    by_head: keras.KerasTensor, padding_mask: keras.KerasTensor, dropout: Dropout, training: bool
) -> keras.KerasTensor:
    """Scaled dot-product attention (Vaswani et al., 2017, equation 1), dropping attention weights.

    Args:
        by_head: queries, keys and values, float [B, S, 3, N, D].
        padding_mask: int or bool [B, S], 0 for padding.
        dropout: of the attention weights.
        training: whether gradients will be taken.

    Returns:
        A float tensor [B, S, N, D].
    """
    return attend(by_head, padding_mask, lambda weights: apply_dropout(weights, dropout))


def attend(
    by_head: keras.KerasTensor,
    padding_mask: keras.KerasTensor,
    drop: Callable[[keras.KerasTensor], keras.KerasTensor],
) -> keras.KerasTensor:
    """Attention operation by operation; `drop` is applied to the attention weights [B, N, S, S]."""
    query, key, value = split_heads(by_head)
    scores = ops.matmul(query, ops.transpose(key, (0, 1, 3, 2)))  # [B, N, S, S]
    weights = ops.softmax(scores + padding_scores(padding_mask, query.dtype), axis=-1)
    heads = ops.matmul(drop(weights), value)  # [B, N, S, D]
    return ops.transpose(heads, (0, 2, 1, 3))


def split_heads(by_head: keras.KerasTensor) -> list[keras.KerasTensor]:
    """Queries (divided by √D), keys and values [B, N, S, D] of [B, S, 3, N, D]."""
    by_part = ops.transpose(by_head, (2, 0, 3, 1, 4))  # [3, B, N, S, D]
    query, key, value = ops.unstack(by_part, 3, axis=0)
    head_dim = by_head.shape[-1]
    query = ops.multiply(query, ops.cast(head_dim**-0.5, query.dtype))
    return [query, key, value]


def padding_scores(padding_mask: keras.KerasTensor, dtype: Any) -> keras.KerasTensor:
    """What is added to the scores of keys: a large negative number for padding, [B, 1, 1, S]."""
    masked = _MASKED
    if keras.backend.standardize_dtype(dtype) == "float16":
        masked = _MASKED_FLOAT16
    is_padding = 1 - ops.cast(padding_mask, dtype)  # [B, S]
    return (is_padding * masked)[:, None, None, :]


def dense_gelu(
    dense: keras.layers.Dense, x: keras.KerasTensor, training: bool
) -> keras.KerasTensor:
    """The exact GELU of a projection.

    Args:
        dense: a layer with the activation `"gelu"`.
        x: float tensor [R, H].
        training: whether gradients will be taken.

    Returns:
        A float tensor [R, I].
    """
    return dense(x)


def gelu_terms(
    x: keras.KerasTensor,
) -> tuple[keras.KerasTensor, keras.KerasTensor, keras.KerasTensor]:
    """`x`, Φ(x) and φ(x), the normal distribution and its density, in float32.

    GELU(x) is `x · Φ(x)`, and its derivative `Φ(x) + x · φ(x)`.
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
    """`norm(residual + dropout(dense(x)))`.

    Args:
        dense: a layer with a kernel of I · H numbers and a bias [H].
        x: float tensor [R, I].
        residual: float tensor [R, H].
        dropout: of the projection.
        norm: the layer normalization.
        training: whether gradients will be taken.

    Returns:
        A float tensor [R, H].
    """
    return norm(apply_dropout(project(dense, x), dropout) + residual)


def project(dense: keras.layers.Layer, x: keras.KerasTensor) -> keras.KerasTensor:
    """The product of rows [R, I] with a layer's kernel, and its bias, [R, H]."""
    kernel = ops.reshape(dense.kernel, (x.shape[-1], -1))
    return ops.add(ops.matmul(x, kernel), dense.bias)


def normalization_gradients(
    upstream: keras.KerasTensor,
    normalized: keras.KerasTensor,
    inverse: keras.KerasTensor,
    gamma: keras.KerasTensor,
) -> tuple[keras.KerasTensor, keras.KerasTensor, keras.KerasTensor]:
    """Gradients of layer normalization, `gamma · normalized + beta` (Ba et al., 2016).

    Args:
        upstream: gradient of the outputs, float32 [..., H].
        normalized: the inputs less their mean, divided by their deviation, float32 [..., H].
        inverse: one divided by that deviation, float32 [..., 1].
        gamma: float32 [H].

    Returns:
        The gradients of the inputs [..., H], of gamma [H] and of beta [H], float32.
    """
    scaled = upstream * gamma
    mean = ops.mean(scaled, axis=-1, keepdims=True)  # [..., 1]
    product_mean = ops.mean(scaled * normalized, axis=-1, keepdims=True)
    of_inputs = inverse * (scaled - mean - normalized * product_mean)
    rows = tuple(range(len(upstream.shape) - 1))
    of_gamma = ops.sum(upstream * normalized, axis=rows)
    of_beta = ops.sum(upstream, axis=rows)
    return of_inputs, of_gamma, of_beta


def tied_logits(rows: keras.KerasTensor, table: keras.KerasTensor) -> keras.KerasTensor:
    """Logits [R, V] of rows [R, H] and an embedding table [V, H]."""
    return ops.matmul(rows, ops.transpose(table))


def placeholder_zeros(shape: tuple[int, ...], dtype: str) -> keras.KerasTensor:
    """Zeros that will be overwritten before anything reads them."""
    return ops.zeros(shape, dtype)


def call_in_training(
    layer: keras.layers.Layer,
    x: keras.KerasTensor,
    padding_mask: keras.KerasTensor,
    dropouts: Sequence[Dropout],
) -> keras.KerasTensor:
    """`layer.compute` in a training step.

    With `layer.gradient_checkpointing` only the inputs are kept: the rest is computed again for the
    gradients (Chen et al., 2016), with the same random numbers.

    Args:
        layer: a `TransformerEncoder`.
        x: float tensor [B, S, H].
        padding_mask: int or bool tensor [B, S], 0 for padding.
        dropouts: of the attention weights, the attention's output and the feed-forward network.

    Returns:
        A float tensor [B, S, H].
    """
    if not layer.gradient_checkpointing:
        return layer.compute(x, padding_mask, dropouts, training=True)
    return pure_call(layer)(x, padding_mask, dropouts)


def pure_call(layer: keras.layers.Layer) -> Callable[..., keras.KerasTensor]:
    """`layer.compute` as a function of inputs, padding mask, dropouts and the values of weights.

    Without values it uses the layer's own weights. The function does not keep the layer alive:
    TensorFlow never frees a graph that has custom gradients.
    """
    reference: Callable[[], Any] = weakref.ref(layer)  # whoever calls it has the layer
    is_checkpointed = layer.gradient_checkpointing

    def call(x: Any, padding_mask: Any, dropouts: Sequence[Dropout], *values: Any) -> Any:
        def compute(x: Any, *values: Any) -> Any:
            layer = reference()
            weights = contextlib.nullcontext()
            if values:
                weights = keras.StatelessScope(_weight_values(layer, values))
            # The second computation takes place outside of the layer's own scope of casts.
            with weights, AutocastScope(layer.compute_dtype):
                return layer.compute(x, padding_mask, dropouts, training=True)

        if is_checkpointed:
            compute = keras.remat(compute)
        return compute(x, *values)

    return call


def _weight_values(layer: keras.layers.Layer, values: Sequence[Any]) -> list[tuple]:
    """Each weight and its value; that of a frozen weight has no gradient."""
    pairs = []
    for weight, value in zip(layer.weights, values, strict=True):
        if not weight.trainable:
            value = ops.stop_gradient(value)
        pairs.append((weight, value))
    return pairs


def vocabulary_crossentropy(
    labels: keras.KerasTensor, logits: keras.KerasTensor
) -> tuple[keras.KerasTensor, keras.KerasTensor]:
    """The cross-entropy of each target, and whether its label has the highest logit.

    Args:
        labels: int [...].
        logits: float32 [..., V].

    Returns:
        Losses in nats, float32 [...], and whether the label has the highest logit, bool [...]; of
        equal logits the first counts as the highest.
    """
    losses = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
    return losses, ops.equal(ops.argmax(logits, axis=-1), ops.cast(labels, "int32"))
