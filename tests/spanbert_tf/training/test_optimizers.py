import keras
import keras_hub
import numpy as np
import pytest
import tensorflow as tf
import torch

import spanbert_tf.training
from spanbert_tf.training.optimizer import AdamW, WarmupLinearDecay


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


@pytest.mark.parametrize("is_graph", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"global_clipnorm": 1.0},
        {"global_clipnorm": None},
        {"global_clipnorm": 1.0, "epsilon": 0.0},
        {"global_clipnorm": 1.0, "use_ema": True, "ema_momentum": 0.5},
    ],
)
@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30])
def test_gradients_without_a_finite_norm_change_nothing(bad, options, is_graph):
    layer = keras.layers.Dense(2)
    layer.build((None, 3))
    optimizer = AdamW(WarmupLinearDecay(0.1, 0, 9), weight_decay=0.3, **options)
    optimizer.build(layer.trainable_variables)
    state = [*layer.trainable_variables, *optimizer.variables]
    others = [variable for variable in state if variable is not optimizer.skipped_in_a_row]

    def apply(sums):
        optimizer.apply(sums, layer.trainable_variables)

    apply = tf.function(apply) if is_graph else apply
    bad_gradients = [tf.fill((3, 2), np.float32(bad)), tf.ones((2,))]
    for num_updates in (0, 1, 2):
        before = [variable.numpy() for variable in others]
        for skipped in (1, 2):
            apply(bad_gradients)
            assert int(optimizer.skipped_in_a_row) == skipped
            for old, variable in zip(before, others, strict=True):
                np.testing.assert_array_equal(variable, old)
        assert int(optimizer.iterations) == num_updates
        apply([tf.ones((3, 2)), tf.ones((2,))])
        assert int(optimizer.skipped_in_a_row) == 0
        for old, weight in zip(before, layer.get_weights(), strict=False):
            assert (weight != old).all()


def test_what_float8_keeps_of_values_is_no_gradient_to_clip():
    """Keras hands on the range of a layer's inputs as a gradient that replaces a variable."""
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.quantize("float8")
    model.compile(AdamW(0.1, global_clipnorm=1e-3), "mse")
    inputs = np.array([[0.5, -3.0, 1.0]], "float32")
    model.fit(inputs, np.ones((1, 2)), verbose=0)
    (history,) = (v for v in model.variables if v.path.endswith("inputs_amax_history"))
    assert history.numpy()[0] == 3.0


def test_loss_scale_does_not_change_the_step():
    """Scaled gradients are clipped by the norm of the unscaled ones."""
    steps, norms = [], []
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
            norms.append(float(optimizer.gradient_norm))
        steps.append(layer.get_weights())
    # Of 8 elements, before clipping, whatever the loss was multiplied with.
    np.testing.assert_allclose(norms, [size * 8**0.5 for size in (0.1, 5.0, 0.01)] * 2, rtol=1e-5)
    for plain, scaled in zip(*steps, strict=True):
        np.testing.assert_allclose(scaled, plain, rtol=1e-6)


def test_variables_share_the_schedule_and_the_powers_of_one_update():
    variables = [keras.Variable(np.ones(size, "float32"), name=f"v{size}") for size in (2, 3, 4)]
    optimizer = spanbert_tf.training.adamw(warmup_steps=2, total_steps=9)
    optimizer.build(variables)

    @tf.function
    def update():
        optimizer.apply([tf.ones(v.shape) for v in variables], variables)

    graph = update.get_concrete_function().graph.as_graph_def()
    nodes = [node.op for node in graph.node]
    in_branches = [node.op for function in graph.library.function for node in function.node_def]
    assert "ResourceApplyAdam" not in in_branches  # each would be a graph of all variables
    assert nodes.count("ResourceApplyAdam") == 3
    assert nodes.count("Pow") == 2  # one for each beta


NAMES = ("dense/kernel", "dense/bias", "norm/gamma", "norm/beta")
BERT_ADAM = {"bias_correction": False, "global_clipnorm": None, "clipnorm": 1.0}
FAIRSEQ_ADAM = {"global_clipnorm": 1.0, "exclude_from_weight_decay": ()}
WARMUP, TOTAL, PEAK, DECAY, EPSILON = 2, 8, 0.1, 0.3, 1e-3


def variables_of_names():
    """A kernel, and three variables that BERT does not decay, all with values that are not 0."""
    random = np.random.default_rng(5)
    variables = []
    for path in NAMES:
        layer, name = path.split("/")
        with keras.name_scope(layer):
            initial = random.normal(size=(3, 4) if name == "kernel" else (4,))
            variables.append(keras.Variable(initial.astype("float32"), name=name))
    assert [variable.path for variable in variables] == list(NAMES)
    return variables


def gradients_of_step(step):
    """Each variable's of another size, so that some are above a limit of 1 and some below."""
    random = np.random.default_rng(100 + step)
    scales = np.roll([0.02, 0.4, 3.0, 50.0], step)
    return [
        (scale * random.normal(size=(3, 4) if name.endswith("kernel") else (4,))).astype("float32")
        for scale, name in zip(scales, NAMES, strict=True)
    ]


def bert_adam(weights, num_steps):
    """BertAdam in float64: the gradient of each variable is clipped, no moment is corrected, the
    decay is part of the step and spares biases and LayerNorm."""
    weights = [np.array(weight, "float64") for weight in weights]
    moments = [[np.zeros_like(weight), np.zeros_like(weight)] for weight in weights]
    for step in range(num_steps):
        for number, gradient in enumerate(map(np.float64, gradients_of_step(step))):
            norm = np.sqrt((gradient**2).sum())
            gradient *= min(1.0, 1.0 / norm)
            first, second = moments[number]
            first[:] = 0.9 * first + 0.1 * gradient
            second[:] = 0.999 * second + 0.001 * gradient**2
            update = first / (np.sqrt(second) + EPSILON)
            if NAMES[number] == "dense/kernel":
                update += DECAY * weights[number]
            weights[number] -= PEAK * _torch_schedule(step, WARMUP, TOTAL) * update
    return weights


def fairseq_adam(weights, num_steps):
    """fairseq's Adam in float64: one clip, corrected moments with epsilon before the correction,
    and a decay of every variable."""
    weights = [np.array(weight, "float64") for weight in weights]
    moments = [[np.zeros_like(weight), np.zeros_like(weight)] for weight in weights]
    for step in range(num_steps):
        gradients = [np.float64(gradient) for gradient in gradients_of_step(step)]
        norm = np.sqrt(sum((gradient**2).sum() for gradient in gradients))
        rate = PEAK * _torch_schedule(step, WARMUP, TOTAL)
        for weight, gradient, (first, second) in zip(weights, gradients, moments, strict=True):
            gradient *= min(1.0, 1.0 / norm)
            first[:] = 0.9 * first + 0.1 * gradient
            second[:] = 0.999 * second + 0.001 * gradient**2
            size = rate * np.sqrt(1 - 0.999 ** (step + 1)) / (1 - 0.9 ** (step + 1))
            weight -= DECAY * rate * weight
            weight -= size * first / (np.sqrt(second) + EPSILON)
    return weights


def optimizer_of(options):
    schedule = WarmupLinearDecay(PEAK, WARMUP, TOTAL)
    return AdamW(schedule, weight_decay=DECAY, epsilon=EPSILON, **options)


@pytest.mark.parametrize(
    ("options", "oracle"), [(BERT_ADAM, bert_adam), (FAIRSEQ_ADAM, fairseq_adam)]
)
@pytest.mark.parametrize("dynamic_loss_scale", [False, True])
def test_steps_are_those_of_the_authors_optimizers(options, oracle, dynamic_loss_scale):
    variables = variables_of_names()
    weights = [variable.numpy() for variable in variables]
    optimizer = optimizer_of({**options, "dynamic_loss_scale": dynamic_loss_scale})
    optimizer.build(variables)
    for step in range(6):
        scale = float(optimizer.scale_loss(tf.constant(1.0)))
        optimizer.apply([tf.constant(g * scale) for g in gradients_of_step(step)], variables)
        for variable, expected in zip(variables, oracle(weights, step + 1), strict=True):
            # A step moves a weight by about 0.1, or by 0.3 without the correction.
            np.testing.assert_allclose(variable.numpy(), expected, rtol=0, atol=2e-5)
    # The other rule, and Keras' own, are far from it.
    for other in ({}, BERT_ADAM if options is FAIRSEQ_ADAM else FAIRSEQ_ADAM):
        others = variables_of_names()
        optimizer_of({"global_clipnorm": 1.0, **other}).apply(
            [tf.constant(g) for g in gradients_of_step(0)], others
        )
        first = oracle(weights, 1)
        assert max(np.abs(v.numpy() - w).max() for v, w in zip(others, first, strict=True)) > 1e-2


def test_options_of_the_authors_survive_the_configuration():
    for options in (BERT_ADAM, FAIRSEQ_ADAM):
        original = optimizer_of(options)
        copy = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(original))
        results = []
        for optimizer in (original, copy):
            variables = variables_of_names()
            for step in range(2):
                optimizer.apply([tf.constant(g) for g in gradients_of_step(step)], variables)
            results.append(np.concatenate([variable.numpy().ravel() for variable in variables]))
        np.testing.assert_array_equal(*results)
