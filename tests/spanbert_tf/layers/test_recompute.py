"""Layers that are computed again for their gradients, beside those that are kept."""

import importlib.util
import os
import subprocess
import sys

import keras
import numpy as np
import pytest

from spanbert_tf.layers import TransformerEncoder

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf
else:
    import jax

WIDTH, LENGTH, NUM_LAYERS = 32, 9, 2


def layers(dtype, dropout, *, recompute):
    keras.utils.set_random_seed(1)
    stack = [
        TransformerEncoder(
            intermediate_dim=37, num_heads=4, activation="gelu", dropout=dropout, dtype=dtype
        )
        for _ in range(NUM_LAYERS)
    ]
    random = np.random.default_rng(2)
    for layer in stack:
        layer.build((None, None, WIDTH))
        layer.set_weights([random.normal(0, 0.3, w.shape) for w in layer.get_weights()])
        layer.recompute = recompute
    return stack


def rows():
    random = np.random.default_rng(3)
    mask = (np.arange(LENGTH) < np.array([[LENGTH], [5]])).astype("int32")
    return random.normal(size=(2, LENGTH, WIDTH)).astype("float32"), mask


def loss_of(stack, x, mask):
    for layer in stack:
        x = layer(x, padding_mask=mask, training=True)
    return keras.ops.sum(keras.ops.cast(x, "float32") ** 3)


def steps_on_tensorflow(stack, run):
    """Loss, gradients and the dropouts' states of two steps."""
    x, mask = (tf.constant(values) for values in rows())
    variables = [v for layer in stack for v in layer.trainable_variables]

    def step():
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = loss_of(stack, x, mask)
        return loss, tape.gradient(loss, [x, *variables])

    step = run(step)
    return [*step(), *step(), *[v for layer in stack for v in layer.non_trainable_variables]]


def steps_on_jax(stack):
    """As `steps_on_tensorflow`."""
    x, mask = rows()
    trained, others = (
        [v for layer in stack for v in getattr(layer, name)]
        for name in ("trainable_variables", "non_trainable_variables")
    )

    def loss(values, states, x):
        mapping = [*zip(trained, values, strict=True), *zip(others, states, strict=True)]
        with keras.StatelessScope(mapping) as scope:
            value = loss_of(stack, x, mask)
        return value, [scope.get_current_value(state) for state in others]

    step = jax.jit(jax.value_and_grad(loss, argnums=(0, 2), has_aux=True))
    values, states, found = [v.value for v in trained], [v.value for v in others], []
    for _ in range(2):
        (value, states), gradients = step(values, states, x)
        found += [value, gradients]
    return [*found, *states]


def check_equal(make_steps, dtype, dropout, tolerance):
    """Both ways; on the second step dropout has other masks than on the first."""
    kept, again = (
        [np.asarray(each, "float32") for each in keras.tree.flatten(make_steps(stack))]
        for stack in (layers(dtype, dropout, recompute=way) for way in (False, True))
    )
    for one, other in zip(kept, again, strict=True):
        scale = max(np.abs(one).max(), 0.3)  # the gradient of the keys' bias is 0, and rounding
        np.testing.assert_allclose(other, one, rtol=0, atol=tolerance * scale)
    half = 2 + len(layers(dtype, dropout, recompute=False)[0].trainable_variables) * NUM_LAYERS
    assert (kept[0] != kept[half]) == (dropout > 0)


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_losses_gradients_and_states_are_equal_to_the_bit(dtype, dropout):
    check_equal(lambda stack: steps_on_tensorflow(stack, lambda step: step), dtype, dropout, 0.0)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_in_a_graph_which_fuses_what_is_not_kept_they_are_equal_to_rounding(dropout):
    check_equal(lambda stack: steps_on_tensorflow(stack, tf.function), "float32", dropout, 1e-5)


def test_each_layer_is_computed_twice_and_once_all_gradients_above_are_there():
    """In the graph: a second softmax of each layer, which waits for the layer above."""

    def graph(*, recompute):
        stack = layers("float32", 0.3, recompute=recompute)
        taken = {}
        steps_on_tensorflow(stack, lambda step: taken.setdefault("step", tf.function(step)))
        return taken["step"].get_concrete_function().graph

    softmaxes = [
        [op for op in graph(recompute=way).get_operations() if op.type == "Softmax"]
        for way in (False, True)
    ]
    assert [len(each) for each in softmaxes] == [NUM_LAYERS, 2 * NUM_LAYERS]
    first, last = softmaxes[1][1], softmaxes[1][2]  # forward and again, of the last layer
    assert not depends_on(first, last) and depends_on(last, first)


def depends_on(op, other):
    seen, left = set(), [op]
    while left:
        each = left.pop()
        if each is other:
            return True
        before = [*(tensor.op for tensor in each.inputs), *each.control_inputs]
        left += [found for found in before if found not in seen]
        seen.update(before)
    return False


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed")
def test_on_jax_they_are_equal_too():
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import test_recompute as t; "
        "import numpy as np\n"
        "for rate in (0.0, 0.3):\n"
        "    t.check_equal(t.steps_on_jax, 'float32', rate, 1e-5)\n"
        "print('equal')"
    )
    child = subprocess.run(
        [sys.executable, "-c", program, os.path.dirname(__file__)],
        env=os.environ
        | {
            "KERAS_BACKEND": "jax",
            "JAX_PLATFORMS": "cpu",
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
        capture_output=True,
        text=True,
    )
    assert child.stdout.strip().endswith("equal"), child.stderr[-3000:]
