"""The loss over a vocabulary beside its definition in NumPy's float64."""

import numpy as np
import pytest
import tensorflow as tf

from spanbert_tf.layers.operations import vocabulary_crossentropy
from spanbert_tf.models.objective import crossentropy_sums

ENTRIES = 300


def computed(labels, logits, upstream, jit_compile=False):
    """Losses, hits, and the gradient of the losses' sum with the weights `upstream`."""
    labels, logits, upstream = tf.constant(labels), tf.constant(logits), tf.constant(upstream)

    @tf.function(jit_compile=jit_compile)
    def compute():
        with tf.GradientTape() as tape:
            tape.watch(logits)
            losses, hits = vocabulary_crossentropy(labels, logits)
        return losses, hits, tape.gradient(losses, logits, output_gradients=upstream)

    return [part.numpy() for part in compute()]


def defined(labels, logits, upstream):
    logits = logits.astype("float64")
    shifted = logits - logits.max(axis=-1, keepdims=True)
    log_shares = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    of_labels = np.eye(logits.shape[-1])[labels]
    losses = -(log_shares * of_labels).sum(axis=-1)
    gradient = (np.exp(log_shares) - of_labels) * upstream[..., None]
    return losses, logits.argmax(axis=-1) == labels, gradient


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("shape", [(3, 7), (5,)])
@pytest.mark.parametrize("spread", [0.1, 5.0, 1e3])
def test_losses_hits_and_gradients_are_the_definitions(shape, spread, jit_compile):
    source = np.random.default_rng(0)
    logits = source.normal(scale=spread, size=(*shape, ENTRIES)).astype("float32")
    labels = source.integers(0, ENTRIES, shape).astype("int32")
    labels.flat[0] = logits.reshape(-1, ENTRIES)[0].argmax()
    upstream = source.normal(size=shape).astype("float32")
    upstream.flat[-1] = 0.0  # an empty slot
    losses, hits, gradient = computed(labels, logits, upstream, jit_compile)
    expected = defined(labels, logits, upstream)
    np.testing.assert_allclose(losses, expected[0], rtol=1e-6, atol=2e-6)
    np.testing.assert_array_equal(hits, expected[1])
    np.testing.assert_allclose(gradient, expected[2], atol=1e-6)


def test_a_label_without_a_share_that_float32_holds_has_a_finite_loss():
    logits = np.array([[200.0, 0.0, -3e4]], "float32")
    losses, _, gradient = computed(np.array([2], "int32"), logits, np.ones(1, "float32"))
    np.testing.assert_allclose(losses, [30_200.0])
    np.testing.assert_allclose(gradient, [[1.0, 0.0, -1.0]])


def test_of_equal_logits_the_first_is_the_prediction():
    logits = np.array([[0.0, 2.0, 2.0], [0.0, 2.0, 2.0], [-0.0, 0.0, -1.0]], "float32")
    _, hits, _ = computed(np.array([1, 2, 0], "int32"), logits, np.ones(3, "float32"))
    assert hits.tolist() == [True, False, True]


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("label", range(4))
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_rows_with_logits_that_are_no_numbers_have_no_finite_gradient(value, label, jit_compile):
    logits = np.zeros((2, 4), "float32")
    logits[1, 2] = value
    labels = np.full(2, label, "int32")
    losses, _, gradient = computed(labels, logits, np.ones(2, "float32"), jit_compile)
    assert np.isfinite(losses).tolist() == [True, False]
    assert np.isfinite(gradient[0]).all() and not np.isfinite(gradient[1]).any()


def test_tensorflows_check_of_numbers_ends_at_bad_logits_alone():
    """`tf.debugging.enable_check_numerics` looks at every value, constants included."""
    labels, logits, upstream = np.array([1], "int32"), np.zeros((1, 4), "float32"), np.ones(1)
    tf.debugging.enable_check_numerics()
    try:
        losses, _, gradient = computed(labels, logits, upstream.astype("float32"))
        np.testing.assert_allclose(losses, [np.log(4.0)], rtol=1e-6)
        np.testing.assert_allclose(gradient, [[0.25, -0.75, 0.25, 0.25]], rtol=1e-6)
        logits[0, 2] = np.nan
        with pytest.raises(tf.errors.InvalidArgumentError, match="NaN"):
            computed(labels, logits, upstream.astype("float32"))
    finally:
        tf.debugging.disable_check_numerics()


def test_targets_count_once_whatever_their_weight():
    logits = np.log([[0.75, 0.25], [0.25, 0.75], [0.75, 0.25]]).astype("float32")
    sums = crossentropy_sums(np.array([0, 1, 1]), logits, np.array([0.5, 0.0, 2.0]))
    # The second is right, and no target.
    np.testing.assert_allclose(sums.num_correct, 1.0)
    np.testing.assert_allclose(sums.num_targets, 2.0)
    np.testing.assert_allclose(sums.loss, 0.5 * np.log(4 / 3) + 2.0 * np.log(4), rtol=1e-6)
