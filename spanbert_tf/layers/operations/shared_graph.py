"""Shares one graph between all layers of an encoder, on TensorFlow.

The layers compute the same function of different weights. In a graph, all layers call one function,
so TensorFlow traces, optimizes and stores it once, not 24 times.
"""

from collections.abc import Hashable

import keras
import tensorflow as tf
from keras.src.backend.common.variables import AutocastScope
from tensorflow.python.ops import control_flow_util

from spanbert_tf.layers.operations import plain
from spanbert_tf.layers.operations.plain import LayerConstants

_FUNCTIONS = "_spanbert_tf_layers"  # attribute of the graph that calls the functions


def call_in_training(
    layer: keras.layers.Layer, x: tf.Tensor, constants: LayerConstants
) -> tf.Tensor:
    """See `plain`; in a graph, equal layers call one function.

    The function is traced from the first of these layers. Every layer calls it with the values of
    its own weights, which replace the weights of the first layer.
    """
    if not _can_share(layer):
        return plain.call_in_training(layer, x, constants)
    graph = tf.compat.v1.get_default_graph()
    if not hasattr(graph, _FUNCTIONS):
        setattr(graph, _FUNCTIONS, {})
    functions = getattr(graph, _FUNCTIONS)
    key = _description(layer)
    if key not in functions:
        # If TensorFlow inlined the function, each layer would have its own copy.
        attributes = {"_noinline": True}
        functions[key] = tf.function(
            plain.pure_call(layer), autograph=False, experimental_attributes=attributes
        )
    with AutocastScope(None):  # values that were cast here would be stored for the gradients
        values = [tf.convert_to_tensor(weight.value) for weight in layer.weights]
    return functions[key](x, constants, *values)


def _can_share(layer: keras.layers.Layer) -> bool:
    """Whether a graph is being built in which the layer can call a shared function.

    The function stores the values that the gradients of all weights need, so a layer with frozen
    weights does not call it, except with gradient checkpointing. XLA would need constant arguments,
    because the function returns shapes.
    """
    if tf.executing_eagerly():
        return False
    if control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        return False
    return layer.gradient_checkpointing or all(weight.trainable for weight in layer.weights)


def _description(layer: keras.layers.Layer) -> Hashable:
    """Returns a key that is equal for layers with equal graphs, apart from shapes.

    So what `compute` reads beside its arguments and the weights must be in `get_config`.
    """
    config = {**layer.get_config(), "name": None}
    are_trainable = tuple(weight.trainable for weight in layer.weights)
    return type(layer), repr(config), layer.gradient_checkpointing, are_trainable
