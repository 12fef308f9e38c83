"""Custom gradients on TensorFlow that are freed together with their graph.

`tf.custom_gradient` registers the gradient of each call in a graph under a new name, and TensorFlow
2.20 never removes it (https://github.com/tensorflow/tensorflow/issues/97697). The gradient refers
to tensors of the graph, so a process keeps every training graph that it has built, and what the
runtime has compiled for it. Here the gradient belongs to the operation, as that of a call of a
`tf.function` does.
"""

import functools
from collections.abc import Callable

import tensorflow as tf
from tensorflow.python.eager import record


def custom_gradient(
    function: Callable[..., tuple[tf.Tensor, Callable]],
) -> Callable[..., tf.Tensor]:
    """Decorates a function of tensors with its gradient, as `tf.custom_gradient` does.

    Args:
        function: takes tensors and returns a tensor, and a function that takes the gradient of this
            tensor and returns the gradients of all arguments.

    Returns:
        The function of the same tensors that returns the tensor alone.
    """

    @functools.wraps(function)
    def call(*inputs: tf.Tensor) -> tf.Tensor:
        if tf.executing_eagerly():
            return tf.custom_gradient(function)(*inputs)
        output, gradient = function(*inputs)
        # The operation has the arguments as inputs, so that it can return their gradients.
        given = [output, *inputs]
        passed = tf.identity_n(given)

        def backward(upstream: tf.Tensor, *_: tf.Tensor) -> list[tf.Tensor | None]:
            return [None, *tf.nest.flatten(gradient(upstream))]

        # For gradients of a graph, and for tapes. TensorFlow has no public way to either.
        passed[0].op._gradient_function = lambda _, *upstream: backward(*upstream)
        record.record_operation(function.__name__, passed, given, backward)
        return passed[0]

    return call
