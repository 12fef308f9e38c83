"""One result for one device and for two, for whole batches and for parts of them.

`tests/support/tensorflow_fixtures.py` divides the processor into two logical devices.
"""

import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from spanbert_tf.config import load_config
from spanbert_tf.errors import TrainingError
from spanbert_tf.pretraining.datasets import configured_dataset
from spanbert_tf.pretraining.job import run_pretraining
from spanbert_tf.pretraining.model import compiled_pretrainer
from spanbert_tf.training.devices import make_strategy
from spanbert_tf.training.metrics_log import MetricsLog
from spanbert_tf.training.optimizer import AdamW
from spanbert_tf.training.update_operations import tensorflow as update_operations

VOCABULARY_SIZE = 60


def _train(config, data, strategy, num_steps):
    """Losses of each step, and all weights afterwards."""
    keras.utils.set_random_seed(7)
    with strategy.scope():
        model = compiled_pretrainer(config, VOCABULARY_SIZE)
    losses = []

    class Note(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            self.model.reset_metrics()

        def on_train_batch_end(self, batch, logs=None):
            results = self.model.get_metrics_result()
            losses.append([float(results[name]) for name in sorted(results)])

    batches = configured_dataset(config, data, split="train", seed=0)
    model.fit(batches, steps_per_epoch=num_steps, callbacks=[Note()], shuffle=False, verbose=0)
    return np.array(losses), [np.array(weight) for weight in model.get_weights()]


def test_replicas_stay_equal_to_the_bit(two_devices, tiny_overrides, tiny_records):
    """A checkpoint holds the first one's variables: a run that goes on gives them to all."""
    keras.utils.set_random_seed(7)
    config = load_config("spanbert_base", [*tiny_overrides, "model.num_layers=1"])
    with two_devices.scope():
        model = compiled_pretrainer(config, VOCABULARY_SIZE)
    batches = configured_dataset(config, tiny_records, split="train", seed=0)
    model.fit(batches, steps_per_epoch=8, shuffle=False, verbose=0)
    assert float(model.optimizer.gradient_norm.numpy()) > config.optimizer.global_clipnorm
    for variable in [*model.variables, *model.optimizer.variables]:
        first, second = two_devices.experimental_local_results(variable.value)
        assert np.array_equal(first, second), variable.path


def _without_dropout(tiny_overrides, *overrides):
    # With BERT's epsilon, Adam would blow rounding errors of gradients near 0 up to whole steps.
    more = ["model.dropout=0.0", "optimizer.epsilon=1e-4", "training.batch_size=16"]
    return load_config("spanbert_base", [*tiny_overrides, *more, *overrides])


def test_mirrored_on_one_device_is_that_device():
    """The shipped configurations say mirrored, and most machines have one device."""
    training = load_config("spanbert_base").training
    assert training.strategy == "mirrored"
    assert make_strategy(training, 1) is tf.distribute.get_strategy()


def test_sums_of_the_next_run_in_a_process_are_not_taken_for_those_of_the_last():
    training = load_config("spanbert_base").training
    sums = []
    for shapes in ([(3, 4)], [(5,), (7, 7)]):  # of two models
        strategy = make_strategy(training, 2)

        @tf.function
        def run(strategy=strategy, shapes=shapes):
            return strategy.run(
                lambda: tf.distribute.get_replica_context().all_reduce(
                    tf.distribute.ReduceOp.SUM, [tf.ones(shape) for shape in shapes]
                )
            )

        sums.append(run)
    for run in (*sums, *sums):
        for replicated in run():
            for value in replicated.values:
                assert np.all(value == 2)


@pytest.mark.slow
def test_other_devices_than_the_last_run_had_are_refused_in_one_line(tmp_path):
    script = tmp_path / "three_devices.py"
    script.write_text(
        """
import tensorflow as tf
from spanbert_tf.config import TrainingConfig
from spanbert_tf.errors import ConfigurationError
from spanbert_tf.training.devices import make_strategy

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 3
)
tf.config.list_logical_devices()  # from here on there are these
training = TrainingConfig(strategy="mirrored", batch_size=6)
make_strategy(training, 2)
make_strategy(training, 1)
try:
    make_strategy(training, 3)
except ConfigurationError as error:
    print(error)
"""
    )
    child = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    expected = "--devices 3: this process has trained on 2 devices"
    assert child.stdout.splitlines()[-1].startswith(expected)


@pytest.fixture(scope="module")
def on_one_device(tiny_overrides, tiny_records):
    config = _without_dropout(tiny_overrides)
    return _train(config, tiny_records, tf.distribute.get_strategy(), 20)


@pytest.mark.slow
@pytest.mark.parametrize(
    "num_devices, overrides",
    [
        (1, ["training.accumulation_steps=2"]),
        (2, []),
        (2, ["training.accumulation_steps=4"]),
    ],
)
def test_twenty_steps_are_the_same_in_parts(
    num_devices, overrides, on_one_device, two_devices, tiny_overrides, tiny_records
):
    strategy = two_devices if num_devices == 2 else tf.distribute.get_strategy()
    config = _without_dropout(tiny_overrides, *overrides)
    losses, weights = _train(config, tiny_records, strategy, 20)
    expected_losses, expected_weights = on_one_device
    np.testing.assert_allclose(losses, expected_losses, atol=1e-5)
    for found, expected in zip(weights, expected_weights, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.slow
def test_a_whole_step_compiles_with_xla(on_one_device, tiny_overrides, tiny_records):
    """What a TPU needs: static shapes, and no operation of the host inside."""
    overrides = ["training.jit_compile=true", "training.accumulation_steps=2"]
    config = _without_dropout(tiny_overrides, *overrides)
    assert compiled_pretrainer(config, VOCABULARY_SIZE).jit_compile
    losses, _ = _train(config, tiny_records, tf.distribute.get_strategy(), 5)
    np.testing.assert_allclose(losses, on_one_device[0][:5], atol=1e-4)


@pytest.mark.slow
def test_replicas_compile_with_xla_in_bfloat16(two_devices, tiny_overrides, tiny_records):
    """The update is outside, as XLA cannot compile the all-reduce of processors.

    (In float32: `test_both_phases_are_the_same_in_parts`, beside one device without XLA.)
    """
    options = ["training.accumulation_steps=2", "training.precision=mixed_bfloat16"]
    runs = [
        _train(_without_dropout(tiny_overrides, *options, *more), tiny_records, two_devices, 4)
        for more in ([], ["training.jit_compile=true"])
    ]
    tolerance = 0.02
    (metrics, weights), (compiled_metrics, compiled_weights) = runs
    losses, compiled_losses = metrics[:, ::2], compiled_metrics[:, ::2]  # not the accuracies
    np.testing.assert_allclose(compiled_losses, losses, atol=tolerance, rtol=tolerance)
    for found, expected in zip(compiled_weights, weights, strict=True):
        np.testing.assert_allclose(found, expected, atol=tolerance)


def _optimizer_and_variable(strategy, **options):
    with strategy.scope():
        variable = keras.Variable(np.zeros(2, np.float32), name="kernel")
        options = {"learning_rate": 1.0, "weight_decay": 0.0} | options
        optimizer = AdamW(**options)
        optimizer.build([variable])
    return optimizer, variable


def _update(strategy, optimizer, variable, gradients):
    """The variable after one update, in which each replica has a gradient of its own."""

    @tf.function
    def step():
        def of_replica():
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            optimizer.apply([tf.gather(tf.constant(gradients, tf.float32), replica)], [variable])

        strategy.run(of_replica)

    step()
    return np.array(variable)


def _apply(strategy, optimizer, variable, gradients):
    """The variable after one update, and the gradient that Adam's first moment began with."""
    weights = _update(strategy, optimizer, variable, gradients)
    return weights, np.array(optimizer._momentums[0]) * 10  # 1 - beta_1 is 0.1


def test_gradients_are_added_up_before_they_are_clipped(two_devices):
    optimizer, variable = _optimizer_and_variable(two_devices, global_clipnorm=1.0)
    # Clipped one by one, 5 and -1 would be 1 and -1, which cancel.
    _, clipped = _apply(two_devices, optimizer, variable, [[5, 0], [-1, 0]])
    np.testing.assert_allclose(clipped, [1, 0], rtol=1e-5)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_on_any_replica_changes_nothing(two_devices, bad):
    optimizer, variable = _optimizer_and_variable(two_devices)
    for number in (1, 2):
        weights, momentum = _apply(two_devices, optimizer, variable, [[1, 1], [bad, 1]])
        assert not weights.any() and not momentum.any()
        assert int(optimizer.skipped_in_a_row.numpy()) == number
        assert int(optimizer.iterations.numpy()) == 0
    weights, _ = _apply(two_devices, optimizer, variable, [[1, 1], [1, 1]])
    assert (weights < 0).all()
    assert int(optimizer.skipped_in_a_row.numpy()) == 0
    assert int(optimizer.iterations.numpy()) == 1


def test_loss_scale_is_halved_by_an_overflow_on_any_replica_and_grows_again(two_devices):
    optimizer, variable = _optimizer_and_variable(two_devices, dynamic_loss_scale=True)
    scale = float(optimizer.loss_scale.numpy())
    assert float(optimizer.scale_loss(tf.constant(2.0))) == 2 * scale
    _, momentum = _apply(two_devices, optimizer, variable, [[3 * scale, 0], [scale, 0]])
    np.testing.assert_allclose(momentum, [4, 0], rtol=1e-5)
    _apply(two_devices, optimizer, variable, [[1, 0], [np.inf, 0]])
    assert float(optimizer.loss_scale.numpy()) == scale / 2
    optimizer.updates_at_scale.assign(1998)
    for expected in (scale / 2, scale, scale):
        _apply(two_devices, optimizer, variable, [[1, 0], [1, 0]])
        assert float(optimizer.loss_scale.numpy()) == expected


def test_the_loss_scale_has_an_end(two_devices):
    optimizer, variable = _optimizer_and_variable(two_devices, dynamic_loss_scale=True)
    optimizer.loss_scale.assign(4.0)
    for expected in (2, 1, 1):
        _apply(two_devices, optimizer, variable, [[1, 0], [np.inf, 0]])
        assert float(optimizer.loss_scale.numpy()) == expected


def test_the_update_after_which_the_loss_scale_grows_is_a_whole_one(two_devices):
    optimizer, variable = _optimizer_and_variable(two_devices, dynamic_loss_scale=True)
    scale = float(optimizer.loss_scale.numpy())
    optimizer.updates_at_scale.assign(1999)
    _, momentum = _apply(two_devices, optimizer, variable, [[3 * scale, 0], [scale, 0]])
    np.testing.assert_allclose(momentum, [4, 0], rtol=1e-5)
    np.testing.assert_allclose(optimizer.gradient_norm.numpy(), 4, rtol=1e-5)
    assert float(optimizer.loss_scale.numpy()) == 2 * scale


@pytest.mark.slow
def test_float16_trains_on_two_devices(two_devices, tiny_overrides, tiny_records):
    overrides = ["training.precision=mixed_float16", "optimizer.warmup_steps=0"]
    runs = [
        _train(_without_dropout(tiny_overrides, *more), tiny_records, two_devices, 12)
        for more in (overrides, overrides[1:])
    ]
    (metrics, weights), (float32_metrics, float32_weights) = runs
    np.testing.assert_allclose(metrics[:, ::2], float32_metrics[:, ::2], atol=0.02)  # the losses
    for found, expected in zip(weights, float32_weights, strict=True):
        if found.dtype == np.float32:
            np.testing.assert_allclose(found, expected, atol=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("jit_compile", [False, True])
def test_replicas_draw_different_dropout_masks(
    jit_compile, two_devices, tiny_overrides, tiny_records
):
    overrides = ["model.dropout=0.5", "model.num_layers=1"]
    overrides += [f"training.jit_compile={str(jit_compile).lower()}"]
    config = load_config("spanbert_base", [*tiny_overrides, *overrides])
    keras.utils.set_random_seed(7)
    with two_devices.scope():
        model = compiled_pretrainer(config, VOCABULARY_SIZE)
    (batch,) = configured_dataset(config, tiny_records, split="train").take(1)
    counts = model.target_counts(batch)

    @tf.function
    def gradients():
        return two_devices.run(lambda: model._gradients_of_part((batch, None, None), counts)[0])

    functions = gradients.get_concrete_function().graph.as_graph_def().library.function
    assert any(function.attr["_XlaMustCompile"].b for function in functions) == jit_compile
    first, second = two_devices.experimental_local_results(gradients())
    first_again, _ = two_devices.experimental_local_results(gradients())
    scale = np.abs(first).max()
    assert np.abs(first - second).max() > 0.01 * scale  # the same rows
    assert np.abs(first - first_again).max() > 0.01 * scale
    states = [v for v in model.variables if v.name == "seed_generator_state"]
    assert states
    for state in states:
        copies = two_devices.experimental_local_results(state.value)
        np.testing.assert_array_equal(copies[0], copies[1])


def test_gradients_are_reduced_in_packs_the_last_layers_first(
    two_devices, tiny_overrides, tiny_records, monkeypatch
):
    """By the graph: each pack waits for its own gradients alone."""
    limit = 20_000
    monkeypatch.setattr(update_operations, "_BYTES_PER_PACK", limit)
    config = _without_dropout(tiny_overrides)
    with two_devices.scope():
        model = compiled_pretrainer(config, VOCABULARY_SIZE)
    (batch,) = configured_dataset(config, tiny_records, split="train").take(1)
    step = tf.function(lambda: two_devices.run(lambda: model.train_step(batch)))
    packs, left = [0], [4 * int(np.prod(v.shape)) for v in model.trainable_variables]
    for size in reversed(left):
        if packs[-1] > limit:
            packs.append(0)
        packs[-1] += size
    graph = step.get_concrete_function().graph
    reduced = [op for op in graph.get_operations() if op.type.startswith("CollectiveReduce")]
    sizes = [4 * op.outputs[0].shape.num_elements() for op in reduced]
    assert len(packs) > 2 and sorted(s for s in sizes if s > 8) == sorted(2 * packs)


def test_gradients_may_be_added_up_in_bfloat16(two_devices):
    """Sums have eight bits, of what has eight bits; what comes of them is float32 again."""
    rng = np.random.default_rng(0)
    gradients = rng.normal(size=(2, 2)).astype(np.float32) / 10  # not clipped
    found = {}
    for dtype in (None, "bfloat16"):
        optimizer, variable = _optimizer_and_variable(two_devices, all_reduce_dtype=dtype)
        _, found[dtype] = _apply(two_devices, optimizer, variable, gradients)
    rounded = tf.cast(tf.cast(gradients, tf.bfloat16), tf.float32).numpy()
    rounded = tf.cast(tf.cast(rounded.sum(axis=0), tf.bfloat16), tf.float32).numpy()
    np.testing.assert_allclose(found[None], gradients.sum(axis=0), rtol=1e-5)
    np.testing.assert_allclose(found["bfloat16"], rounded, rtol=1e-5)
    assert (found["bfloat16"] != found[None]).all()
    assert AdamW.from_config(optimizer.get_config()).all_reduce_dtype == "bfloat16"


@pytest.mark.slow
def test_in_bfloat16_all_but_numbers_are_sent_so(two_devices, tiny_overrides, tiny_records):
    config = _without_dropout(tiny_overrides, "optimizer.all_reduce_dtype=bfloat16")
    with two_devices.scope():
        model = compiled_pretrainer(config, VOCABULARY_SIZE)
    (batch,) = configured_dataset(config, tiny_records, split="train").take(1)
    step = tf.function(lambda: two_devices.run(lambda: model.train_step(batch)))
    operations = step.get_concrete_function().graph.get_operations()
    sent = [op.outputs[0] for op in operations if op.type.startswith("CollectiveReduce")]
    arrays = [one for one in sent if one.shape.num_elements() > 2]
    assert arrays and {one.dtype for one in arrays} == {tf.bfloat16}


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"gradient_accumulation_steps": 2}, r"use .*training\.accumulation_steps"),
        ({"amsgrad": True}, "amsgrad is not supported"),
        ({"loss_scale_factor": 8.0}, "loss_scale_factor is not supported; use dynamic_loss_scale"),
        ({"clipvalue": 1.0}, "clipped by norms: global_clipnorm"),
    ],
)
def test_options_of_keras_that_do_not_work_here_are_refused(option, words):
    with pytest.raises(ValueError, match=words):
        AdamW(**option)


class TestKerasDefects:
    """What the code works round. Where one of these fails, Keras has mended it."""

    def test_clips_each_replica_by_itself(self, two_devices):
        with two_devices.scope():
            variable = keras.Variable(np.zeros(1, np.float32))
            optimizer = keras.optimizers.SGD(1.0, global_clipnorm=1.0)
            optimizer.build([variable])
        weights = _update(two_devices, optimizer, variable, [[5.0], [-1.0]])
        assert weights.tolist() == [0.0]  # one device gives -1

    def test_loss_scale_looks_at_the_first_replica_only(self, two_devices):
        with two_devices.scope():
            variable = keras.Variable(np.zeros(1, np.float32))
            optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0))
            optimizer.build([variable])
        weights = _update(two_devices, optimizer, variable, [[1.0], [np.inf]])
        assert not np.isfinite(weights).all()

    def test_gradient_accumulation_fails_under_a_strategy(self, two_devices):
        with two_devices.scope():
            variable = keras.Variable(np.zeros(1, np.float32))
            optimizer = keras.optimizers.SGD(1.0, gradient_accumulation_steps=2)
            optimizer.build([variable])
        with pytest.raises(RuntimeError, match="merge_call"):
            _update(two_devices, optimizer, variable, [[1.0], [1.0]])


@pytest.mark.slow
def test_gradients_that_stay_infinite_end_the_run_with_their_files_named(
    tiny_overrides, tiny_records, tmp_path, monkeypatch
):
    overrides = ["training.max_skipped_steps=3", "training.checkpoint_every_steps=1"]
    config = load_config("spanbert_base", [*tiny_overrides, *overrides])
    log_step = MetricsLog.on_step_end

    def spoil_the_weights(self, step, model):
        log_step(self, step, model)
        if step == 4:
            embeddings = model.backbone.token_embedding.embeddings
            embeddings.assign(np.full(embeddings.shape, np.nan))

    monkeypatch.setattr(MetricsLog, "on_step_end", spoil_the_weights)
    with pytest.raises(TrainingError) as raised:
        run_pretraining(config, tiny_records, str(tmp_path / "run"))
    message = str(raised.value)
    assert "3 steps in a row, from step 5 on" in message
    assert "train-0000" in message and "\n" not in message
