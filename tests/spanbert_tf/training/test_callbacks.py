"""The user's own callbacks: when they are called, with what, and what happens if they fail."""

import json
import pathlib
import re
import sys

import pytest

from spanbert_tf.config import load_config
from spanbert_tf.errors import ConfigurationError, TrainingError
from spanbert_tf.pretraining.job import run_pretraining
from spanbert_tf.training.callbacks import load_callbacks
from spanbert_tf.training.checkpoint_files import saved_steps
from spanbert_tf.training.metrics_log import CLOCKED

MODULE = """
import json
import random

import keras

class Recorder(keras.callbacks.Callback):
    def __init__(self, path, fails_at=None, stops_at=None, draws=False, fails_at_end=False):
        super().__init__()
        self.fails_at_end = fails_at_end
        if draws:
            random.random()
        self.path, self.fails_at, self.stops_at = path, fails_at, stops_at

    def note(self, hook, number, logs):
        with open(self.path, "a") as file:
            file.write(json.dumps([hook, number, logs or {}]) + "\\n")

    def on_train_begin(self, logs=None):
        assert self.model.backbone is not None and self.params["steps"] == 12
        self.note("train_begin", None, logs)

    def on_epoch_begin(self, epoch, logs=None):
        self.note("epoch_begin", epoch, logs)

    def on_train_batch_end(self, batch, logs=None):
        self.note("batch_end", batch, logs)
        if batch == self.fails_at:
            raise KeyError("no such project")
        if batch == self.stops_at:
            self.model.stop_training = True

    def on_epoch_end(self, epoch, logs=None):
        self.note("epoch_end", epoch, logs)

    def on_train_end(self, logs=None):
        self.note("train_end", None, logs)
        if self.fails_at_end:
            raise KeyError("no such project")

def fail():
    raise AssertionError
"""


@pytest.fixture
def recorder(tmp_path, monkeypatch):
    (tmp_path / "my_recorder.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "my_recorder:Recorder"
    sys.modules.pop("my_recorder", None)


def _run(overrides, records, tmp_path, recorder, **options):
    """Runs with two callbacks, of which the second has no options."""
    paths = [str(tmp_path / name) for name in ("notes", "others")]
    callbacks = [{recorder: {"path": paths[0], **options}}, {recorder: {"path": paths[1]}}]
    config = load_config("spanbert_base", [*overrides, f"training.callbacks={callbacks}"])
    run_pretraining(config, str(records), str(tmp_path / "run"), show_next_steps=False)


def _notes(tmp_path, name="notes"):
    return [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]


def test_callbacks_get_each_line_and_each_evaluation(
    recorder, tmp_path, tiny_overrides, tiny_records, capsys
):
    """A callback that fails ends the run with a line; the same command goes on without it.

    The others end with the run. One that fails at the end of the run costs no preset.
    """
    with pytest.raises(TrainingError) as raised:
        _run(tiny_overrides, tiny_records, tmp_path, recorder, fails_at=5)
    assert str(raised.value) == (
        "training.callbacks: my_recorder:Recorder failed in on_train_batch_end (KeyError: "
        "'no such project'); mend it or leave it out, and give the same command again to go on"
    )
    said = capsys.readouterr().out
    assert said.splitlines()[0] == (
        "training.callbacks: my_recorder:Recorder is imported, and its code runs"
    )
    assert max(saved_steps(str(tmp_path / "run" / "checkpoints"))) == 6  # that step, too
    assert load_config(str(tmp_path / "run" / "config.yaml")).training.callbacks == []
    assert _notes(tmp_path)[-1][0] == "batch_end"
    assert [hook for hook, *_ in _notes(tmp_path, "others")][-2:] == ["epoch_begin", "train_end"]
    with pytest.raises(TrainingError) as raised:
        _run(tiny_overrides, tiny_records, tmp_path, recorder, fails_at_end=True)
    assert str(raised.value) == (
        "training.callbacks: my_recorder:Recorder failed in on_train_end (KeyError: 'no such "
        "project'); what the command itself writes is complete"
    )
    assert (tmp_path / "run" / "preset").exists()
    assert [hook for hook, *_ in _notes(tmp_path, "others")].count("train_end") == 2
    notes = _notes(tmp_path)
    assert [(hook, number) for hook, number, _ in notes] == [
        ("train_begin", None),
        ("epoch_begin", 0),
        ("batch_end", 1),
        ("batch_end", 3),
        ("batch_end", 4),  # before an evaluation
        ("epoch_end", 0),
        ("epoch_begin", 1),
        ("batch_end", 5),  # which failed
        ("train_begin", None),
        ("epoch_begin", 1),
        ("batch_end", 7),
        ("batch_end", 9),
        ("epoch_end", 1),
        ("epoch_begin", 2),
        ("batch_end", 11),
        ("epoch_end", 2),
        ("epoch_begin", 3),
        ("train_end", None),
    ]
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    trained = [line for line in lines if "loss" in line]
    found = [logs for hook, _, logs in notes if hook == "batch_end"]
    assert found == [
        {name: value for name, value in line.items() if name != "step"} for line in trained
    ]
    evaluated = [logs for hook, _, logs in notes if hook == "epoch_end"]
    measured = [line for line in lines if "validation_loss" in line]
    for logs, line in zip(evaluated, measured, strict=True):
        assert logs["val_loss"] == line["validation_loss"]
        assert "loss" in logs


def _unclocked(notes):
    """Notes without what a clock gives."""
    return [
        (hook, number, {name: value for name, value in logs.items() if name not in CLOCKED})
        for hook, number, logs in notes
    ]


def test_a_callback_stops_the_training(recorder, tmp_path, tiny_overrides, tiny_records, capsys):
    _run(tiny_overrides, tiny_records, tmp_path, recorder, stops_at=3)
    stopped = "a callback has stopped the training: saved step 4 of 12; run the same command"
    assert stopped in capsys.readouterr().out
    assert saved_steps(str(tmp_path / "run" / "checkpoints")) == [4]
    notes = _notes(tmp_path)
    assert [hook for hook, _, _ in notes][-2:] == ["batch_end", "train_end"]
    # Random numbers that a callback draws in its constructor change neither weights nor dropout.
    drawing = tmp_path / "drawing"
    drawing.mkdir()
    _run(tiny_overrides, tiny_records, drawing, recorder, stops_at=3, draws=True)
    assert _unclocked(_notes(drawing)) == _unclocked(notes)


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("my_missing:Recorder", "cannot be imported (ModuleNotFoundError: No module named"),
        ("my_recorder:Missing", "cannot be imported (AttributeError: module 'my_recorder' has"),
        ("my_recorder:fail", "is no class derived from keras.callbacks.Callback; name one"),
        ("my_recorder:Recorder", "cannot be created with {} (TypeError: "),
    ],
)
def test_callbacks_that_cannot_be_made_are_one_line(place, said, recorder):
    with pytest.raises(ConfigurationError) as raised:
        load_callbacks([{place: {}}])
    assert str(raised.value).startswith(f"training.callbacks: {place} {said}")
    assert "\n" not in str(raised.value)


TRACKERS = {  # what the page's lines use of MLflow and of W&B
    "mlflow/keras/callback.py": """
import keras

class MlflowCallback(keras.callbacks.Callback):
    def __init__(self, log_every_epoch=True, log_every_n_steps=None):
        super().__init__()
""",
    "wandb/__init__.py": """
run = None

def init(**options):
    global run
    run = options
""",
    "wandb/integration/keras.py": """
import keras
import wandb

class WandbMetricsLogger(keras.callbacks.Callback):
    def __init__(self, log_freq="epoch", initial_global_step=0):
        super().__init__()
        assert wandb.run is not None, "call wandb.init first"
""",
}


@pytest.fixture
def page(tmp_path, monkeypatch):
    """The page, whose module can be imported."""
    page = (pathlib.Path(__file__).parents[3] / "docs" / "pretraining.md").read_text()
    (module,) = re.findall(r"```python\n(import wandb\n.*?)```", page, re.DOTALL)
    for name, content in {**TRACKERS, "my_wandb.py": module}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield page
    for name in [*sys.modules]:
        if name.split(".")[0] in ("mlflow", "wandb", "my_wandb"):
            del sys.modules[name]


def test_the_lines_of_the_page_make_callbacks_of_trackers(page):
    (setting,) = re.findall(r"'(training\.callbacks=.*mlflow.*)'$", page, re.MULTILINE)
    (mlflow,) = load_callbacks(load_config("spanbert_base", [setting]).training.callbacks)
    assert "has the name `my_wandb:Logger`" in page
    (logger,) = load_callbacks([{"my_wandb:Logger": {"project": "spans"}}])
    assert sys.modules["wandb"].run == {"project": "spans"}
    kinds = [type(named.callback) for named in (mlflow, logger)]
    assert [kind.__name__ for kind in kinds] == ["MlflowCallback", "Logger"]
    assert issubclass(kinds[1], sys.modules["wandb.integration.keras"].WandbMetricsLogger)


def test_only_the_command_and_its_own_file_name_code(tmp_path):
    """A base, and the file of a run, may come from anyone."""
    section = "training:\n  callbacks: ['my:One', {'my:Two': {rate: 2}}]\n"
    own = tmp_path / "own.yaml"
    own.write_text(section)
    both = [{"my:One": {}}, {"my:Two": {"rate": 2}}]
    assert load_config(str(own)).training.callbacks == both
    on_command = load_config("spanbert_base", ["training.callbacks=['my:One']"])
    assert on_command.training.callbacks == both[:1]
    derived = tmp_path / "derived.yaml"
    derived.write_text("base: own.yaml\n")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "inputs.json").write_text("{}")
    of_run = tmp_path / "run" / "config.yaml"
    of_run.write_text(section)
    for path, place in ((derived, own), (of_run, of_run)):
        with pytest.raises(ConfigurationError) as raised:
            load_config(str(path))
        assert str(raised.value).startswith(f"{place}: line 2: training.callbacks names code")
        assert load_config(str(path), ["training.callbacks=[]"]).training.callbacks == []


@pytest.mark.parametrize("value", ["[my]", "['my:a b']", "[{}]", "my:One", "[{'my:One': 3}]"])
def test_callbacks_that_are_no_places_are_refused(value):
    with pytest.raises(
        ConfigurationError, match=r"^--set training\.callbacks=.*: training\.callbacks: "
    ):
        load_config("spanbert_base", [f"training.callbacks={value}"])
