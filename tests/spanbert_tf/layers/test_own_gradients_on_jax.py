"""GELU, LayerNorm and logits as they are computed on JAX, beside PyTorch in float64."""

import importlib.util
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed"),
]
WIDTH, VOCABULARY_SIZE, EPSILON = 48, 37, 1e-12
STEPS = {"float32": 2**-20, "bfloat16": 2**-8, "float16": 2**-11}
PROGRAM = """
import sys
import jax, keras, numpy as np
from keras import ops
from spanbert_tf.layers import TiedEmbedding, operations
from spanbert_tf.layers.operations.plain import Dropout

given, found = dict(np.load(sys.argv[1])), {}

def record(name, function, *arguments):
    value, derive = jax.vjp(jax.jit(function), *arguments)
    upstream = ops.cast(given["upstream_" + name.split()[0]], value.dtype)
    parts = [value, *derive(upstream)]
    for number, part in enumerate(parts):
        found[f"{name} {number}"] = np.asarray(part.astype("float32"))
        found[f"{name} {number} dtype"] = str(part.dtype)

def projection(width, value, dtype):
    dense = keras.layers.Dense(width, "gelu", kernel_initializer=value, dtype=dtype)
    dense.build((None, 1))
    return dense

def gelu(x):
    return operations.dense_gelu(projection(1, "ones", x.dtype.name), x[:, None], True)[:, 0]

def normalized(x):
    nothing, zeros = projection(x.shape[-1], "zeros", x.dtype.name), ops.zeros_like(x[..., :1])
    return operations.project_and_normalize(nothing, zeros, x, Dropout(), layer, True)

def normalize(x, scale, shift):
    pairs = [(layer.gamma, scale), (layer.beta, shift)]
    with keras.StatelessScope(pairs):
        return normalized(x)

def logits(rows, table):
    with keras.StatelessScope([(embedding.embeddings, table)]):
        return embedding(rows, reverse=True)

for dtype in ("float32", "bfloat16", "float16"):
    record(f"gelu {dtype}", gelu, ops.cast(given["x"], dtype))
    policy = "float32" if dtype == "float32" else f"mixed_{dtype}"
    layer = keras.layers.LayerNormalization(epsilon=1e-12, dtype=policy)
    layer.build(given["rows"].shape)
    arrays = [jax.numpy.asarray(given[name]) for name in ("scale", "shift")]
    record(f"norm {dtype}", normalize, ops.cast(given["rows"], dtype), *arrays)
    embedding = TiedEmbedding(*given["table"].shape, dtype=policy)
    embedding.build()
    table = jax.numpy.asarray(given["table"])
    record(f"logits {dtype}", logits, ops.cast(given["states"], dtype), table)
# In rows of 77 the difference of the means is below 0.
constant = ops.cast(np.repeat(np.linspace(-9, 9, 200)[:, None], 77, axis=1), "bfloat16")
layer = keras.layers.LayerNormalization(epsilon=1e-12, dtype="mixed_bfloat16")
layer.build(constant.shape)
found["constant"] = np.asarray(jax.jit(normalized)(constant).astype("float32"))
np.savez(sys.argv[2], **found)
"""


@pytest.fixture(scope="module")
def given():
    random = np.random.default_rng(0)
    rows = random.normal(0.3, 2.0, (5, 7, WIDTH))
    rows[0, 0, 3] = 60.0  # one feature far outside, as BERT's have
    arrays = {
        # Tails included: there 1 + erf(x) loses what erfc would keep.
        "x": np.concatenate([np.linspace(-12, 12, 2001), random.normal(size=500)]),
        "upstream_gelu": random.normal(size=2501),
        "rows": rows,
        "upstream_norm": random.normal(size=rows.shape),
        "scale": random.normal(1.0, 0.2, WIDTH),
        "shift": random.normal(0.0, 0.2, WIDTH),
        "states": random.normal(size=(2, 3, WIDTH)),
        "table": random.normal(size=(VOCABULARY_SIZE, WIDTH)),
        "upstream_logits": random.normal(size=(2, 3, VOCABULARY_SIZE)),
    }
    return {name: values.astype("float32") for name, values in arrays.items()}


@pytest.fixture(scope="module")
def found(given, tmp_path_factory):
    """Values and gradients of everything, computed in one process."""
    directory = tmp_path_factory.mktemp("jax")
    paths = [str(directory / "given.npz"), str(directory / "found.npz")]
    np.savez(paths[0], **given)
    environment = os.environ | {"KERAS_BACKEND": "jax", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", PROGRAM, *paths]
    child = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert child.returncode == 0, child.stderr[-3000:]
    return dict(np.load(paths[1]))


def rounded(values, dtype):
    """In float64 what the values are in another type."""
    narrow = torch.tensor(values).to(getattr(torch, dtype))
    return narrow.double().requires_grad_()


def exact(function, upstream, *arguments):
    value = function(*arguments)
    value.backward(upstream.detach())
    return [value, *(argument.grad for argument in arguments)]


@pytest.mark.parametrize("dtype", STEPS)
def test_gelu_and_its_gradient(given, found, dtype):
    x, upstream = rounded(given["x"], dtype), rounded(given["upstream_gelu"], dtype)
    expected = exact(torch.nn.functional.gelu, upstream, x)
    for number, values in enumerate(expected):
        actual = found[f"gelu {dtype} {number}"]
        assert found[f"gelu {dtype} {number} dtype"] == dtype
        error = abs(actual - values.detach().numpy())
        limit = abs(values.detach().numpy()) * STEPS[dtype] + 4e-6
        np.testing.assert_array_less(error, limit)


@pytest.mark.parametrize("dtype", STEPS)
def test_layer_norm_and_its_gradients(given, found, dtype):
    x, upstream = rounded(given["rows"], dtype), rounded(given["upstream_norm"], dtype)
    scale, shift = rounded(given["scale"], "float32"), rounded(given["shift"], "float32")

    def normalize(x, scale, shift):
        return torch.nn.functional.layer_norm(x, (WIDTH,), scale, shift, EPSILON)

    expected = exact(normalize, upstream, x, scale, shift)
    for number, values in enumerate(expected):
        actual, values = found[f"norm {dtype} {number}"], values.detach().numpy()
        of_scale = number > 1  # gradients of scale and shift are sums of all rows, in float32
        assert found[f"norm {dtype} {number} dtype"] == ("float32" if of_scale else dtype)
        limit = abs(values) * STEPS[dtype] + 2e-5
        np.testing.assert_array_less(abs(actual - values), 1e-4 if of_scale else limit)


def test_row_of_equal_values_has_the_shift_for_its_norm(found):
    """Its variance is 0, and may be less by rounding where it is a difference."""
    np.testing.assert_allclose(found["constant"], 0.0, atol=1.0)


@pytest.mark.parametrize("dtype", STEPS)
def test_logits_have_the_vocabularys_width(given, found, dtype):
    states, table = rounded(given["states"], dtype), rounded(given["table"], dtype)
    upstream = rounded(given["upstream_logits"], dtype)
    expected = exact(lambda states, table: states @ table.T, upstream, states, table)
    for number, values in enumerate(expected):
        actual = found[f"logits {dtype} {number}"]
        assert actual.shape == values.shape
        scale = abs(values.detach().numpy()).max()
        np.testing.assert_allclose(actual, values.detach(), atol=scale * STEPS[dtype] * 2)
