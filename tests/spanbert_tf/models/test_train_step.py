"""Several steps in one execution: a loop on the device, with the bits of single steps."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework.func_graph import FuncGraph

from spanbert_tf.models.objective import ObjectiveSums
from spanbert_tf.models.span_bert_task import SpanBertTask
from spanbert_tf.training import adamw


class Curve(SpanBertTask, keras.Model):
    """A least-squares fit with dropout, and with GELU, whose gradient has constants to merge."""

    backbone, preprocessor, objective, has_accuracy = None, None, "curve", False

    def __init__(self):
        super().__init__()
        self.dropout, self.hidden = keras.layers.Dropout(0.5), keras.layers.Dense(7)
        self.hidden.build((None, 5))
        self.dense = keras.layers.Dense(1)
        self.dense.build((None, 7))
        self.built = True
        self.depths = []  # of each time that it is traced

    def call(self, x, training=None):
        graph, depth = tf.compat.v1.get_default_graph(), 0
        while isinstance(graph, FuncGraph):
            graph, depth = graph.outer_graph, depth + 1
        self.depths.append(depth)
        hidden = self.hidden(self.dropout(x, training=training))  # [rows, 7]
        return self.dense(keras.ops.gelu(hidden, approximate=False))[:, 0]

    def objective_sums(self, x, outputs, y=None, sample_weight=None):
        weights = self.target_weights(y, sample_weight)
        return {"curve": ObjectiveSums.of((outputs - y) ** 2, None, weights)}


def _rows(batch_size):
    """40 rows; how many batches they are is not stated."""
    x = np.random.default_rng(0).normal(size=(40, 5)).astype("float32")
    rows = tf.data.Dataset.from_tensor_slices((x, x[:, 0])).batch(batch_size)
    return rows.filter(lambda x, y: True)


def _fit(strategy, num_steps, data, **options):
    """The batches after which Keras called back, means of 20 steps, held-out means, the state."""
    keras.utils.set_random_seed(7)
    with strategy.scope():
        model = Curve()
        optimizer = adamw(0.1, 2, 100)
        model.compile(optimizer, auto_scale_loss=False, steps_per_execution=num_steps)
    ends = []
    note = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: ends.append(batch))
    options |= {"shuffle": False, "verbose": 0, "callbacks": [note]}
    history = model.fit(data, **options).history
    held_out = model.evaluate(_rows(12), verbose=0, return_dict=True)
    seeds = [np.array(state) for state in model._seed_states()]
    return ends, history, held_out, [*seeds, *map(np.array, model.get_weights())]


@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # of a number not stated
@pytest.mark.parametrize("num_devices", [1, 2])
def test_steps_in_a_loop_are_the_same_steps(num_devices, two_devices):
    """Also where the data end inside a loop: there are 20 batches of training, 4 held out."""
    strategy = two_devices if num_devices == 2 else tf.distribute.get_strategy()
    data = _rows(8).repeat(4)
    expected_ends, *expected = _fit(strategy, 1, data)
    ends, *found = _fit(strategy, 8, data)
    num_draws = expected[2][0][1]  # of the seed's state: none where there is no batch
    assert num_draws == 20
    assert expected_ends == list(range(20)) and ends == [7, 15, 23]
    for one, other in zip(expected[:2], found[:2], strict=True):
        assert one == other
    for one, other in zip(expected[2], found[2], strict=True):
        np.testing.assert_array_equal(other, one)


@pytest.mark.parametrize("num_devices, num_steps, expected", [(1, 1, 1), (2, 1, 2), (1, 8, 2)])
def test_a_step_is_in_no_more_graphs_than_it_must(num_devices, num_steps, expected, two_devices):
    """Each is one more graph of all variables: of a batch, a loop's body, a step of its own."""
    strategy = two_devices if num_devices == 2 else tf.distribute.get_strategy()
    with strategy.scope():
        model = Curve()
        model.compile(adamw(0.1, 2, 100), jit_compile=False, steps_per_execution=num_steps)
    model.fit(_rows(8).repeat(2), steps_per_epoch=8, shuffle=False, verbose=0)
    assert model.depths == [expected] * num_devices  # each replica's part is traced once


def test_an_optimizer_keeps_its_variables():
    """`build` of Keras' `LossScaleOptimizer` would make them anew each time that it is called."""
    model = Curve()
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam())
    model.compile(optimizer, auto_scale_loss=False)
    kept = []
    for held in ((), (), model.hidden.variables):
        model.fit(_rows(8), steps_per_epoch=2, shuffle=False, verbose=0)
        model.freeze(held)
        kept.append([id(variable) for variable in optimizer.variables])
    assert kept[0] == kept[1] == kept[2]


@pytest.mark.slow
def test_keras_own_loop_fails_under_a_strategy(two_devices):
    """What the code works round (keras #19246); where this fails, Keras has mended it."""
    with two_devices.scope():
        model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", steps_per_execution=2)
    with pytest.raises(tf.errors.InvalidArgumentError, match="Placeholder"):
        model.fit(_rows(8).repeat(), steps_per_epoch=4, verbose=0)
