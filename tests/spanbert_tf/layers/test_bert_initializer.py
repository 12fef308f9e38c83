"""First values are drawn unless they are loaded, by this project's models and by KerasHub's."""

import threading

import keras_hub
import numpy as np
import pytest

from spanbert_tf.layers import weights_are_loaded
from spanbert_tf.models import SpanBertBackbone

KINDS = (SpanBertBackbone, keras_hub.models.BertBackbone)


def drawn(kind):
    """Kernels and embeddings of a new encoder that are not 0."""
    encoder = kind(11, 1, 2, 8, 16, max_sequence_length=8)
    matrices = [weight.numpy() for weight in encoder.weights if len(weight.shape) > 1]
    return sum(bool(np.any(matrix)) for matrix in matrices)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_drawn_of_what_is_loaded_and_everything_afterwards(kind):
    everything = drawn(kind)
    assert everything == 10  # three tables, the pooler, four of attention, two of the network
    with weights_are_loaded():
        assert drawn(kind) == 0
        with weights_are_loaded(False):
            assert drawn(kind) == everything
        with weights_are_loaded():
            pass
        assert drawn(kind) == 0
        found = []  # a model of another thread is its own matter
        thread = threading.Thread(target=lambda: found.append(drawn(kind)))
        thread.start()
        thread.join()
        assert found == [everything]
    assert drawn(kind) == everything
    with pytest.raises(ZeroDivisionError), weights_are_loaded():
        _ = 1 / 0
    assert drawn(kind) == everything
