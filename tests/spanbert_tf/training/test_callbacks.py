import concurrent.futures
import json
import os
import signal

import keras
import numpy as np
import pytest
import tensorflow as tf

import spanbert_tf.training
from spanbert_tf.training.callbacks import (
    Evaluation,
    PeriodicCheckpoint,
    RunInterrupted,
    StopOnSignal,
)
from spanbert_tf.training.checkpoints import Checkpoints
from spanbert_tf.training.metrics_log import MetricsLog, read_metrics
from spanbert_tf.training.schedule import WarmupLinearDecay

SCHEDULE = WarmupLinearDecay(0.1, 2, 100)


@keras.saving.register_keras_serializable(package="test")
class MeanOfInputs(keras.Model):
    """A model whose loss is its input, so that every logged mean can be computed by hand."""

    def __init__(self):
        super().__init__()
        self.weight = self.add_weight(shape=(), initializer="zeros")

    def call(self, inputs):
        return inputs + 0.0 * self.weight

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return keras.ops.mean(y_pred)


def _make_model():
    model = MeanOfInputs()
    model.compile(optimizer=spanbert_tf.training.adamw(0.1, 2, 100))
    model.build((1,))
    model.optimizer.build(model.trainable_variables)
    return model


def _numbers(first):
    """Batches of one number each: first, first + 1, …"""
    return tf.data.Dataset.range(first, 1000, output_type=tf.int64).map(
        lambda number: tf.cast(number, tf.float32)[tf.newaxis]
    )


def _log(directory, first_step=0, every=2):
    return MetricsLog(
        str(directory), first_step, every=every, schedule=SCHEDULE, tokens_per_step=100.0
    )


def _evaluation(model, log, first_step=0, every=4, first_number=100):
    """Evaluates on three numbers inside of `fit`, as the training loop does."""

    def evaluate(step):
        held_out = _numbers(first_number).take(3)
        log.write_evaluation(step, model.evaluate(held_out, return_dict=True, verbose=0))

    return Evaluation(first_step, is_due=lambda step: step % every == 0, evaluate=evaluate)


def test_log_has_the_means_since_the_line_before(tmp_path):
    model, log = _make_model(), _log(tmp_path)
    model.fit(
        _numbers(0),
        steps_per_epoch=8,
        verbose=0,
        shuffle=False,
        callbacks=[log, _evaluation(model, log)],
    )
    lines = read_metrics(str(tmp_path / "metrics.jsonl"))
    assert [line["step"] for line in lines] == [2, 4, 4, 6, 8, 8]
    assert [line.get("loss") for line in lines] == [0.5, 2.5, None, 4.5, 6.5, None]
    assert [line.get("validation_loss") for line in lines] == [None, None, 101, None, None, 101]
    rates = [line["learning_rate"] for line in lines if "learning_rate" in line]
    np.testing.assert_allclose(rates, [float(SCHEDULE(step)) for step in (1, 3, 5, 7)])
    assert all(line["tokens_per_second"] > 0 for line in lines if "loss" in line)


def test_tensorboard_has_the_same_numbers(tmp_path):
    model = _make_model()
    model.fit(_numbers(0), steps_per_epoch=4, verbose=0, shuffle=False, callbacks=[_log(tmp_path)])
    (path,) = (tmp_path / "logs" / "train").iterdir()
    logged = {}
    for record in tf.data.TFRecordDataset(str(path)):
        event = tf.compat.v1.Event.FromString(record.numpy())
        for value in event.summary.value:
            logged[value.tag, event.step] = float(tf.make_ndarray(value.tensor))
    assert {step: value for (tag, step), value in logged.items() if tag == "loss"} == {
        2: 0.5,
        4: 2.5,
    }


def _logged_steps(directory):
    """Steps of the losses in all of TensorBoard's files of a run, in the order of reading."""
    steps = []
    for path in sorted(directory.iterdir()):
        for record in tf.data.TFRecordDataset(str(path)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            steps += [event.step for value in event.summary.value if value.tag == "loss"]
    return steps


def test_log_of_a_resumed_run_has_every_line_once(tmp_path):
    path = tmp_path / "metrics.jsonl"
    model = _make_model()
    model.fit(_numbers(0), steps_per_epoch=6, verbose=0, shuffle=False, callbacks=[_log(tmp_path)])
    with path.open("a") as file:
        file.write('{"step": 8, "lo')  # killed while it wrote
    # The last checkpoint was that of step 4.
    model.fit(
        _numbers(4), steps_per_epoch=4, verbose=0, shuffle=False, callbacks=[_log(tmp_path, 4)]
    )
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [2, 4, 6, 8]
    assert [line["loss"] for line in read_metrics(str(path))] == [0.5, 2.5, 4.5, 6.5]
    assert _logged_steps(tmp_path / "logs" / "train") == [2, 4, 6, 8]


def test_log_has_the_norm_of_the_last_gradient_before_clipping(tmp_path):
    model = _make_model()  # the loss does not depend on its weight: gradient 0
    model.fit(_numbers(0), steps_per_epoch=2, verbose=0, shuffle=False, callbacks=[_log(tmp_path)])
    assert [line["gradient_norm"] for line in read_metrics(str(tmp_path / "metrics.jsonl"))] == [0]


def test_log_knows_what_was_evaluated(tmp_path):
    model, log = _make_model(), _log(tmp_path)
    model.fit(
        _numbers(0),
        steps_per_epoch=4,
        verbose=0,
        shuffle=False,
        callbacks=[log, _evaluation(model, log, first_number=7)],
    )
    assert _log(tmp_path, 4).evaluated_steps == {4}
    assert _log(tmp_path, 4).evaluations() == [{"step": 4, "loss": 8.0}]
    assert _log(tmp_path, 3).evaluated_steps == set()


def test_checkpoints_are_saved_when_due(tmp_path):
    model = _make_model()
    checkpoints = Checkpoints(str(tmp_path), model, max_to_keep=9)
    callback = PeriodicCheckpoint(checkpoints, 3, every=2)
    model.fit(
        _numbers(0), epochs=2, steps_per_epoch=4, verbose=0, shuffle=False, callbacks=[callback]
    )
    assert checkpoints.steps() == [4, 6, 8, 10]


class _SignalAt(keras.callbacks.Callback):
    def __init__(self, number, batch=None, test_batch=None):
        super().__init__()
        self.number, self.batch, self.test_batch = number, batch, test_batch

    def on_train_batch_begin(self, batch, logs=None):
        if batch == self.batch:
            os.kill(os.getpid(), self.number)

    def on_test_batch_begin(self, batch, logs=None):
        if batch == self.test_batch:
            os.kill(os.getpid(), self.number)


@pytest.fixture
def handlers():
    """Handlers of SIGTERM and SIGINT that fail; children of a background shell ignore SIGINT."""

    def fail(number, frame):
        raise AssertionError(number)

    former = {number: signal.signal(number, fail) for number in (signal.SIGTERM, signal.SIGINT)}
    yield fail
    for number, handler in former.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(("moment", "step"), [({"batch": 2}, 13), ({"test_batch": 0}, 15)])
def test_signal_saves_after_the_step_that_is_running(number, moment, step, handlers, tmp_path):
    model = _make_model()
    checkpoints = Checkpoints(str(tmp_path), model, max_to_keep=9)
    with StopOnSignal(checkpoints, 10) as stop, pytest.raises(RunInterrupted) as raised:
        model.fit(
            _numbers(0),
            steps_per_epoch=5,
            verbose=0,
            shuffle=False,
            callbacks=[_SignalAt(number, **moment), stop],
            validation_data=_numbers(0).take(3),
        )
    assert raised.value.step == step
    assert checkpoints.steps() == [step]
    assert raised.value.signal_name == number.name
    assert signal.getsignal(signal.SIGTERM) is signal.getsignal(signal.SIGINT) is handlers


def test_ignored_signal_stays_ignored(handlers, tmp_path):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with StopOnSignal(Checkpoints(str(tmp_path), _make_model(), max_to_keep=1), 0):
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_run_in_another_thread_leaves_signals_alone(tmp_path):
    checkpoints = Checkpoints(str(tmp_path), _make_model(), max_to_keep=1)
    before = signal.getsignal(signal.SIGTERM)

    def enter():
        with StopOnSignal(checkpoints, 0):
            return signal.getsignal(signal.SIGTERM)

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        assert pool.submit(enter).result() is before
