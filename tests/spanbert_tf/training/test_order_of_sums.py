"""Sums that rounding tells apart by their order."""

import subprocess
import sys

import pytest
import tensorflow as tf

from spanbert_tf.config import load_config
from spanbert_tf.training.devices import Devices

SUMMANDS = (-1e8, 1e8, 1.0)  # from the left 1, from the right 0


@tf.custom_gradient
def _with_gradient(x, gradient):
    return x, lambda upstream: (gradient, None)


@pytest.fixture(autouse=True)
def ordered():
    Devices(load_config("spanbert_tiny", ["training.strategy=one_device"]).training)


@pytest.mark.parametrize("fresh", range(3))
def test_gradients_are_added_in_one_order_whichever_memory_is_free(fresh):
    """`AddN` begins with a summand that nothing else holds, as it does the arguments."""

    @tf.function
    def gradient(*summands):
        summands = list(summands)
        summands[fresh] *= 2.0  # memory of its own
        x = tf.zeros([])
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.stack([_with_gradient(x, summand) for summand in summands])
        return tape.gradient(y, x)

    summands = [tf.constant(value) for value in SUMMANDS]
    summands[fresh] /= 2.0
    assert float(gradient(*summands)) == 1.0


def test_rows_of_a_table_are_added_in_their_order_to_what_the_whole_table_gets():
    """As of an encoder's tokens, which the heads multiply with, too."""

    @tf.function
    def gradient(first, second, third):
        table = tf.zeros([1])
        with tf.GradientTape() as tape:
            tape.watch(table)
            y = [_with_gradient(table, first), _with_gradient(table, second)]
            y = tf.stack([*y, third * tf.gather(table, [0])])
        return tape.gradient(y, table)

    assert gradient(*(tf.constant([value]) for value in SUMMANDS)).numpy().tolist() == [1.0]


COMMAND = """
from spanbert_tf.lazy import import_keras

import_keras()
import tensorflow as tf

@tf.function
def total(*summands):
    first, second, third = (
        tf.multiply(summand, summands[-1], name=name)
        for name, summand in zip("cba", summands, strict=True)
    )
    return first + second + third

print(float(total(*map(tf.constant, (-1e8, 1e8, 1.0)))))
"""


def test_a_command_that_trains_nothing_adds_as_a_run_does():
    """Else the scores that a run writes would be others than those of `evaluate`."""
    child = subprocess.run([sys.executable, "-c", COMMAND], capture_output=True, text=True)
    assert child.stdout == "1.0\n", child.stderr[-2000:]


@pytest.mark.parametrize("names", ["abc", "cba"])
def test_sums_keep_their_order_whatever_their_parts_are_called(names):
    """The rewriter of arithmetic sorts by names."""

    @tf.function
    def total(*summands):
        first, second, third = (
            tf.multiply(summand, summands[-1], name=name)  # by 1
            for name, summand in zip(names, summands, strict=True)
        )
        return first + second + third

    assert float(total(*map(tf.constant, SUMMANDS))) == 1.0
