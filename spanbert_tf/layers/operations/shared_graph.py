"""One graph for all layers of an encoder, on TensorFlow.

The layers are one computation with different weights. In a graph each layer calls the same
function, so that TensorFlow traces, optimizes and keeps it once, not 24 times.
"""

from collections.abc import Hashable, Sequence

import keras
import tensorflow as tf
from keras.src.backend.common.variables import AutocastScope
from tensorflow.python.ops import control_flow_util

from spanbert_tf.layers.operations import plain
from spanbert_tf.layers.operations.plain import Dropout

_FUNCTIONS = "_spanbert_tf_layers"  # attribute of the graph that calls the functions


def call_in_training(
    layer: keras.layers.Layer,
    x: tf.Tensor,
    padding_mask: tf.Tensor,
    dropouts: Sequence[Dropout],
) -> tf.Tensor:
    """Computes as `plain` does, by a function that equal layers share while a graph is built.

    The function is traced from the first layer of its kind. Every layer, the first one too, calls
    it with the values of its own weights, which take the place of the first layer's.
    """
    if not _can_share(layer):
        return plain.call_in_training(layer, x, padding_mask, dropouts)
    graph = tf.compat.v1.get_default_graph()
    if not hasattr(graph, _FUNCTIONS):
        setattr(graph, _FUNCTIONS, {})
    functions = getattr(graph, _FUNCTIONS)
    key = _description(layer)
    if key not in functions:
        # If TensorFlow inlined the function, each layer would have a copy of it again.
        attributes = {"_noinline": True}
        functions[key] = tf.function(
            plain.pure_call(layer), autograph=False, experimental_attributes=attributes
        )
    with AutocastScope(None):  # values that are cast here would be kept for the gradients
        values = [tf.convert_to_tensor(weight.value) for weight in layer.weights]
    return functions[key](x, padding_mask, dropouts, *values)


def _can_share(layer: keras.layers.Layer) -> bool:
    """Whether a graph is being built in which the layer can call a shared function.

    The function keeps what the gradients of all weights need, so a layer with frozen weights does
    without, unless it is computed again anyway. XLA would take the arguments for constants, because
    the function returns shapes.
    """
    if tf.executing_eagerly():
        return False
    if control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        return False
    return layer.gradient_checkpointing or all(weight.trainable for weight in layer.weights)


def _description(layer: keras.layers.Layer) -> Hashable:
    """What tells one layer's graph from another's, beside the shapes of its arguments."""
    config = {**layer.get_config(), "name": None}
    are_trainable = tuple(weight.trainable for weight in layer.weights)
    return type(layer), repr(config), layer.gradient_checkpointing, are_trainable
