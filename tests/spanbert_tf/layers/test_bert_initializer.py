"""First values are drawn unless they are loaded."""

import threading

import keras
import numpy as np
import pytest

from spanbert_tf.layers import bert_initializer, weights_are_loaded
from spanbert_tf.models import SpanBertBackbone


def num_drawn():
    """Kernels and embeddings of a new encoder that are not 0."""
    encoder = SpanBertBackbone(11, 1, 2, 8, 16, max_sequence_length=8)
    matrices = [weight.numpy() for weight in encoder.weights if len(weight.shape) > 1]
    return sum(bool(np.any(matrix)) for matrix in matrices)


def test_nothing_is_drawn_of_what_is_loaded_and_everything_afterwards():
    everything = num_drawn()
    assert everything == 10  # three tables, the pooler, four of attention, two of the network
    with weights_are_loaded():
        assert num_drawn() == 0
        with weights_are_loaded(False):
            assert num_drawn() == everything
        with weights_are_loaded():
            pass
        assert num_drawn() == 0
        found = []  # a model of another thread is its own matter
        thread = threading.Thread(target=lambda: found.append(num_drawn()))
        thread.start()
        thread.join()
        assert found == [everything]
    assert num_drawn() == everything
    with pytest.raises(ZeroDivisionError), weights_are_loaded():
        _ = 1 / 0
    assert num_drawn() == everything


def test_it_draws_what_kerass_initializer_draws_and_leaves_that_as_it_is():
    initializer = keras.initializers.TruncatedNormal(stddev=0.02, seed=3)
    expected = np.asarray(initializer((50, 40)))
    ours = type(bert_initializer()).from_config(initializer.get_config())
    np.testing.assert_array_equal(ours((50, 40)), expected)
    with weights_are_loaded():
        np.testing.assert_array_equal(ours((50, 40)), np.zeros((50, 40)))
        np.testing.assert_array_equal(initializer((50, 40)), expected)


def test_other_seeds_are_the_same_whether_weights_are_loaded_or_not():
    drawn = []
    for are_loaded in (False, True):
        keras.utils.set_random_seed(1)
        with weights_are_loaded(are_loaded):
            SpanBertBackbone(11, 1, 2, 8, 16, max_sequence_length=8)
        drawn.append(np.asarray(keras.initializers.RandomNormal()((4,))))
    np.testing.assert_array_equal(*drawn)
