"""The keys of rows, from which all randomness of masks and orders comes."""

import numpy as np
import pytest
import tensorflow as tf

from spanbert_tf.masking.random_bits import row_keys


@pytest.mark.parametrize("seed", [0, -3, 2**63 - 1])
def test_seeds_of_numpy_are_those_of_python(seed):
    epochs, record_ids = tf.constant([0, 1, 1], tf.int64), tf.constant([7, 7, 8], tf.int64)
    expected = row_keys(seed, epochs, record_ids).numpy()
    assert len(set(expected)) == 3
    np.testing.assert_array_equal(row_keys(np.int64(seed), epochs, record_ids), expected)
