"""Layers that are computed again for their gradients, beside those that are kept."""

import gc
import importlib.util
import os
import subprocess
import sys
import weakref

import keras
import numpy as np
import pytest

from spanbert_tf.layers import TransformerEncoder

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf
else:
    import jax

WIDTH, LENGTH, NUM_LAYERS = 32, 9, 2


def layers(dtype, dropout, /, *, checkpointing, last=TransformerEncoder, **last_options):
    """A stack of layers; the last one may be of another class, or have other options."""
    keras.utils.set_random_seed(1)
    options = {"intermediate_dim": 37, "num_heads": 4, "dropout": dropout, "dtype": dtype}
    stack = [TransformerEncoder(**options) for _ in range(NUM_LAYERS - 1)]
    stack.append(last(**{**options, **last_options}))
    random = np.random.default_rng(2)
    for layer in stack:
        layer.build((None, None, WIDTH))
        layer.set_weights([random.normal(0, 0.3, w.shape) for w in layer.get_weights()])
        layer.gradient_checkpointing = checkpointing
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
        for stack in (layers(dtype, dropout, checkpointing=way) for way in (False, True))
    )
    for one, other in zip(kept, again, strict=True):
        scale = max(np.abs(one).max(), 0.3)  # the gradient of the keys' bias is 0, and rounding
        np.testing.assert_allclose(other, one, rtol=0, atol=tolerance * scale)
    half = 2 + len(layers(dtype, dropout, checkpointing=False)[0].trainable_variables) * NUM_LAYERS
    assert (kept[0] != kept[half]) == (dropout > 0)


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_losses_gradients_and_states_are_equal_to_the_bit(dtype, dropout):
    check_equal(lambda stack: steps_on_tensorflow(stack, lambda step: step), dtype, dropout, 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_in_a_graph_which_fuses_what_is_not_kept_they_are_equal_to_rounding(dropout):
    check_equal(lambda stack: steps_on_tensorflow(stack, tf.function), "float32", dropout, 1e-5)


def test_each_layer_is_computed_twice_and_once_all_gradients_above_are_there():
    """In the graph: one function of a layer, called for each, and one that computes it again."""

    def calls(*, checkpointing):
        graph = step_of(layers("float32", 0.3, checkpointing=checkpointing)).graph
        return [op for op in graph.get_operations() if op.type == "PartitionedCall"]

    assert functions_with_softmax(calls(checkpointing=False)) == NUM_LAYERS * [1] + NUM_LAYERS * [0]
    found = calls(checkpointing=True)
    assert functions_with_softmax(found) == 2 * NUM_LAYERS * [1]
    forward, again = found[:NUM_LAYERS], found[NUM_LAYERS:]  # `again` from the last layer on
    assert {op.get_attr("f").name for op in forward} != {op.get_attr("f").name for op in again}
    assert not depends_on(again[0], again[1]) and depends_on(again[1], again[0])
    assert depends_on(again[0], forward[-1])


def step_of(stack):
    taken = {}
    steps_on_tensorflow(stack, lambda step: taken.setdefault("step", tf.function(step)))
    return taken["step"].get_concrete_function()


def functions_with_softmax(calls):
    """How many softmaxes are in the function of each call."""
    functions = {f.signature.name: f for f in calls[0].graph.as_graph_def().library.function}
    return [
        sum(node.op == "Softmax" for node in functions[call.get_attr("f").name].node_def)
        for call in calls
    ]


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


class OfZeros(TransformerEncoder):
    def compute(self, inputs, constants, training):
        return super().compute(0 * inputs, constants, training)


CHANGES = {
    "heads": {"num_heads": 8},
    "rate": {"dropout": 0.7, "attention_dropout": 0.3},
    "frozen": {},
    "adapters": {"lora_rank": 2},
    "scale of adapters": {"lora_rank": 2, "lora_alpha": 7},
    "epsilon": {"layer_norm_epsilon": 0.1},
    "class": {"last": OfZeros},
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.quick_cases(2)
def test_layers_that_differ_share_no_graph(change, checkpointing):
    """Compared with eager execution, which has no graph: what one layer is, the other is not."""

    def stack():
        built = layers("float32", 0.3, checkpointing=checkpointing, **CHANGES[change])
        if change == "frozen":
            built[0]._feedforward_output_dense.bias.trainable = False
        return built

    eager, graph = (
        [np.asarray(each) for each in keras.tree.flatten(steps_on_tensorflow(stack(), run))]
        for run in (lambda step: step, tf.function)
    )
    for one, other in zip(eager, graph, strict=True):
        scale = max(np.abs(one).max(), 0.3)
        np.testing.assert_allclose(other, one, rtol=0, atol=1e-4 * scale)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_graphs_that_tensorflow_keeps_do_not_keep_layers(checkpointing):
    stack = layers("float32", 0.3, checkpointing=checkpointing)
    steps_on_tensorflow(stack, tf.function)
    references = [weakref.ref(layer) for layer in stack]
    del stack
    gc.collect()
    assert [reference() for reference in references] == NUM_LAYERS * [None]


@pytest.mark.slow
def test_xla_computes_them_twice_and_takes_no_weights_for_constants():
    def products(*, checkpointing):
        stack = layers("float32", 0.0, checkpointing=checkpointing)
        x, mask = (tf.constant(values) for values in rows())

        @tf.function(jit_compile=True)
        def gradient(x, mask):
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = loss_of(stack, x, mask)
            return tape.gradient(loss, x)

        return gradient.experimental_get_compiler_ir(x, mask)(stage="optimized_hlo").count(" dot(")

    forward = 6  # with weights four, of attention two
    kept = products(checkpointing=False)
    assert kept >= NUM_LAYERS * 2 * forward
    assert products(checkpointing=True) == kept + NUM_LAYERS * forward


@pytest.mark.parametrize("checkpointing", [False, True])
def test_no_gradient_is_computed_of_what_is_frozen(checkpointing):
    def products(*, trainable):
        stack = layers("float32", 0.3, checkpointing=checkpointing)
        for layer in stack:
            layer._feedforward_output_dense.trainable = trainable
        step = step_of(stack)
        functions = [step.function_def, *step.graph.as_graph_def().library.function]
        return sum(node.op == "MatMul" for function in functions for node in executed(function))

    # Of a function without gradients, of one with them, the gradients', and what is computed again.
    # Layers with frozen weights share no function, unless they are computed again.
    again = 4 if checkpointing else 0
    assert products(trainable=True) == 4 + 4 + 8 + again
    assert products(trainable=False) == (4 + 4 + 7 + 4 if checkpointing else NUM_LAYERS * (4 + 7))


def executed(function):
    """The nodes that a function's results depend on."""
    nodes = {node.name: node for node in function.node_def}
    left, found = [*function.ret.values(), *function.control_ret.values()], {}
    while left:
        name = left.pop().removeprefix("^").partition(":")[0]
        if name in nodes and name not in found:  # else an argument
            found[name] = nodes[name]
            left += nodes[name].input
    return found.values()


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed")
def test_on_jax_they_are_equal_too():
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import test_gradient_checkpointing as t; "
        "import keras\n"
        "for rate in (0.0, 0.3):\n"
        "    t.check_equal(t.steps_on_jax, 'float32', rate, 1e-5)\n"
        "devices = keras.distribution.list_devices()[:1]\n"  # then the dropout is Keras' own
        "keras.distribution.set_distribution(keras.distribution.DataParallel(devices=devices))\n"
        "t.check_equal(t.steps_on_jax, 'float32', 0.3, 1e-5)\n"
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
