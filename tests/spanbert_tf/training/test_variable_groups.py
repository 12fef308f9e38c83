"""Variables with values of their own: rate, decay, epsilon, clipping, and factors of the rate."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
import torch

from spanbert_tf.training.optimizer import AdamW, VariableGroup, WarmupLinearDecay

SHAPES = {"encoder/kernel": (3, 4), "encoder/bias": (4,), "head/kernel": (4, 2), "head/bias": (2,)}
HEAD = ("head/kernel", "head/bias")
RATE = WarmupLinearDecay(0.1, warmup_steps=2, total_steps=7)
HEAD_RATE = WarmupLinearDecay(0.3, warmup_steps=3, total_steps=9)


def make_variables():
    random = np.random.default_rng(4)
    variables = {}
    for path, shape in SHAPES.items():
        layer, name = path.split("/")
        with keras.name_scope(layer):
            initial = random.normal(size=shape).astype("float32")
            variables[path] = keras.Variable(initial, name=name)
    assert [variable.path for variable in variables.values()] == list(SHAPES)
    return list(variables.values())


def random_gradients(step):
    """Large and small ones: above and below each of the limits."""
    random = np.random.default_rng(step)
    scale = [1.0, 0.02, 30.0, 0.01, 3.0, 0.1][step]
    return [scale * random.normal(size=shape).astype("float32") for shape in SHAPES.values()]


def head_group(**values):
    defaults = {"learning_rate": HEAD_RATE, "weight_decay": 0.3, "epsilon": 0.05}
    return VariableGroup(paths=HEAD, **{**defaults, **values})


def optimizer_with_head(**options):
    defaults = {"learning_rate": RATE, "weight_decay": 0.1, "epsilon": 1e-4, "global_clipnorm": 1.0}
    return AdamW(**{**defaults, **options})


def torch_rate(step, schedule):
    warmup, total = schedule.warmup_steps, schedule.total_steps
    factor = (step + 1) / warmup if step < warmup else (total - step) / (total - warmup)
    return schedule.learning_rate * factor


def test_two_groups_are_those_of_pytorch():
    """Each of the two has its own rate, decay, epsilon and limit of its norm."""
    variables = make_variables()
    optimizer = optimizer_with_head(groups=[head_group(global_clipnorm=0.4)])
    parameters = [torch.nn.Parameter(torch.tensor(v.numpy())) for v in variables]
    encoder, head = parameters[:2], parameters[2:]
    values = [(0.1, 1e-4, RATE), (0.3, 0.05, HEAD_RATE)]
    torch_optimizer = torch.optim.AdamW(
        [
            {"params": [parameter], "weight_decay": decay if parameter.ndim == 2 else 0.0}
            for part, (decay, *_) in zip((encoder, head), values, strict=True)
            for parameter in part
        ],
        betas=(0.9, 0.999),
    )
    for step in range(6):
        gradients = random_gradients(step)
        optimizer.apply([tf.constant(g) for g in gradients], variables)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = torch.tensor(gradient)
        torch.nn.utils.clip_grad_norm_(encoder, 1.0)
        torch.nn.utils.clip_grad_norm_(head, 0.4)
        for number, group in enumerate(torch_optimizer.param_groups):
            _, epsilon, schedule = values[number // 2]
            group["lr"] = torch_rate(step, schedule)
            # Ours stands before the correction of the second moment.
            group["eps"] = epsilon / (1 - 0.999 ** (step + 1)) ** 0.5
        torch_optimizer.step()
        for variable, parameter in zip(variables, parameters, strict=True):
            np.testing.assert_allclose(variable.numpy(), parameter.detach(), rtol=0, atol=2e-4)


def test_a_group_that_begins_later_steps_as_if_its_optimizer_began_then():
    """PyTorch's second optimizer makes its first step in step 2; before, gradients are left out."""
    schedule = WarmupLinearDecay(0.3, warmup_steps=2, total_steps=9, first_step=2)
    variables = make_variables()
    optimizer = optimizer_with_head(
        global_clipnorm=None, groups=[head_group(learning_rate=schedule, weight_decay=0.0)]
    )
    optimizer.build(variables)
    head = [torch.nn.Parameter(torch.tensor(v.numpy())) for v in variables[2:]]
    torch_optimizer = torch.optim.AdamW(head, betas=(0.9, 0.999), weight_decay=0.0)
    rates = {2: 0.15, 3: 0.3 * 6 / 7, 4: 0.3 * 5 / 7, 5: 0.3 * 4 / 7}
    for step in range(6):
        gradients = random_gradients(step)
        trained = slice(None) if step >= 2 else slice(2)
        optimizer.apply([tf.constant(g) for g in gradients[trained]], variables[trained])
        if step >= 2:
            for parameter, gradient in zip(head, gradients[2:], strict=True):
                parameter.grad = torch.tensor(gradient)
            (group,) = torch_optimizer.param_groups
            # Ours stands before the correction of the second moment.
            group["lr"], group["eps"] = rates[step], 0.05 / (1 - 0.999 ** (step - 1)) ** 0.5
            torch_optimizer.step()
        for variable, parameter in zip(variables[2:], head, strict=True):
            np.testing.assert_allclose(variable.numpy(), parameter.detach(), rtol=0, atol=2e-5)


def test_a_group_is_still_before_its_first_step():
    """Updates that were left out, as with float16, let it be trained a little before its time."""
    schedule = WarmupLinearDecay(0.3, warmup_steps=2, total_steps=9, first_step=2)
    variables = make_variables()
    before = [variable.numpy() for variable in variables]
    optimizer = optimizer_with_head(groups=[head_group(learning_rate=schedule)])
    for step in range(3):
        for number in (2, 3):
            np.testing.assert_array_equal(variables[number].numpy(), before[number])
        optimizer.apply([tf.constant(g) for g in random_gradients(step)], variables)
    moved = [np.abs(variables[number].numpy() - before[number]).max() for number in (2, 3)]
    assert all(0 < distance < 3 * 0.15 for distance in moved)  # the rate of step 2 is 0.15


def first_moments(optimizer):
    """The gradients that the first step saw: the first moment is a tenth of them."""
    return [10 * np.array(momentum) for momentum in optimizer._momentums]


def gradients_of(*values):
    """Gradients whose only element that is not 0 is the first."""
    gradients = []
    for value, shape in zip(values, SHAPES.values(), strict=True):
        gradient = np.zeros(shape, "float32")
        gradient.flat[0] = value
        gradients.append(tf.constant(gradient))
    return gradients


@pytest.mark.parametrize(
    ("limit", "head_limit", "expected"),
    [
        # The norm of 3, 4 and 12 is 13, of 3 and 4 it is 5.
        (1.3, None, [0.3, 0.4, 1.2]),
        (1.0, 6.0, [0.6, 0.8, 6.0]),
        (10.0, 6.0, [3.0, 4.0, 6.0]),
        (None, 6.0, [3.0, 4.0, 6.0]),
        (None, None, [3.0, 4.0, 12.0]),
    ],
)
def test_a_group_without_its_own_limit_shares_the_norm(limit, head_limit, expected):
    optimizer = optimizer_with_head(
        global_clipnorm=limit, groups=[head_group(global_clipnorm=head_limit)]
    )
    optimizer.apply(gradients_of(3, 4, 12, 0), make_variables())
    found = [moment.flat[0] for moment in first_moments(optimizer)]
    np.testing.assert_allclose(found, [*expected, 0], rtol=1e-5)
    assert float(optimizer.gradient_norm) == pytest.approx(13)  # of all, before clipping


@pytest.mark.parametrize(
    ("head_limit", "expected"), [(None, [2.0, 1.5, 2.0, 2.0]), (6.5, [2.0, 1.5, 6.0, 2.5])]
)
def test_each_variable_is_clipped_by_itself_but_for_groups_with_a_limit(head_limit, expected):
    """By hand: 12 and 5 have the norm 13, half of which is the group's limit."""
    optimizer = optimizer_with_head(
        global_clipnorm=None, clipnorm=2.0, groups=[head_group(global_clipnorm=head_limit)]
    )
    optimizer.apply(gradients_of(3, 1.5, 12, 5), make_variables())
    found = [moment.flat[0] for moment in first_moments(optimizer)]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert float(optimizer.gradient_norm) == pytest.approx((9 + 2.25 + 144 + 25) ** 0.5)


def test_a_norm_that_is_not_finite_in_one_group_stops_the_others():
    variables = make_variables()
    before = [variable.numpy() for variable in variables]
    optimizer = optimizer_with_head(groups=[head_group(global_clipnorm=1.0)])
    optimizer.apply(gradients_of(3, 4, np.nan, 0), variables)
    assert int(optimizer.skipped_in_a_row) == 1
    for variable, values in zip(variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), values)


@pytest.mark.parametrize("in_group", [False, True])
def test_factors_multiply_the_rate_of_step_and_decay(in_group):
    """By hand: the decay, then a first step of Adam, which is as long as the rate."""
    rate, decay = (0.3 / 3, 0.3) if in_group else (0.1 / 2, 0.1)
    path = "head/kernel" if in_group else "encoder/kernel"
    variables = make_variables()
    number = list(SHAPES).index(path)
    before = variables[number].numpy()
    optimizer = optimizer_with_head(
        epsilon=1e-12,
        global_clipnorm=None,
        groups=[head_group(epsilon=1e-12)],
        learning_rate_factors={path: 0.25},
    )
    gradients = [np.full(shape, -2.0, "float32") for shape in SHAPES.values()]
    optimizer.apply([tf.constant(g) for g in gradients], variables)
    expected = before * (1 - decay * rate * 0.25) + rate * 0.25
    np.testing.assert_allclose(variables[number].numpy(), expected, atol=1e-6)
    other = 0 if in_group else 2  # has its whole rate
    moved = variables[other].numpy() - make_variables()[other].numpy()
    assert np.abs(moved).max() > 0.25 * rate * 1.5


def test_factors_survive_the_configuration_and_groups_are_refused_there():
    factors = {"encoder/kernel": 0.5, "head/bias": 0.25}
    original = optimizer_with_head(learning_rate_factors=factors)
    original.build(make_variables())  # as in a model that is saved
    text = json.dumps(keras.saving.serialize_keras_object(original))
    copy = keras.saving.deserialize_keras_object(json.loads(text))
    results = []
    for optimizer in (optimizer_with_head(learning_rate_factors=factors), copy):
        variables = make_variables()
        for step in range(3):
            optimizer.apply([tf.constant(g) for g in random_gradients(step)], variables)
        results.append([variable.numpy() for variable in variables])
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(ValueError, match="with groups of variables cannot be saved"):
        optimizer_with_head(groups=[head_group()]).get_config()


@pytest.mark.parametrize(
    "options", [{}, {"global_clipnorm": None, "clipnorm": 0.5, "bias_correction": False}]
)
def test_two_replicas_step_as_one(options, two_devices):
    def run(strategy, share):
        with strategy.scope():
            variables = make_variables()
            optimizer = optimizer_with_head(
                groups=[head_group(global_clipnorm=0.4)],
                learning_rate_factors={"encoder/kernel": 0.5},
                **options,
            )
            optimizer.build(variables)

        @tf.function
        def step(*gradients):
            def of_replica():
                replica = tf.distribute.get_replica_context().replica_id_in_sync_group
                shares = tf.gather(tf.constant(share), replica)
                optimizer.apply([gradient * shares for gradient in gradients], variables)

            strategy.run(of_replica)

        norms = []
        for number in range(4):
            step(*(tf.constant(gradient) for gradient in random_gradients(number)))
            norms.append(float(np.array(optimizer.gradient_norm.value)))
        return norms, [np.array(variable) for variable in variables]

    one, two = run(tf.distribute.get_strategy(), [1.0]), run(two_devices, [3.0, -2.0])
    np.testing.assert_allclose(two[0], one[0], rtol=1e-5)
    for found, expected in zip(two[1], one[1], strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ([VariableGroup(("head/kernal",), RATE, 0.0, 1e-8)], "head/kernal"),
        ([head_group(), VariableGroup(("head/bias",), RATE, 0.0, 1e-8)], "head/bias"),
    ],
)
def test_paths_of_no_variable_and_of_two_groups_are_refused(groups, words):
    with pytest.raises(ValueError, match=words):
        optimizer_with_head(groups=groups).build(make_variables())
