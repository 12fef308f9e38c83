import concurrent.futures
import errno
import json
import os
import signal
import subprocess
import sys
import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src import backend as keras_backend
from tensorboard.plugins.hparams import plugin_data_pb2
from tensorflow.python.summary import summary_iterator

import spanbert_tf.training
from spanbert_tf.config.finetuning import FinetuningConfig, FinetuningTrainingConfig
from spanbert_tf.errors import BadInputError
from spanbert_tf.models.train_step import TrainStep
from spanbert_tf.models.work import Work
from spanbert_tf.process import StopSignals
from spanbert_tf.training.checkpoints import Best, Checkpoints
from spanbert_tf.training.devices import Devices
from spanbert_tf.training.job import Evaluated, Job
from spanbert_tf.training.metrics_log import CLOCKED, read_metrics
from spanbert_tf.training.optimizer import WarmupLinearDecay
from spanbert_tf.training.watch import Watch

SCHEDULE = WarmupLinearDecay(0.1, 2, 100)


@keras.saving.register_keras_serializable(package="test")
class MeanOfInputs(TrainStep, keras.Model):
    """A model whose loss is its input, so that every logged mean can be computed by hand."""

    _objective_metrics = None  # its step is Keras' own

    def __init__(self):
        super().__init__()
        self.weight = self.add_weight(shape=(), initializer="zeros")

    def call(self, inputs):
        return inputs + 0.0 * self.weight * inputs

    def work_done(self):
        return Work(tokens=600.0, positions=800.0, operations=0.0)

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


class Numbers(Job):
    """Trains on numbers: what `Watch` asks of a job, and nothing else."""

    best = Best("loss", "min")

    def __init__(
        self,
        num_steps,
        log_every=2,
        evaluate_every=99,
        save_every=99,
        first_number=100,
        steps_per_execution=1,
        profile_steps=None,
    ):
        training = FinetuningTrainingConfig(
            log_every=log_every,
            profile_steps=profile_steps,
            checkpoint_every_steps=save_every,
            batch_size=1,
            steps_per_execution=steps_per_execution,
        )
        self.config = FinetuningConfig(training=training)
        self.num_steps, self.evaluate_every = num_steps, evaluate_every
        self.first_number = first_number

    def batches(self, first_step):
        return _numbers(first_step)

    def evaluates_after(self, step):
        return step % self.evaluate_every == 0

    def evaluate(self, model, check_stop):
        """On three numbers inside of `fit`."""
        stop = keras.callbacks.LambdaCallback(on_test_batch_end=lambda batch, logs: check_stop())
        held_out = _numbers(self.first_number).take(3)
        found = model.evaluate(
            held_out, return_dict=True, verbose=0, callbacks=[stop, *self.others]
        )
        return Evaluated(found)

    others = ()
    load_config = build = begin = describe = finish = None


Numbers.__abstractmethods__ = frozenset()


def _train(directory, job, first_step=0, others=(), epochs=1):
    """Trains as a run does; returns the model and its checkpoints."""
    model = _make_model()
    job.others = others
    directory.mkdir(exist_ok=True)
    checkpoints = Checkpoints(str(directory / "checkpoints"), model, best=job.best, max_to_keep=9)
    devices = Devices(job.config.training)
    with Watch(job, model, checkpoints, str(directory), devices, first_step) as watch:
        watch.catch_up()
        num_steps = job.config.training.steps_per_execution
        model.steps_per_execution = num_steps
        loops = num_steps > 1
        model.fit(
            job.batches(first_step),
            epochs=epochs,
            steps_per_epoch=None if loops else (job.num_steps - first_step) // epochs,
            verbose=0,
            shuffle=False,
            callbacks=[*others, watch],
        )
    return watch, checkpoints


def test_several_workers_ask_each_other_at_the_steps_that_they_agree_on(tmp_path, monkeypatch):
    """Of 100 ms a step in the mean, every 20 steps, whatever a worker's own clock says."""
    asked, watches = [], []

    class Workers(Devices):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.are_several = True

        def any(self, flag):
            asked.append(watches[0].step)
            return flag

        def agreed(self, value):
            return 100

    enter = Watch.__enter__
    monkeypatch.setattr(Watch, "__enter__", lambda self: watches.append(self) or enter(self))
    monkeypatch.setitem(globals(), "Devices", Workers)
    _train(tmp_path, Numbers(50, log_every=5))
    assert asked == [1, 21, 41, 50]  # at the end, too


@pytest.mark.parametrize("is_chief, last_step", [(True, 2), (False, 4)])
def test_patience_is_that_of_the_chief(is_chief, last_step, tmp_path, monkeypatch):
    """A run that goes on knows the chief's evaluations alone."""

    class Worker(Devices):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.is_chief = is_chief

    job = Numbers(4, evaluate_every=1)  # all with the same loss
    job.patience = 1
    monkeypatch.setitem(globals(), "Devices", Worker)
    watch, _ = _train(tmp_path, job)
    assert watch.step == last_step


def test_log_has_the_means_since_the_line_before(tmp_path):
    _train(tmp_path, Numbers(8, evaluate_every=4))
    lines = read_metrics(str(tmp_path / "metrics.jsonl"))
    assert [line["step"] for line in lines] == [2, 4, 4, 6, 8, 8]
    assert [line.get("loss") for line in lines] == [0.5, 2.5, None, 4.5, 6.5, None]
    assert [line.get("validation_loss") for line in lines] == [None, None, 101, None, None, 101]
    rates = [line["learning_rate"] for line in lines if "learning_rate" in line]
    np.testing.assert_allclose(rates, [float(SCHEDULE(step)) for step in (1, 3, 5, 7)])
    assert all(line["tokens_per_second"] > 0 for line in lines if "loss" in line)


def test_log_has_the_learning_rate_of_the_last_update(tmp_path):
    """A step that is skipped, since its gradients are not finite, does not move the schedule on."""

    class OneSkipped(Numbers):
        def batches(self, first_step):
            batches = super().batches(first_step)
            return batches.map(lambda value: tf.where(value == 1, np.nan, value))

    _train(tmp_path, OneSkipped(4))
    lines = read_metrics(str(tmp_path / "metrics.jsonl"))
    rates = [line["learning_rate"] for line in lines]
    np.testing.assert_allclose(rates, [float(SCHEDULE(update)) for update in (0, 2)])


def test_log_has_the_share_of_time_that_waits_for_batches(tmp_path):
    """Of batches that take half a second, which none of these steps does."""

    class Slow(Numbers):
        def batches(self, first_step):
            def wait(number):
                time.sleep(0.5)
                return number

            slow = super().batches(first_step)
            return slow.map(
                lambda number: tf.ensure_shape(tf.numpy_function(wait, [number], number.dtype), [1])
            )

    _train(tmp_path, Slow(2, log_every=1))
    lines = read_metrics(str(tmp_path / "metrics.jsonl"))
    for line in lines:
        seconds = 600 / line["tokens_per_second"]
        assert 0.49 <= seconds * line["input_wait_share"] <= seconds
        assert line["padding_share"] == 0.25
    assert "seconds_left" not in lines[0]  # the first step was compiled
    assert lines[1]["seconds_left"] == 0


def test_results_of_a_step_are_not_read_before_they_are_due(tmp_path):
    """To read them is to wait for the device, which has nothing to do until the next step."""

    read = []

    class Result:
        def __float__(self):
            read.append(self)  # Keras catches what is raised here
            return 0.0

        def __array__(self, *arguments, **options):
            return np.array(float(self))

    job, model = Numbers(9, log_every=9), _make_model()
    checkpoints = Checkpoints(str(tmp_path / "checkpoints"), model, best=job.best, max_to_keep=1)
    with Watch(job, model, checkpoints, str(tmp_path), Devices(job.config.training), 0) as watch:
        callbacks = watch.until(9)
        callbacks.on_train_begin()
        callbacks.on_epoch_begin(0)
        for step in range(1, 4):
            callbacks.on_train_batch_begin(step)
            callbacks.on_train_batch_end(step, {"loss": Result()})
            assert watch.step == step
    assert not read


WAITING = """
import keras

from spanbert_tf.training.watch import _CallbacksWithoutResults

class Result:
    def __init__(self, step):
        self.step = step

    def block_until_ready(self):
        print("waits for", self.step)

end = keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: print("ends", step))
callbacks = _CallbacksWithoutResults([end])
for step in (1, 2, 3):
    callbacks.on_train_batch_end(step, {"loss": Result(step)})
"""


@pytest.mark.slow
def test_on_jax_one_step_waits_at_the_device():
    """Signals would wait for all that do, and processors that share many stand still."""
    environment = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", WAITING]
    child = subprocess.run(command, env=environment, capture_output=True, text=True)
    said = ["ends 1", "waits for 1", "ends 2", "waits for 2", "ends 3"]
    assert child.stdout.splitlines() == said, child.stderr[-2000:]


@pytest.mark.slow
def test_a_profile_begins_and_ends_when_the_steps_before_are_done(tmp_path, monkeypatch):
    """To read how many updates were left out is to wait for the device."""
    read, read_skipped = [], Watch._stop_on_divergence

    def note(self):
        read.append(self.step)
        read_skipped(self)

    monkeypatch.setattr(Watch, "_stop_on_divergence", note)
    _train(tmp_path, Numbers(6, log_every=99, profile_steps=[3, 4]))
    assert read == [2, 4, 6]


@pytest.mark.parametrize(
    ("first_step", "expected"),
    [(0, [4, 8, 12, 16, 20, 23]), (9, [12, 16, 20, 23]), (21, [23])],
)
def test_executions_end_at_multiples_of_their_steps(first_step, expected, tmp_path):
    """Lines, checkpoints and evaluations are those of a run whose executions have one step."""
    ends, due, runs = [], {"log_every": 8, "evaluate_every": 12, "save_every": 4}, []

    class Note(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            ends.append(first_step + int(self.model.optimizer.iterations.numpy()))

    for number in (1, 4):
        run = tmp_path / str(number)
        job = Numbers(23, steps_per_execution=number, **due)
        watch, checkpoints = _train(run, job, first_step, others=[Note()])
        lines = read_metrics(str(run / "metrics.jsonl"))
        for line in lines:
            for name in CLOCKED:
                line.pop(name, None)
        assert watch.step == 23
        assert checkpoints.steps() == [step for step in expected if step % 4 == 0 or step == 23]
        runs.append(lines)
    for one, other in zip(*runs, strict=True):
        assert one == other
    assert ends == [*range(first_step + 1, 24), *expected]


def test_tensorboard_has_the_same_numbers(tmp_path):
    _train(tmp_path, Numbers(4))
    (path,) = (tmp_path / "logs" / "train").iterdir()
    logged = {}
    for record in tf.data.TFRecordDataset(str(path)):
        event = tf.compat.v1.Event.FromString(record.numpy())
        for value in event.summary.value:
            if value.metadata.plugin_data.plugin_name != "hparams":  # which have no numbers there
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
    _train(tmp_path, Numbers(6))
    with path.open("a") as file:
        file.write('{"step": 8, "lo')  # killed while it wrote
    # The last checkpoint was that of step 4.
    _train(tmp_path, Numbers(8), first_step=4)
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [2, 4, 6, 8]
    assert [line["loss"] for line in read_metrics(str(path))] == [0.5, 2.5, 4.5, 6.5]
    assert _logged_steps(tmp_path / "logs" / "train") == [2, 4, 6, 8]


def test_log_has_the_norm_of_the_last_gradient_before_clipping(tmp_path):
    _train(tmp_path, Numbers(2))  # the loss does not depend on the model's weight: gradient 0
    assert [line["gradient_norm"] for line in read_metrics(str(tmp_path / "metrics.jsonl"))] == [0]


def test_what_was_not_evaluated_is_caught_up_with(tmp_path):
    job = Numbers(4, evaluate_every=4, first_number=7)
    _train(tmp_path, job)
    path = tmp_path / "metrics.jsonl"
    whole = path.read_text()
    assert json.loads(whole.splitlines()[-1]) == {"step": 4, "validation_loss": 8.0}
    job.batches = None  # all steps are done
    for begun in (whole, whole[: whole.rindex("{")], whole[:-3]):  # stopped after, before, in it
        path.write_text(begun)
        _catch_up(tmp_path, job, 4)
        assert path.read_text() == whole


def _catch_up(directory, job, step):
    model = _make_model()
    checkpoints = Checkpoints(str(directory / "checkpoints"), model, best=job.best, max_to_keep=9)
    with Watch(job, model, checkpoints, str(directory), Devices(job.config.training), step) as one:
        one.catch_up()


def test_checkpoints_are_saved_when_due(tmp_path):
    _, checkpoints = _train(tmp_path, Numbers(11, save_every=2), first_step=3, epochs=2)
    assert checkpoints.steps() == [4, 6, 8, 10, 11]  # the last step, too


def test_best_says_what_is_better():
    loss, f1 = Best("loss", "min"), Best("f1", "max")
    assert loss.is_better(1.0, 2.0) and not loss.is_better(2.0, 1.0)
    assert f1.is_better(2.0, 1.0) and not f1.is_better(1.0, 2.0)
    assert not loss.is_better(1.0, 1.0) and not f1.is_better(1.0, 1.0)
    assert loss.index_of_best([3.0, 1.0, 1.0, 2.0]) == 1
    assert f1.index_of_best([3.0, 1.0, 3.0, 2.0]) == 0


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
@pytest.mark.parametrize(("moment", "step"), [({"batch": 2}, 14), ({"test_batch": 0}, 15)])
def test_signal_saves_after_the_step_that_is_running(
    number, moment, step, handlers, tmp_path, capfd
):
    job = Numbers(20, evaluate_every=5)
    watch, checkpoints = _train(tmp_path, job, 11, others=[_SignalAt(number, **moment)])
    assert watch.is_interrupted and watch.step == step
    assert checkpoints.steps() == [step]
    assert f"{number.name}: saved step {step} of 20; run the same" in capfd.readouterr().out
    assert signal.getsignal(signal.SIGTERM) is signal.getsignal(signal.SIGINT) is handlers


def test_a_signal_at_the_end_of_the_last_evaluation_is_not_lost(tmp_path, handlers):
    """What comes after a run, such as the next one of a grid, must not begin."""

    class Signal(keras.callbacks.Callback):
        def on_test_end(self, logs=None):
            signal.raise_signal(signal.SIGTERM)

    watch, checkpoints = _train(tmp_path, Numbers(4, evaluate_every=4), others=[Signal()])
    assert watch.is_interrupted
    assert checkpoints.steps() == [4]
    assert read_metrics(str(tmp_path / "metrics.jsonl"))[-1]["validation_loss"] == 101


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("/data/part-0", "^/data/part-0: Permission denied$"),
        ("{run}/logs/train", "^{run}: cannot be written .Permission denied.; free some space"),
        (None, "^{run}: cannot be written .Permission denied.; free some space"),
    ],
)
def test_what_cannot_be_read_is_not_said_to_be_written(name, words, tmp_path):
    job, run = Numbers(4), str(tmp_path)
    path = name and name.format(run=run)
    with (
        pytest.raises(BadInputError, match=words.format(run=run)),
        job.named_errors(run, Devices(job.config.training)),
    ):
        raise OSError(errno.EACCES, "Permission denied", path)


def test_ignored_signal_stays_ignored(handlers):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with StopSignals():
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_run_in_another_thread_leaves_signals_alone():
    before = signal.getsignal(signal.SIGTERM)

    def enter():
        with StopSignals():
            return signal.getsignal(signal.SIGTERM)

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        assert pool.submit(enter).result() is before


@pytest.mark.parametrize(("minutes", "steps"), [(1e-9, [1, 2, 3, 4]), (60.0, [4]), (None, [4])])
def test_checkpoints_are_due_by_the_clock(minutes, steps, tmp_path):
    """Beside them, the last step has one."""
    job = Numbers(4)
    training = job.config.training.replace(
        checkpoint_every_steps=None, checkpoint_every_minutes=minutes
    )
    job.config = job.config.replace(training=training)
    _, checkpoints = _train(tmp_path, job)
    assert checkpoints.steps() == steps


def test_tensorboard_has_the_hyperparameters_beside_what_they_gave(tmp_path):
    """As its HParams page reads them: one run, whose metrics lie in the same folder."""
    _train(tmp_path, Numbers(4, save_every=3))
    (path,) = (tmp_path / "logs" / "train").iterdir()
    values, tags = {}, set()
    for event in summary_iterator.summary_iterator(str(path)):
        for value in event.summary.value:
            tags.add(value.tag)
            if value.metadata.plugin_data.plugin_name == "hparams" and "session_start" in value.tag:
                content = plugin_data_pb2.HParamsPluginData.FromString(
                    value.metadata.plugin_data.content
                )
                values = dict(content.session_start_info.hparams)
    assert values["training.checkpoint_every_steps"].number_value == 3
    assert values["training.keep_best"].bool_value is False
    assert values["training.profile_steps"].string_value == "None"
    assert {"loss", "learning_rate"} <= tags


@pytest.mark.parametrize(
    ("steps", "steps_per_execution", "expected"),
    [
        ([3, 4], 1, (2, 4)),
        ([5, 99], 1, (4, 6)),
        ([9, 10], 1, None),
        ([3, 4], 4, (0, 4)),
        ([4, 5], 4, (0, 6)),
        ([9, 10], 4, None),
    ],
)
def test_steps_are_profiled(steps, steps_per_execution, expected, tmp_path, monkeypatch):
    """Whole executions, from before the first step to after the last one or to the run's end."""
    seen, backend = [], keras_backend.tensorboard
    for name in ("start_trace", "stop_trace"):
        whole = getattr(backend, name)

        def noted(*arguments, name=name, whole=whole, **options):
            seen.append((name, int(watches[0].step)))
            return whole(*arguments, **options)

        monkeypatch.setattr(backend, name, noted)
    watches, enter = [], Watch.__enter__
    monkeypatch.setattr(Watch, "__enter__", lambda self: watches.append(self) or enter(self))
    due = {"log_every": 4, "save_every": 4}
    job = Numbers(6, steps_per_execution=steps_per_execution, profile_steps=steps, **due)
    _train(tmp_path, job)
    files = list((tmp_path / "logs" / "train").glob("plugins/profile/*/*.xplane.pb"))
    assert bool(files) == (expected is not None)
    assert seen == (list(zip(("start_trace", "stop_trace"), expected or (), strict=False)))


@pytest.mark.parametrize("writes", [True, False])
def test_one_worker_writes_a_profile_and_all_have_the_same_executions(
    writes, tmp_path, monkeypatch
):
    class Worker(Devices):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.is_chief = writes

    ends = []

    class Note(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            ends.append(int(self.model.optimizer.iterations.numpy()))

    monkeypatch.setitem(globals(), "Devices", Worker)
    job = Numbers(12, log_every=16, save_every=16, steps_per_execution=8, profile_steps=[4, 5])
    _train(tmp_path, job, others=[Note()])
    assert ends == [8, 12]
    assert bool(list(tmp_path.glob("logs/train/plugins/profile/*/*"))) == writes


def test_a_profiler_that_fails_ends_no_run(tmp_path, monkeypatch, capsys):
    def fail(*arguments, **options):
        raise tf.errors.AlreadyExistsError(None, None, "another profile is under way")

    monkeypatch.setattr(keras_backend.tensorboard, "start_trace", fail)
    watch, checkpoints = _train(tmp_path, Numbers(6, profile_steps=[2, 5]))
    assert (watch.step, checkpoints.steps()) == (6, [6])
    said = capsys.readouterr().out
    assert said.count("training.profile_steps: no profile is written") == 1


class Clock:
    """Time as the steps take it: half a minute for the first, which is compiled."""

    def __init__(self, seconds, first):
        self.now, self.seconds, self.first = 1000.0, seconds, first

    def monotonic(self):
        return self.now

    def on_step(self, batch, logs):
        self.now += self.seconds if batch else self.first


def _lines_by_clock(directory, monkeypatch, capsys, clock, job):
    monkeypatch.setattr("spanbert_tf.training.watch.time", clock)
    monkeypatch.setattr("spanbert_tf.training.progress.time", clock)
    tick = keras.callbacks.LambdaCallback(on_train_batch_end=clock.on_step)
    _train(directory, job, others=[tick])
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith("step ")]


def test_a_run_says_how_far_it_is_long_before_its_log_does(tmp_path, monkeypatch, capsys):
    """Its loss, and what is left, whose first step is not counted; `metrics.jsonl` as without."""
    job = Numbers(40, log_every=1000)
    lines = _lines_by_clock(tmp_path, monkeypatch, capsys, Clock(5.0, 12.0), job)
    assert [int(line.split()[1]) for line in lines] == [3, 9, 20, 40]
    # Of the steps so far: 0, 1, 2 are their losses.
    assert lines[0].startswith("step 3 of 40: loss 1.0000, learning rate ")
    assert lines[0].endswith(", 0:00:22 elapsed, 0:03:05 left")  # 37 steps of 5 seconds
    (line,) = read_metrics(str(tmp_path / "metrics.jsonl"))
    assert (line["step"], line["loss"]) == (40, 19.5)


def test_the_first_line_comes_with_a_first_step_that_takes_long(tmp_path, monkeypatch, capsys):
    job = Numbers(3, log_every=1000)
    lines = _lines_by_clock(tmp_path, monkeypatch, capsys, Clock(5.0, 90.0), job)
    assert lines[0].startswith("step 1 of 3: loss 0.0000, learning rate ")
    assert lines[0].endswith(", 0:01:30 elapsed")  # how long a step takes is not known yet
    assert [int(line.split()[1]) for line in lines] == [1, 3]


def test_a_log_that_begins_soon_has_no_lines_before_it(tmp_path, monkeypatch, capsys):
    job = Numbers(40, log_every=4)
    lines = _lines_by_clock(tmp_path, monkeypatch, capsys, Clock(2.0, 12.0), job)
    assert [int(line.split()[1]) for line in lines] == [*range(4, 41, 4)]
    assert lines[0].endswith(", 0:00:18 elapsed, 0:01:12 left")


@pytest.mark.parametrize("precision", ["float32", "mixed_bfloat16"])
def test_an_evaluation_names_a_precision_that_is_not_that_of_scores(precision, tmp_path, capsys):
    job = Numbers(2, evaluate_every=2)
    job.config = job.config.replace(training=job.config.training.replace(precision=precision))
    _train(tmp_path, job)
    found = "evaluated after step 2" + " in bfloat16" * (precision != "float32") + ": loss 101.0000"
    assert found in capsys.readouterr().out
