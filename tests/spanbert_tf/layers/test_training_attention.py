"""Attention with dropout and its gradients beside PyTorch's of the definition, in float64."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import torch

from spanbert_tf.layers.operations.plain import Dropout
from spanbert_tf.layers.operations.tensorflow import dropout_mask, training_attention

SHAPE = (3, 2, 7, 4)  # B, N, S, D
LENGTHS = [7, 3, 1]
MASKED = -1e9


def numbers(scale=1.0):
    """Queries, keys, values and the gradient that arrives at the outputs."""
    source = np.random.default_rng(0)
    return [scale * source.normal(size=SHAPE) for _ in range(4)]


def padding():
    is_padding = np.arange(SHAPE[2]) >= np.array(LENGTHS)[:, np.newaxis]
    return np.where(is_padding, MASKED, 0.0)[:, None, None, :]


def one_by_one(query, key, value, padding, dropout):
    is_kept, scale = dropout_mask(dropout, (*SHAPE[:3], SHAPE[2]))
    weights = tf.nn.softmax(tf.matmul(query, key, transpose_b=True) + padding)
    return tf.matmul(weights * tf.cast(is_kept, query.dtype) * tf.cast(scale, query.dtype), value)


def computed(rate, parts, dtype="float32", jit_compile=False, attention=training_attention):
    query, key, value, upstream = (tf.cast(part, dtype) for part in parts)
    dropout = keras.layers.Dropout(rate, seed=5)

    @tf.function(jit_compile=jit_compile)
    def compute():
        with tf.GradientTape() as tape:
            tape.watch([query, key, value])
            drawn = Dropout.draw(dropout)
            heads = attention(query, key, value, tf.cast(padding(), dtype), drawn)
        return heads, *tape.gradient(heads, [query, key, value], output_gradients=upstream)

    found = compute()
    assert {part.dtype for part in found} == {tf.dtypes.as_dtype(dtype)}
    return [tf.cast(part, tf.float32).numpy() for part in found]


def softmax(query, key):
    return torch.softmax(query @ key.transpose(2, 3) + torch.tensor(padding()), dim=-1)


def kept_scales(rate):
    """What dropout multiplies each weight by: 0 or its scale, [B, N, S, S]."""
    if not rate:
        return torch.ones([*SHAPE[:3], SHAPE[2]])
    drawn = Dropout.draw(keras.layers.Dropout(rate, seed=5))
    is_kept, scale = dropout_mask(drawn, (*SHAPE[:3], SHAPE[2]))
    return torch.tensor(is_kept.numpy()) * scale


def defined(rate, parts):
    query, key, value, upstream = (torch.tensor(part) for part in parts)
    sources = [part.requires_grad_() for part in (query, key, value)]
    heads = (softmax(query, key) * kept_scales(rate)) @ value
    heads.backward(upstream)
    return [heads.detach().numpy(), *(part.grad.numpy() for part in sources)]


def error_bounds(rate, parts):
    """How far any float32 kernel may be from `defined`: a share of the absolute terms it adds up.

    Where terms cancel, as in the gradient of a query whose weight is all on one key, the sum says
    nothing about its error: it can be 1e-32, and the error is that of the terms. With u = 2^-24, a
    sum of n products is wrong by n u of its absolute terms in any order (Higham 2002, section 3.1);
    so a score by d = (D + 1) R u, where R is the largest sum of |query| |key|, and by 2 R u where
    the largest is subtracted, and a weight by 2 d of itself and some u of the exponential; weights
    below 1e-38 are 0 in float32.
    """
    query, key, value, upstream = (torch.tensor(part) for part in parts)
    weights, kept = softmax(query, key) + 1e-30, kept_scales(rate)  # times `share`: above 1e-38
    largest = abs(query) @ abs(key).transpose(2, 3)
    of_score = (SHAPE[3] + 3) * float(largest.max())
    # A gradient of a score has two weights, sums over D, S and D in turn, and is summed over S.
    share = 2.0**-24 * (4 * of_score + 4 * SHAPE[2] + SHAPE[3] + 24)
    heads = (weights * kept) @ abs(value)
    products = kept * (abs(upstream) @ abs(value).transpose(2, 3))
    means = (abs(upstream) * heads).sum(dim=-1, keepdim=True)
    of_scores = weights * (products + means)  # the two terms whose difference is the gradient
    terms = [
        heads,
        of_scores @ abs(key),
        of_scores.transpose(2, 3) @ abs(query),
        (weights * kept).transpose(2, 3) @ abs(upstream),
    ]
    return [share * part.numpy() for part in terms]


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("rate", [0.0, 0.1, 0.9])
@pytest.mark.parametrize("scale", [1.0, 8.0])  # of 8: nearly all weight is on one key
def test_outputs_and_gradients_are_the_definitions(rate, scale, jit_compile):
    parts = numbers(scale)
    # Inputs that float32 holds, so that the error is the computation's alone.
    parts = [part.astype("float32").astype("float64") for part in parts]
    found = computed(rate, parts, "float32", jit_compile)
    for actual, expected, bound in zip(
        found, defined(rate, parts), error_bounds(rate, parts), strict=True
    ):
        errors = abs(actual - expected)
        assert (errors <= bound).all(), (errors / np.maximum(bound, 1e-300)).max()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_loses_little_more_than_the_operations_one_by_one(dtype, monkeypatch):
    monkeypatch.setitem(globals(), "MASKED", -3e4)  # float16 has no -1e9
    # Alone in its row, a position has a gradient of 0, which one by one happens to be exact.
    monkeypatch.setitem(globals(), "LENGTHS", [7, 3, 5])
    parts = [np.asarray(tf.cast(tf.cast(part, dtype), tf.float64)) for part in numbers()]
    expected = defined(0.25, parts)

    def errors(attention):
        found = computed(0.25, parts, dtype, attention=attention)
        return [np.linalg.norm(a - b) for a, b in zip(found, expected, strict=True)]

    own, plain = errors(training_attention), errors(one_by_one)
    # Two products are rounded before their difference is taken, not the difference's product:
    # with 7 keys the gradients of queries and keys lose up to 1.8 times as much, with 128 1.1.
    assert all(a < 2 * b for a, b in zip(own, plain, strict=True)), (own, plain)


def test_nothing_is_kept_and_nothing_flows():
    """Where dropout takes every weight of a query, its output and its gradient are 0."""
    parts = [part[:, :, :1] for part in numbers()]
    query, key, value, upstream = (tf.constant(part, tf.float32) for part in parts)
    dropout = Dropout.draw(keras.layers.Dropout(0.5, seed=2))
    is_kept, _ = dropout_mask(dropout, (*SHAPE[:2], 1, 1))
    with tf.GradientTape() as tape:
        tape.watch([query, value])
        heads = training_attention(query, key, value, tf.zeros([3, 1, 1, 1]), dropout)
    of_query, of_value = tape.gradient(heads, [query, value], output_gradients=upstream)
    kept = is_kept.numpy()[..., 0, 0]
    assert 0 < kept.sum() < kept.size
    assert (np.abs(heads.numpy()).sum((2, 3)) > 0).tolist() == kept.tolist()
    assert (np.abs(of_value.numpy()).sum((2, 3)) > 0).tolist() == kept.tolist()
    # One key: its weight is 1 whatever the query is.
    np.testing.assert_allclose(of_query, np.zeros_like(of_query), atol=1e-6)
