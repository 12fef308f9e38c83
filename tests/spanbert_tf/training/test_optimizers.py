import keras
import keras_hub
import numpy as np
import pytest
import tensorflow as tf
import torch

import spanbert_tf.training
from spanbert_tf.training.schedule import WarmupLinearDecay


def test_schedule_is_the_line_up_and_down():
    schedule = WarmupLinearDecay(0.5, warmup_steps=4, total_steps=10)
    # By hand: quarters of the peak, then sixths of it, never 0 in a step that is trained.
    expected = [0.125, 0.25, 0.375, 0.5, 0.5, 5 / 12, 4 / 12, 3 / 12, 2 / 12, 1 / 12, 0.0, 0.0]
    np.testing.assert_allclose([float(schedule(step)) for step in range(12)], expected, rtol=1e-6)


def test_schedule_without_warmup_begins_at_the_peak():
    schedule = WarmupLinearDecay(0.5, warmup_steps=0, total_steps=5)
    np.testing.assert_allclose(
        [float(schedule(step)) for step in range(5)], [0.5, 0.4, 0.3, 0.2, 0.1], rtol=1e-6
    )


def test_schedule_that_begins_later_joins_the_same_line():
    """By hand: no rate before step 3, four steps up, then the line of a schedule from step 0."""
    schedule = WarmupLinearDecay(0.8, warmup_steps=4, total_steps=12, first_step=3)
    line = [0.8 * (12 - step) / 8 for step in range(12)]
    expected = [0.0, 0.0, 0.0, 0.2, 0.4, 0.6, *line[6:]]
    found = [float(schedule(step)) for step in range(12)]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    from_zero = WarmupLinearDecay(0.8, warmup_steps=4, total_steps=12)
    assert found[6:] == [float(from_zero(step)) for step in range(6, 12)]
    at_once = WarmupLinearDecay(0.8, warmup_steps=0, total_steps=4, first_step=2)
    np.testing.assert_allclose([float(at_once(step)) for step in range(4)], [0, 0, 0.4, 0.2])


def test_schedule_tells_the_last_steps_of_the_paper_apart():
    schedule = WarmupLinearDecay(1e-4, warmup_steps=10_000, total_steps=2_400_000)
    last = float(schedule(tf.constant(2_399_999, tf.int64)))
    assert last == pytest.approx(1e-4 / 2_390_000, rel=1e-5)
    assert float(schedule(tf.constant(2_399_998, tf.int64))) == pytest.approx(2 * last, rel=1e-5)


def _torch_schedule(step, warmup, total):
    return (step + 1) / warmup if step < warmup else (total - step) / (total - warmup)


def test_steps_equal_those_of_pytorch_with_clipping_decay_and_schedule():
    """An embedding with repeated ids, a kernel with a bias, six steps of very unequal gradients."""
    warmup, total, peak, decay, num_steps = 2, 7, 0.1, 0.1, 6
    keras.utils.set_random_seed(1)
    embedding = keras.layers.Embedding(5, 3)
    dense = keras.layers.Dense(4)
    embedding.build()
    dense.build((None, 3))
    dense.bias.assign([0.5, -1.0, 2.0, 1.0])  # an all-zero bias could not show a decay
    model_variables = [*embedding.trainable_variables, *dense.trainable_variables]
    optimizer = spanbert_tf.training.adamw(peak, warmup, total, decay)

    parameters = [
        torch.nn.Parameter(torch.tensor(variable.numpy())) for variable in model_variables
    ]
    table, kernel, bias = parameters
    torch_optimizer = torch.optim.AdamW(
        [
            {"params": [table, kernel], "weight_decay": decay},
            {"params": [bias], "weight_decay": 0.0},
        ],
        lr=peak,
        betas=(0.9, 0.999),
        eps=1e-8,
    )
    torch_schedule = torch.optim.lr_scheduler.LambdaLR(
        torch_optimizer, lambda step: _torch_schedule(step, warmup, total)
    )
    random = np.random.default_rng(0)
    for step, scale in enumerate([1.0, 0.05, 30.0, 0.01, 3.0, 0.3][:num_steps], start=1):
        for group in torch_optimizer.param_groups:  # ours stands before the correction of v
            group["eps"] = 1e-8 / (1 - 0.999**step) ** 0.5
        ids = random.integers(0, 5, size=7)  # seven draws of five ids: some repeat
        weights = (scale * random.normal(size=(7, 4))).astype("float32")
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(dense(embedding(ids)) * weights)
        gradients = tape.gradient(loss, model_variables)
        assert isinstance(gradients[0], tf.IndexedSlices)
        optimizer.apply_gradients(zip(gradients, model_variables, strict=True))

        torch_optimizer.zero_grad()
        ((table[torch.tensor(ids)] @ kernel + bias) * torch.tensor(weights)).sum().backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        torch_optimizer.step()
        torch_schedule.step()
        for variable, parameter in zip(model_variables, parameters, strict=True):
            # Each step moves a weight by about the rate, 0.1. Keras computes 1 - 0.999**t in
            # float32, PyTorch in float64: 1e-4 of a step apart.
            np.testing.assert_allclose(variable.numpy(), parameter.detach(), rtol=0, atol=5e-5)


def _decayed_names(model_variables):
    """Names of the variables that a step with gradients of zero makes smaller."""
    for variable in model_variables:
        variable.assign(keras.ops.ones_like(variable))
    optimizer = spanbert_tf.training.adamw(1.0, warmup_steps=0, total_steps=10)
    gradients = [tf.zeros(variable.shape) for variable in model_variables]
    optimizer.apply_gradients(zip(gradients, model_variables, strict=True))
    return {
        variable.path
        for variable in model_variables
        if not np.array_equal(variable.numpy(), np.ones(variable.shape))
    }


def test_decay_spares_biases_and_layer_norm_whatever_their_rank():
    encoder = keras_hub.layers.TransformerEncoder(intermediate_dim=7, num_heads=2)
    encoder.build((None, 5, 6))
    head = keras_hub.layers.MaskedLMHead(vocabulary_size=11)
    head.build((None, 5, 6), mask_positions_shape=(None, 2))
    embedding = keras_hub.layers.TokenAndPositionEmbedding(11, 5, 6)
    embedding.build((None, 5))
    model_variables = [
        *encoder.trainable_variables,
        *head.trainable_variables,
        *embedding.trainable_variables,
    ]
    assert any(len(v.shape) == 2 and v.path.endswith("bias") for v in model_variables)
    expected = {
        v.path
        for v in model_variables
        if v.path.rsplit("/", 1)[-1].endswith(("kernel", "embeddings"))
    }
    assert _decayed_names(model_variables) == expected


def test_optimizer_survives_its_configuration():
    optimizer = spanbert_tf.training.adamw(0.2, warmup_steps=3, total_steps=9, weight_decay=0.3)
    copy = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(optimizer))
    layer = keras.layers.Dense(2, bias_initializer="ones")
    layer.build((None, 2))
    kernel = layer.kernel.numpy()
    copy.apply([tf.zeros((2, 2)), tf.zeros((2,))], layer.trainable_variables)
    # Gradients of zero leave the decay alone: a first step at a third of the peak of 0.2.
    np.testing.assert_allclose(layer.kernel.numpy(), kernel * (1 - 0.3 * 0.2 / 3), rtol=1e-6)
    np.testing.assert_array_equal(layer.bias.numpy(), [1.0, 1.0])


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30])
def test_gradients_without_a_finite_norm_change_nothing(bad):
    layer = keras.layers.Dense(2)
    layer.build((None, 3))
    optimizer = spanbert_tf.training.adamw(0.1, warmup_steps=0, total_steps=9)
    before = layer.get_weights()
    gradients = [tf.fill((3, 2), np.float32(bad)), tf.ones((2,))]
    for skipped in (1, 2):
        optimizer.apply(gradients, layer.trainable_variables)
        assert int(optimizer.skipped_in_a_row) == skipped
    for old, new in zip(before, layer.get_weights(), strict=True):
        np.testing.assert_array_equal(new, old)
    optimizer.apply([tf.ones((3, 2)), tf.ones((2,))], layer.trainable_variables)
    assert int(optimizer.skipped_in_a_row) == 0
    assert int(optimizer.iterations) == 1
    assert not np.allclose(layer.get_weights()[0], before[0])


def test_loss_scale_does_not_change_the_step():
    """Scaled gradients are clipped by the norm of the unscaled ones."""
    steps = []
    for dynamic_loss_scale in (False, True):
        layer = keras.layers.Dense(2, kernel_initializer="ones")
        layer.build((None, 3))
        optimizer = spanbert_tf.training.adamw(
            0.1, 0, 9, epsilon=1e-3, dynamic_loss_scale=dynamic_loss_scale
        )
        optimizer.build(layer.trainable_variables)
        for size in (0.1, 5.0, 0.01):  # below, above and far below the limit of 1
            scale = float(optimizer.scale_loss(tf.constant(1.0)))
            gradients = [tf.fill((3, 2), size * scale), tf.fill((2,), -size * scale)]
            optimizer.apply(gradients, layer.trainable_variables)
        steps.append(layer.get_weights())
    for plain, scaled in zip(*steps, strict=True):
        np.testing.assert_allclose(scaled, plain, rtol=1e-6)


def test_variables_share_the_schedule_and_the_powers_of_one_update():
    variables = [keras.Variable(np.ones(size, "float32"), name=f"v{size}") for size in (2, 3, 4)]
    optimizer = spanbert_tf.training.adamw(warmup_steps=2, total_steps=9)
    optimizer.build(variables)

    @tf.function
    def update():
        optimizer.apply([tf.ones(v.shape) for v in variables], variables)

    functions = update.get_concrete_function().graph.as_graph_def().library.function
    nodes = [node.op for function in functions for node in function.node_def]
    assert nodes.count("ResourceApplyAdam") == 3
    assert nodes.count("Pow") == 2  # one for each beta
