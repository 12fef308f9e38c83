"""Sums of gradients whose order is that of the code, on TensorFlow."""

import functools
from collections.abc import Sequence

import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import backprop


def keep_order_of_sums() -> None:
    """From now on this process adds in the order in which the code does, whatever runs beside it.

    `tf.GradientTape` adds up the gradients of what is used several times by `AddN`, which begins
    with the first summand whose memory it may overwrite. Which one that is depends on what other
    threads have finished: the last bits of a step differ with the load of the machine. And the
    rewriter of arithmetic makes an `AddN` of any additions, in the order of their names.

    TensorFlow has no switch for the former; this puts a function in the place of its own.
    """
    tf.config.optimizer.set_experimental_options({"arithmetic_optimization": False})
    spaces = backprop._default_vspace._replace(aggregate_fn=_add_in_order)
    pywrap_tfe.TFE_Py_RegisterVSpace(spaces)


def _add_in_order(gradients: Sequence[tf.Tensor | tf.IndexedSlices]) -> tf.Tensor:
    """The sum of gradients of the same value; TensorFlow's of rows of tables, and of lists."""
    if all(isinstance(one, tf.Tensor) and one.dtype != tf.variant for one in gradients):
        return functools.reduce(tf.add, gradients)
    return backprop._aggregate_grads(gradients)
