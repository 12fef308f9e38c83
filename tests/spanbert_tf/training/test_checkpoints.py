import contextlib
import errno
import hashlib
import json
import math
import os
import shutil
import threading

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import spanbert_tf.training
from spanbert_tf.errors import BadInputError
from spanbert_tf.files.output import Output
from spanbert_tf.training import checkpoint_files
from spanbert_tf.training.checkpoints import Best, Checkpoints
from spanbert_tf.training.devices import backend

LOSS = Best("loss", "min")
FEATURES = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
TARGETS = FEATURES.sum(axis=1, keepdims=True)


def _make_model(seed=0, scale_loss=False):
    keras.utils.set_random_seed(seed)
    optimizer = spanbert_tf.training.adamw(0.1, 2, 100, dynamic_loss_scale=scale_loss)
    model = keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(16),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(1),
        ]
    )
    model.compile(loss="mse", optimizer=optimizer)
    model.optimizer.build(model.trainable_variables)
    if scale_loss:
        model.optimizer.updates_at_scale.assign(1_995)  # it doubles after the fifth update
    return model


def _train(model, steps):
    for _ in range(steps):
        model.train_on_batch(FEATURES, TARGETS)


def _weights(model):
    return [variable.numpy() for variable in [*model.variables, *model.optimizer.variables]]


def _saved(directory, steps, max_to_keep=3, **options):
    model = _make_model(**options)
    checkpoints = Checkpoints(str(directory), model, best=LOSS, max_to_keep=max_to_keep)
    done = 0
    for step in steps:
        _train(model, step - done)
        checkpoints.save(step)
        done = step
    checkpoints.wait()
    return model


def _flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _put_a_pipe_at(path):
    os.remove(path)
    os.mkfifo(path)


@pytest.mark.parametrize("scale_loss", [False, True])
def test_training_goes_on_as_if_it_had_not_stopped(scale_loss, tmp_path):
    _saved(tmp_path, [3], scale_loss=scale_loss)
    # Other weights, another state of the dropout.
    resumed = _make_model(seed=1, scale_loss=scale_loss)
    assert Checkpoints(str(tmp_path), resumed, best=LOSS, max_to_keep=3).restore() == 3
    straight = _make_model(scale_loss=scale_loss)
    _train(straight, 7)
    _train(resumed, 4)
    if scale_loss:
        assert float(straight.optimizer.loss_scale.numpy()) == 2.0**16  # from 2^15
    for expected, actual in zip(_weights(straight), _weights(resumed), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_newest_checkpoints_are_kept(tmp_path):
    model = _saved(tmp_path, [1, 2, 9, 10], max_to_keep=2)
    assert Checkpoints(str(tmp_path), model, best=LOSS, max_to_keep=2).steps() == [9, 10]
    assert sorted(os.listdir(tmp_path)) == ["step-00000009", "step-00000010"]


def test_nothing_to_restore(tmp_path):
    model = _make_model()
    before = _weights(model)
    assert Checkpoints(str(tmp_path / "new"), model, best=LOSS, max_to_keep=1).restore() == 0
    for expected, actual in zip(before, _weights(model), strict=True):
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: _flip_a_bit(path / "state.safetensors"),
        lambda path: os.truncate(path / "state.safetensors", 10),
        lambda path: os.remove(path / "state.safetensors"),
        lambda path: _put_a_pipe_at(path / "state.safetensors"),
        lambda path: os.remove(path / "checkpoint.json"),
        lambda path: (path / "checkpoint.json").write_text("{}"),
        lambda path: (path / "checkpoint.json").write_bytes(b""),
    ],
    ids=[
        "flipped bit",
        "truncated",
        "no state",
        "pipe",
        "no description",
        "other json",
        "empty json",
    ],
)
def test_damaged_checkpoint_is_reported_and_the_one_before_used(damage, tmp_path):
    _saved(tmp_path, [2, 4])
    damage(tmp_path / "step-00000004")
    reports = []
    model = _make_model(seed=1)
    checkpoints = Checkpoints(str(tmp_path), model, best=LOSS, max_to_keep=3, report=reports.append)
    assert checkpoints.restore() == 2
    (report,) = reports
    assert "step-00000004 is damaged" in report
    expected = _weights(_saved(tmp_path / "other", [2]))
    for value, actual in zip(expected, _weights(model), strict=True):
        np.testing.assert_array_equal(actual, value)  # nothing of what is damaged
    _train(model, 2)
    checkpoints.save(4)  # the place is free again
    checkpoints.wait()
    assert Checkpoints(str(tmp_path), model, best=LOSS, max_to_keep=3).restore() == 4


def test_all_checkpoints_damaged(tmp_path):
    model = _saved(tmp_path, [2, 4])
    for step in (2, 4):
        _flip_a_bit(tmp_path / f"step-0000000{step}" / "state.safetensors")
    for _ in range(2):  # the same command again does not begin anew
        with pytest.raises(BadInputError, match="every checkpoint is damaged"):
            Checkpoints(
                str(tmp_path), model, best=LOSS, max_to_keep=3, report=lambda line: None
            ).restore()


def test_a_checkpoint_that_cannot_be_read_is_not_damaged(tmp_path, monkeypatch):
    """As on a network's file system that is gone for a time, or copied by somebody else."""
    model, before = _saved(tmp_path, [2, 4]), sorted(os.listdir(tmp_path))

    def fails(path):
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr("spanbert_tf.files.contents.sha256", fails)
    with pytest.raises(BadInputError, match=r"step-00000004: cannot be read \(Permission denied\)"):
        Checkpoints(str(tmp_path), model, best=LOSS, max_to_keep=3).restore()
    assert sorted(os.listdir(tmp_path)) == before


def test_the_best_after_the_step_that_is_restored_is_forgotten(tmp_path):
    """A run that was killed between an evaluation and a checkpoint evaluates again, and others."""
    model = _saved(tmp_path, [2])
    ahead = Checkpoints(str(tmp_path), model, best=LOSS, max_to_keep=3)
    ahead.keep_if_best(6, {"loss": 1.0})
    checkpoints = Checkpoints(str(tmp_path), model, best=LOSS, max_to_keep=3)
    assert checkpoints.restore() == 2
    assert checkpoints.restore_best() is None
    for step, loss, best in ((4, 2.0, 4), (6, 1.5, 6), (8, 1.6, 6)):
        checkpoints.keep_if_best(step, {"loss": loss})
        assert checkpoints.restore_best() == best


def test_a_best_one_whose_description_is_damaged_is_written_again(tmp_path):
    model = _saved(tmp_path, [2])
    checkpoints = Checkpoints(str(tmp_path), model, best=LOSS, max_to_keep=3)
    checkpoints.keep_if_best(2, {"loss": 1.0})
    (tmp_path / "best-00000002" / "checkpoint.json").write_text("{}")
    checkpoints.keep_if_best(2, {"loss": 1.0})
    assert checkpoints.restore_best() == 2


def test_no_number_is_never_the_best():
    for mode in ("min", "max"):
        assert Best("loss", mode).index_of_best([math.nan, 2.0, math.inf, 2.0]) == 1


def test_leftovers_of_a_killed_process_are_no_checkpoints(tmp_path):
    model = _saved(tmp_path, [2])
    written = Output(tmp_path / "step-00000004")
    written.create()
    shutil.copytree(tmp_path / "step-00000002", written.new)
    os.rename(tmp_path / "step-00000002", tmp_path / "step-00000002.deleted")
    checkpoints = Checkpoints(str(tmp_path), model, best=LOSS, max_to_keep=3)
    assert checkpoints.steps() == []
    assert os.listdir(tmp_path) == []


def test_copies_of_checkpoints_are_left_alone(tmp_path):
    """A user puts one aside before he tries something."""
    model = _saved(tmp_path, [2, 4])
    copies = ("step-00000004.bak", "step-00000004 (copy)", "step-4")
    for name in copies:
        shutil.copytree(tmp_path / "step-00000004", tmp_path / name)
    checkpoints = Checkpoints(str(tmp_path), model, best=LOSS, max_to_keep=1)
    assert checkpoints.restore() == 4
    checkpoints.save(5)
    checkpoints.wait()
    assert sorted(os.listdir(tmp_path)) == sorted(["step-00000005", *copies])


def test_full_disk_keeps_the_checkpoint_before(tmp_path, full_disk):
    model = _saved(tmp_path, [2])
    checkpoints = Checkpoints(str(tmp_path), model, best=LOSS, max_to_keep=1)
    message = r"step-00000004: cannot be written .*"
    with full_disk(256), pytest.raises(BadInputError, match=message) as raised:
        checkpoints.save(4)
        checkpoints.wait()
    assert "\n" not in str(raised.value)
    assert os.listdir(tmp_path) == ["step-00000002"]
    assert Checkpoints(str(tmp_path), model, best=LOSS, max_to_keep=1).restore() == 2


def test_best_weights_outlive_the_newest_checkpoints(tmp_path):
    model = _make_model()
    checkpoints = Checkpoints(str(tmp_path / "kept"), model, best=LOSS, max_to_keep=2)
    for step, loss in ((1, 5.0), (2, 3.0), (3, float("nan")), (4, 3.5), (5, 3.0), (6, 4.0)):
        _train(model, 1)
        checkpoints.keep_if_best(step, {"loss": loss})
        checkpoints.save(step)
    checkpoints.wait()
    assert sorted(os.listdir(tmp_path / "kept")) == [
        "best-00000002",
        "step-00000005",
        "step-00000006",
    ]
    again = Checkpoints(str(tmp_path / "kept"), _make_model(seed=1), best=LOSS, max_to_keep=2)
    assert again.restore() == 6
    again.keep_if_best(7, {"loss": 2.0})
    assert sorted(os.listdir(tmp_path / "kept"))[0] == "best-00000007"
    assert again.steps() == [5, 6]


@pytest.mark.parametrize(
    "metric, mode",
    [("f1", "max"), ("macro_f1", "max"), ("loss", "min"), ("span_boundary_loss", "min")],
)
def test_direction_of_a_metric_that_a_configuration_names(metric, mode):
    assert Best("average_f1", "max").or_by(metric) == (metric, mode)
    assert Best(metric, mode).or_by(None) == (metric, mode)


def test_the_best_by_another_metric_is_not_compared(tmp_path):
    """A run whose `training.best_metric` is changed has no best weights until it evaluates."""
    model = _make_model()
    by_loss = Checkpoints(str(tmp_path), model, best=LOSS, max_to_keep=1)
    by_loss.keep_if_best(1, {"loss": 0.5, "accuracy": 80.0})
    by_accuracy = Checkpoints(str(tmp_path), model, best=Best("accuracy", "max"), max_to_keep=1)
    assert by_accuracy.restore_best() is None
    by_accuracy.keep_if_best(2, {"loss": 0.7, "accuracy": 70.0})
    assert by_accuracy.restore_best() == 2
    assert os.listdir(tmp_path) == ["best-00000002"]


def test_best_weights_of_a_score_are_restored(tmp_path):
    model = _make_model()
    checkpoints = Checkpoints(str(tmp_path), model, best=Best("f1", "max"), max_to_keep=1)
    assert checkpoints.restore_best() is None
    weights = {}
    for step, score in ((1, 20.0), (2, 70.0), (3, 60.0)):
        _train(model, 1)
        checkpoints.keep_if_best(step, {"f1": score})
        checkpoints.save(step)
        weights[step] = [variable.numpy() for variable in model.weights]
    assert checkpoints.restore_best() == 2
    for expected, variable in zip(weights[2], model.weights, strict=True):
        np.testing.assert_array_equal(variable.numpy(), expected)


def test_best_weights_are_not_read_where_the_model_has_them(tmp_path):
    """Damage shows it: nothing looks at the file."""
    model = _make_model()
    reports = []
    checkpoints = Checkpoints(str(tmp_path), model, best=LOSS, max_to_keep=1, report=reports.append)
    checkpoints.keep_if_best(3, {"loss": 1.0})
    _flip_a_bit(tmp_path / "best-00000003" / "state.safetensors")
    assert checkpoints.restore_best() == 3
    checkpoints.save(4)
    assert checkpoints.restore_best() is None
    (report,) = reports
    assert "best-00000003 is damaged" in report


def test_every_worker_of_a_resumed_run_reads_the_best_weights(tmp_path):
    """They are those of the step from which the run was resumed; only the chief writes."""
    model = _make_model()
    _train(model, 3)
    chief = Checkpoints(str(tmp_path), model, best=LOSS, max_to_keep=1)
    chief.save(3)
    chief.keep_if_best(3, {"loss": 1.0})
    best = [variable.numpy() for variable in model.weights]
    resumed = _make_model(seed=1)
    worker = Checkpoints(str(tmp_path), resumed, best=LOSS, max_to_keep=1, writes=False)
    assert worker.restore() == 3
    _train(resumed, 1)
    worker.save(4)
    assert worker.restore_best() == 3
    for expected, variable in zip(best, resumed.weights, strict=True):
        np.testing.assert_array_equal(variable.numpy(), expected)


def test_best_weights_that_are_gone_are_kept_when_they_are_reached_again(tmp_path):
    """A damaged one is deleted; the run goes on before it and comes by with the same value."""
    model = _make_model()
    checkpoints = Checkpoints(str(tmp_path), model, best=LOSS, max_to_keep=2)
    checkpoints.keep_if_best(3, {"loss": 1.0})
    shutil.rmtree(tmp_path / "best-00000003")
    checkpoints.keep_if_best(3, {"loss": 1.0})
    assert os.listdir(tmp_path) == ["best-00000003"]


@pytest.mark.parametrize("jit_compile", [False, True])
def test_what_is_saved_is_what_the_step_had_reached(jit_compile, tmp_path):
    """Training goes on while the file is written: by updates in place, were they not copied."""
    model = _make_model()
    model.compile(loss="mse", optimizer=model.optimizer, jit_compile=jit_compile)
    _train(model, 1)
    release = threading.Event()
    checkpoints = Checkpoints(str(tmp_path), model, best=LOSS, max_to_keep=1)
    checkpoints._thread.submit(release.wait)  # the file is written after the steps below
    checkpoints.save(1)
    expected = [np.copy(values) for values in _weights(model)]
    _train(model, 3)
    release.set()
    checkpoints.wait()
    assert checkpoints.restore() == 1
    for before, after in zip(expected, _weights(model), strict=True):
        np.testing.assert_array_equal(after, before)


@pytest.mark.parametrize("is_mirrored", [False, True])
def test_saving_copies_nothing_on_a_processor(is_mirrored, two_devices, tmp_path):
    with two_devices.scope() if is_mirrored else contextlib.nullcontext():
        model = _make_model()
    first, second = (backend.read_value(model.weights[0]) for _ in range(2))
    assert np.shares_memory(first, second)
    np.testing.assert_array_equal(first, model.weights[0].numpy())


def test_file_is_the_one_that_safetensors_reads_and_has_its_checksum(tmp_path):
    model = _saved(tmp_path, [2])
    path = tmp_path / "step-00000002" / "state.safetensors"
    description = json.loads((path.parent / "checkpoint.json").read_text())
    assert description == {"step": 2, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    saved = load_file(path)
    assert saved["weight.0000"].tolist() == model.weights[0].numpy().tolist()
    assert len(saved) == len(model.variables) + len(model.optimizer.variables)


def test_weights_that_are_not_trained_are_left_out(tmp_path):
    model = _make_model()
    model.layers[0].trainable = False
    checkpoints = Checkpoints(str(tmp_path), model, best=LOSS, max_to_keep=1, base="of a preset")
    checkpoints.save(1)
    checkpoints.wait()
    saved = load_file(tmp_path / "step-00000001" / "state.safetensors")
    assert (3, 16) not in [value.shape for name, value in saved.items() if "weight" in name]
    for base in ("of another preset", None):
        other = Checkpoints(str(tmp_path), model, best=LOSS, max_to_keep=1, base=base)
        with pytest.raises(BadInputError, match="step-00000001: does not hold the variables"):
            other.restore()


def test_oldest_goes_first_where_there_is_no_room(tmp_path, monkeypatch):
    model = _saved(tmp_path, [1, 2, 3])
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=100))
    seen = []
    monkeypatch.setattr(
        checkpoint_files,
        "save_file",
        lambda *a: seen.append(os.listdir(tmp_path)) or save_file(*a),
    )
    checkpoints = Checkpoints(str(tmp_path), model, best=LOSS, max_to_keep=2)
    checkpoints.save(4)
    checkpoints.wait()
    assert sorted(seen[0]) == ["step-00000003", "step-00000004.incomplete"]


@pytest.mark.slow
def test_a_step_can_be_damaged_twice(tmp_path):
    _saved(tmp_path, [2, 4])
    for _ in range(2):
        _flip_a_bit(tmp_path / "step-00000004" / "state.safetensors")
        model = _make_model(seed=1)
        checkpoints = Checkpoints(
            str(tmp_path), model, best=LOSS, max_to_keep=3, report=lambda line: None
        )
        assert checkpoints.restore() == 2
        _train(model, 2)
        checkpoints.save(4)
        checkpoints.wait()
    names = sorted(os.listdir(tmp_path))
    assert names[:2] == ["damaged-step-00000004", "damaged-step-00000004-2"]


def test_checkpoint_of_another_model_is_named(tmp_path):
    _saved(tmp_path, [2])
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(7)])
    model.compile(optimizer=spanbert_tf.training.adamw(0.1, 2, 100))
    model.optimizer.build(model.trainable_variables)
    checkpoints = Checkpoints(str(tmp_path), model, best=LOSS, max_to_keep=3)
    with pytest.raises(BadInputError, match="step-00000002: does not hold the variables"):
        checkpoints.restore()


def test_a_checkpoint_that_is_still_being_written_is_waited_for_and_named(tmp_path):
    model, reports, release = _make_model(), [], threading.Event()
    checkpoints = Checkpoints(str(tmp_path), model, best=LOSS, max_to_keep=5, report=reports.append)
    checkpoints._thread.submit(release.wait)
    checkpoints.save(1)
    threading.Timer(0.2, release.set).start()
    checkpoints.save(2)
    checkpoints.wait()
    assert checkpoints.steps() == [1, 2]
    (report,) = reports
    assert "before that of step 2 is still being written, and training waits for it" in report
