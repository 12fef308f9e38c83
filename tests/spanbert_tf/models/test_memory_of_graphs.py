"""What TensorFlow's graphs of training hold, after TensorFlow has optimised them."""

import numpy as np
import pytest
import tensorflow as tf
import torch
from tensorflow.python.eager import context

from spanbert_tf.layers import operations
from spanbert_tf.models.train_step.tensorflow import accumulate_gradients

ROWS, WIDTH = 4, 64


def optimised_nodes(function, *arguments):
    """The results of a function, and the nodes of its graph as it runs."""
    collector = context.context()
    collector.enable_graph_collection()
    try:
        results = tf.function(function)(*arguments)
        graphs = collector.export_run_metadata().function_graphs
    finally:
        collector.disable_graph_collection()
    found = [graph.post_optimization_graph for graph in graphs]
    nodes = [node for graph in found for node in graph.node]
    return results, [*nodes, *(n for g in found for f in g.library.function for n in f.node_def)]


@pytest.mark.parametrize("wanted", [2, 4])
def test_sums_of_gradients_begin_with_zeros_that_are_not_held_for_ever(wanted):
    source = np.random.default_rng(0)
    x = source.normal(size=(ROWS, WIDTH)).astype("float32")
    variable = tf.Variable(tf.ones((WIDTH, WIDTH)))

    def gradients_of(part, count):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(tf.matmul(part[0], variable)))
        return [tape.gradient(loss, variable)]

    (total,), nodes = optimised_nodes(
        lambda x: accumulate_gradients(gradients_of, (x,), wanted, [variable]), tf.constant(x)
    )
    expected = 2 * x.T @ (x @ np.ones((WIDTH, WIDTH), "float32"))
    np.testing.assert_allclose(total, expected, rtol=1e-4, atol=1e-4)
    constants = [node.attr["value"].tensor.tensor_shape.dim for node in nodes if node.op == "Const"]
    assert constants
    assert [WIDTH, WIDTH] not in [[dim.size for dim in shape] for shape in constants]


def test_joined_kernels_are_joined_again_for_the_gradient():
    source = np.random.default_rng(0)
    x, *kernels = (
        source.normal(size=shape).astype("float32") for shape in [(ROWS, WIDTH), *3 * [(WIDTH, 8)]]
    )
    upstream = source.normal(size=(ROWS, 24)).astype("float32")

    def compute(upstream, x, *kernels):
        with tf.GradientTape() as tape:
            tape.watch([x, *kernels])
            joined = operations.fused_projection(x, kernels, training=True)
        return joined, *tape.gradient(joined, [x, *kernels], output_gradients=upstream)

    found, nodes = optimised_nodes(compute, *map(tf.constant, (upstream, x, *kernels)))
    parts = [torch.tensor(part, requires_grad=True) for part in (x, *kernels)]
    products = parts[0] @ torch.cat(parts[1:], dim=1)
    products.backward(torch.tensor(upstream))
    for value, expected in zip(found, [products, *(part.grad for part in parts)], strict=True):
        np.testing.assert_allclose(value, expected.detach(), rtol=1e-5, atol=1e-5)
    assert sum(node.op == "ConcatV2" for node in nodes) == 2
