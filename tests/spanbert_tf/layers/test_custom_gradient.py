"""Custom gradients: they are used wherever TensorFlow differentiates, and end with their graph."""

import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf

from spanbert_tf.layers.operations import vocabulary_crossentropy
from spanbert_tf.layers.operations.custom_gradient import custom_gradient
from spanbert_tf.models import SpanBertBackbone


def scaled_product(x, y):
    """Has gradients that TensorFlow would not find by itself."""

    def gradient(upstream):
        return 10.0 * upstream * y, 100.0 * upstream * x

    return x * y, gradient


def tape_gradients(x, y):
    with tf.GradientTape() as tape:
        tape.watch([x, y])
        loss = tf.reduce_sum(custom_gradient(scaled_product)(x, y) * [1.0, 2.0])
    return tape.gradient(loss, [x, y])


def graph_gradients(x, y):
    return tf.gradients(custom_gradient(scaled_product)(x, y) * [1.0, 2.0], [x, y])


def gradients_of_inner_function(x, y):
    """The function is traced and differentiated apart from the tape."""
    inner = tf.function(custom_gradient(scaled_product), autograph=False)
    with tf.GradientTape() as tape:
        tape.watch([x, y])
        loss = tf.reduce_sum(inner(x, y) * [1.0, 2.0])
    return tape.gradient(loss, [x, y])


@pytest.mark.parametrize(
    "gradients",
    [
        tape_gradients,
        tf.function(tape_gradients),
        tf.function(tape_gradients, jit_compile=True),
        tf.function(graph_gradients),
        gradients_of_inner_function,
        tf.function(gradients_of_inner_function),
    ],
    ids=["eager", "graph", "xla", "tf.gradients", "inner function", "inner function in a graph"],
)
def test_gradients_are_those_of_the_function_itself(gradients):
    found = gradients(tf.constant([2.0, 3.0]), tf.constant([5.0, 7.0]))
    np.testing.assert_array_equal(found[0], [10 * 5.0, 10 * 2 * 7.0])
    np.testing.assert_array_equal(found[1], [100 * 2.0, 100 * 2 * 3.0])


def graphs_of_a_step():
    """Trains an encoder; returns all graphs, among them those of the step and of its layers."""
    sizes = {"num_layers": 2, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 8}
    backbone = SpanBertBackbone(20, max_sequence_length=8, **sizes)
    inputs = {name: tf.ones([1, 8], "int32") for name in backbone.input}

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            outputs = backbone(inputs, training=True)["sequence_output"]
            losses, _ = vocabulary_crossentropy(tf.zeros([1, 8]), outputs)
        return tape.gradient(losses, backbone.trainable_variables)

    step()
    return graphs_that_exist()


def graphs_that_exist():
    return weakref.WeakSet(each for each in gc.get_objects() if isinstance(each, tf.Graph))


def test_training_graphs_end_with_their_model():
    before = graphs_that_exist()
    graphs = graphs_of_a_step() - before
    assert len(graphs) > 2
    gc.collect()
    assert not graphs
