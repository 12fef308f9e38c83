import contextlib
import hashlib
import io
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from keras.src.backend import random
from record_files import random_records, write_records
from signalled_runs import terminated_after

from spanbert_tf.config import load_config
from spanbert_tf.errors import BadInputError, ConfigurationError, MismatchError, TrainingError
from spanbert_tf.models import SpanBertMaskedLM, SpanBertTokenizer
from spanbert_tf.pretraining.job import run_pretraining
from spanbert_tf.training import run as training_run
from spanbert_tf.training.devices import NVIDIA_CARD, unused_card
from spanbert_tf.training.metrics_log import CLOCKED, MetricsLog, read_metrics


@pytest.fixture(scope="module")
def config(tiny_overrides):
    # Dropout is on: its random state must survive a restart, too.
    return load_config("spanbert_base", [*tiny_overrides, "model.dropout=0.1"])


@pytest.fixture(scope="module")
def straight_run_and_output(config, tiny_records, tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs")
    run, card = directory / "straight", directory / "nvidia0"
    card.touch()  # as on a machine whose card TensorFlow does not see
    with (
        contextlib.redirect_stdout(io.StringIO()) as output,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(training_run, "NVIDIA_CARD", str(card))
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        run_pretraining(config, tiny_records, str(run))
    return run, output.getvalue()


@pytest.fixture(scope="module")
def straight_run(straight_run_and_output):
    """A run that nothing disturbs. Tests that change it copy it first."""
    return straight_run_and_output[0]


@pytest.fixture
def copied_run(straight_run, tmp_path):
    return str(shutil.copytree(straight_run, tmp_path / "run"))


@pytest.mark.slow
def test_a_run_on_records_with_words_goes_on_and_keeps_how_they_were_found(
    tiny_overrides, tmp_path
):
    records = [
        {**record, "word_starts": [*range(0, len(record["token_ids"]), 2)]}
        for record in random_records(40, 24, seed=4)
    ]
    data = write_records(
        tmp_path / "data", records[:32], records[32:], sequence_length=24, word_segmentation="icu"
    )
    for name, all_steps in {"straight": [12], "stopped": [6, 12]}.items():
        for steps in all_steps:
            settings = [*tiny_overrides, "training.evaluate_every=6", f"training.steps={steps}"]
            config = load_config("spanbert_base", settings)
            run_pretraining(config, str(data), str(tmp_path / name))
    _assert_same_run(tmp_path / "stopped", tmp_path / "straight")
    preset = str(tmp_path / "straight" / "preset")
    assert (
        SpanBertTokenizer.from_preset(preset).word_segmentation == "icu"
    )  # English has no default
    assert "words are found by ICU" in (tmp_path / "straight" / "preset" / "README.md").read_text()


def _without_speed(run):
    lines = read_metrics(str(run / "metrics.jsonl"))
    return [{k: v for k, v in line.items() if k not in CLOCKED} for line in lines]


def _last_checkpoint(run):
    content = (run / "checkpoints" / "step-00000012" / "state.safetensors").read_bytes()
    return hashlib.sha256(content).hexdigest()  # pytest would compare the bytes for an hour


def _assert_same_run(run, straight_run):
    assert _last_checkpoint(run) == _last_checkpoint(straight_run)
    assert _without_speed(run) == _without_speed(straight_run)


@pytest.mark.slow
def test_run_that_is_moved_while_it_trains_says_so_and_goes_on_there(
    straight_run, config, tiny_records, tmp_path, monkeypatch
):
    run, moved = tmp_path / "run", tmp_path / "moved"
    on_step_end = MetricsLog.on_step_end

    def move(self, step, model):
        on_step_end(self, step, model)
        if step == 6:
            run.rename(moved)

    with monkeypatch.context() as patch:
        patch.setattr(MetricsLog, "on_step_end", move)
        with pytest.raises(TrainingError, match=r"run: was removed or renamed while it was"):
            run_pretraining(config, tiny_records, str(run))
    assert not run.exists()
    run_pretraining(config, tiny_records, str(moved))
    _assert_same_run(moved, straight_run)
    assert not (moved / ".lock").exists()


def test_run_directory(straight_run, config):
    names = {path.name for path in straight_run.iterdir()}
    assert {"config.yaml", "checkpoints", "logs", "metrics.jsonl", "preset"} <= names
    written = load_config(str(straight_run / "config.yaml")).model_dump()
    assert written["training"].pop("precision") == "float32"  # decided when the run began
    expected = config.model_dump()
    assert expected["training"].pop("precision") == "auto"
    assert written == expected
    assert sorted(os.listdir(straight_run / "checkpoints")) == [
        "step-00000004",
        "step-00000008",
        "step-00000012",
    ]
    assert list((straight_run / "logs" / "train").iterdir())


def test_run_fills_the_card_of_its_preset(straight_run):
    card = (straight_run / "preset" / "README.md").read_text()
    assert "geometric_spans masking, 12 steps of 4 rows of 24 positions" in card
    assert "| Objectives | masked LM, span boundary |" in card
    assert "| Data | 40 records, " in card
    (shown,) = re.findall(r"\| Held-out losses in nats \| masked lm ([\d.]+)", card)
    measured = read_metrics(str(straight_run / "metrics.jsonl"))[-1]["validation_masked_lm_loss"]
    assert float(shown) == pytest.approx(measured, abs=1e-3)


def test_metrics_are_logged_apart(straight_run):
    lines = read_metrics(str(straight_run / "metrics.jsonl"))
    trained = [line for line in lines if "learning_rate" in line]
    evaluated = [line for line in lines if "validation_loss" in line]
    assert [line["step"] for line in trained] == [2, 4, 5, 6, 8, 10, 12]  # 5: before an evaluation
    assert [line["step"] for line in evaluated] == [5, 10, 12]
    for line in trained:
        losses = line["masked_lm_loss"] + line["span_boundary_loss"]
        assert line["loss"] == pytest.approx(losses, rel=1e-5)
        assert 0 <= line["masked_lm_accuracy"] <= 1
        assert 0 <= line["span_boundary_accuracy"] <= 1
        assert line["gradient_norm"] > 0
        assert line["tokens_per_second"] > 0
    assert set(evaluated[0]) == {"step"} | {
        f"validation_{name}"
        for name in trained[0]
        if name not in ("step", "learning_rate", "gradient_norm", "padding_share", *CLOCKED)
    }


DOOMED_RUN = """
import os, signal, sys
import tensorflow as tf
from spanbert_tf.config import load_config
from spanbert_tf.models.train_step import TrainStep
from spanbert_tf.training import checkpoint_files
from spanbert_tf.pretraining.job import run_pretraining

def die(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)

kind, config, data, run = sys.argv[1:]
if kind == "in a loop":  # of steps 7 and 8
    train, left = TrainStep.train_step, iter(range(7))
    def train_step(self, data):
        tf.numpy_function(lambda: next(left, None) is None and die(), [], tf.bool)
        return train(self, data)
    TrainStep.train_step = train_step
else:
    write = checkpoint_files._sha256_of  # of a file that is complete
    checkpoint_files._sha256_of = lambda path, arrays: (
        die() if "step-00000008" in path else write(path, arrays)
    )
run_pretraining(load_config(config), data, run)
"""


@pytest.mark.slow
def test_killed_run_goes_on_bit_for_bit(config, tiny_records, tmp_path):
    """SIGKILL in a loop of steps, then in the middle of a checkpoint, then to the end.

    As a run whose executions have one step each: with its lines, evaluations and checkpoints.
    """
    run, straight_run = tmp_path / "killed", tmp_path / "straight"
    config_file = tmp_path / "config.yaml"
    config = config.replace(training=config.training.replace(evaluate_every=6))
    run_pretraining(config, tiny_records, str(straight_run))
    config = config.replace(training=config.training.replace(steps_per_execution=2))
    config_file.write_text(config.to_yaml())
    for kind, newest in (("in a loop", "step-00000004"), ("in a checkpoint", "step-00000004")):
        arguments = [kind, str(config_file), tiny_records, str(run)]
        child = subprocess.run([sys.executable, "-c", DOOMED_RUN, *arguments], capture_output=True)
        assert child.returncode == -signal.SIGKILL, child.stderr.decode()[-2000:]
        assert max(name for name in os.listdir(run / "checkpoints") if "." not in name) == newest
    assert os.listdir(run / "checkpoints") != ["step-00000004"]  # a half-written one lies there
    run_pretraining(config, tiny_records, str(run))
    _assert_same_run(run, straight_run)
    assert sorted(os.listdir(run / "checkpoints")) == sorted(
        os.listdir(straight_run / "checkpoints")
    )


DETERMINISTIC_RUN = """
import sys
import tensorflow as tf
from spanbert_tf.config import load_config
from spanbert_tf.pretraining.job import run_pretraining

config, data, *runs = sys.argv[1:]
for run in runs:
    run_pretraining(load_config(config), data, run)
try:  # random without a seed
    tf.image.sample_distorted_bounding_box([9, 9, 1], [[[0.0, 0.0, 1.0, 1.0]]])
except ValueError as error:
    print(error)
"""


@pytest.mark.slow
def test_deterministic_runs_have_the_same_bits(config, tiny_records, tmp_path):
    runs, config_file = (tmp_path / "first", tmp_path / "second"), tmp_path / "config.yaml"
    config_file.write_text(config.to_yaml().replace("deterministic: false", "deterministic: true"))
    assert load_config(str(config_file)).training.deterministic
    arguments = [str(config_file), tiny_records, *map(str, runs)]
    child = subprocess.run(
        [sys.executable, "-c", DETERMINISTIC_RUN, *arguments], capture_output=True, text=True
    )
    assert child.returncode == 0, child.stderr[-2000:]
    assert "determinism" in child.stdout
    _assert_same_run(*runs)


@pytest.mark.slow
def test_sigterm_saves_the_step_and_the_same_command_goes_on(
    straight_run, config, tiny_records, tmp_path, capfd
):
    run = tmp_path / "terminated"
    with terminated_after(5):  # an evaluation is due after this step
        run_pretraining(config, tiny_records, str(run))
    assert "saved step 5 of 12; run the same command again to go on" in capfd.readouterr().out
    assert sorted(os.listdir(run / "checkpoints")) == ["step-00000004", "step-00000005"]
    assert not (run / "preset").exists()
    run_pretraining(config, tiny_records, str(run))
    assert "going on after step 5 of 12" in capfd.readouterr().out
    _assert_same_run(run, straight_run)


def test_finished_run_is_not_trained_again(copied_run, config, tiny_records):
    shutil.rmtree(f"{copied_run}/preset")
    before = pathlib.Path(copied_run, "metrics.jsonl").read_bytes()
    run_pretraining(config, tiny_records, copied_run)
    assert pathlib.Path(copied_run, "metrics.jsonl").read_bytes() == before
    assert os.path.isdir(f"{copied_run}/preset")


@pytest.mark.slow
def test_run_can_be_made_longer(copied_run, tiny_overrides, tiny_records):
    longer = [*tiny_overrides, "model.dropout=0.1", "training.steps=14", "training.log_every=1"]
    run_pretraining(load_config("spanbert_base", longer), tiny_records, copied_run)
    steps = [line["step"] for line in read_metrics(f"{copied_run}/metrics.jsonl")]
    assert steps == [2, 4, 5, 5, 6, 8, 10, 10, 12, 12, 13, 14, 14]
    assert load_config(f"{copied_run}/config.yaml").training.steps == 14


def test_run_cannot_be_made_shorter(copied_run, tiny_overrides, tiny_records):
    shorter = load_config(
        "spanbert_base", [*tiny_overrides, "model.dropout=0.1", "training.steps=8"]
    )
    with pytest.raises(
        MismatchError, match=r"has 12 steps already, more than training.steps \(8\)"
    ):
        run_pretraining(shorter, tiny_records, copied_run)
    assert load_config(f"{copied_run}/config.yaml").training.steps == 12


@pytest.mark.parametrize("override", ["optimizer.weight_decay=0.01", "training.batch_size=8"])
def test_other_configuration_is_refused(override, copied_run, tiny_overrides, tiny_records):
    changed = load_config("spanbert_base", [*tiny_overrides, "model.dropout=0.1", override])
    with pytest.raises(MismatchError) as raised:
        run_pretraining(changed, tiny_records, copied_run)
    key, _, value = override.partition("=")
    assert f"{key} is " in str(raised.value)
    assert f" in this run and {value} now" in str(raised.value)


def test_longer_schedule_is_refused_and_the_way_is_named(copied_run, tiny_overrides, tiny_records):
    longer = ["model.dropout=0.1", "training.steps=30", "training.schedule_steps=30"]
    changed = load_config("spanbert_base", [*tiny_overrides, *longer])
    way = f"another --output with --initial-preset {copied_run}/preset"
    with pytest.raises(MismatchError, match=re.escape(way)):
        run_pretraining(changed, tiny_records, copied_run)


def test_run_says_what_it_does_without_a_terminal(straight_run_and_output):
    lines = straight_run_and_output[1].splitlines()
    assert re.fullmatch(
        r"[\d,]+ trained parameters on 1 CPU in float32: 12 steps of 4 rows of 24, "
        r"1\.2 epochs of 40 records",
        lines[0],
    )
    steps = [line for line in lines if line.startswith("step ")]
    pattern = (
        r"step (\d+) of 12: loss (\d+\.\d{4}) \((.*)\), learning rate \d\.\d\de-\d\d, [\d,]+ "
        r"tokens/s(?:, \d+% of the time waits for input)?, "
        r"\d:\d\d:\d\d elapsed, \d:\d\d:\d\d left"
    )
    found = [re.fullmatch(pattern, line) for line in steps]
    shown = [int(match[1]) for match in found]
    assert shown == [2, 4, 5, 6, 8, 10, 12]  # 5: before an evaluation
    for match in found:  # each objective, and the loss is their sum
        parts = dict(part.rsplit(" ", 1) for part in match[3].split(", "))
        assert {"masked lm", "span boundary"} <= parts.keys()
        assert sum(map(float, parts.values())) == pytest.approx(float(match[2]), abs=2e-4)
    evaluated = [line for line in lines if line.startswith("evaluated after step ")]
    assert [int(re.search(r"step (\d+):", line)[1]) for line in evaluated] == [5, 10, 12]
    assert not any("Epoch" in line for line in lines)
    following = lines[lines.index("Next:") + 1 :]
    assert [line.split()[:2] for line in following] == [
        ["tensorboard", "--logdir"],
        ["spanbert-tf", "prepare"],
        ["spanbert-tf", "export"],
    ]


@pytest.mark.skipif(tf.config.list_physical_devices("GPU") != [], reason="TensorFlow has a GPU")
def test_a_card_that_tensorflow_does_not_list_is_told_before_the_first_step(
    straight_run_and_output, tmp_path, monkeypatch
):
    lines = straight_run_and_output[1].splitlines()
    (number,) = (n for n, line in enumerate(lines) if "nvidia0: there is a GPU" in line)
    assert "pip install 'spanbert_tf[cuda]'" in lines[number]
    assert number < next(n for n, line in enumerate(lines) if line.startswith("step "))
    card = tmp_path / "nvidia0"
    assert unused_card(str(card)) is None  # no card
    card.touch()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert unused_card(str(card)).startswith(f"{card}: ")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # the user wants none
    assert unused_card(str(card)) is None
    assert NVIDIA_CARD == "/dev/nvidia0"


def test_other_records_are_refused(copied_run, config, tmp_path):
    others = write_records(
        tmp_path / "others",
        random_records(40, 24, seed=5),
        random_records(10, 24),
        sequence_length=24,
    )
    with pytest.raises(MismatchError, match="begun with another --data"):
        run_pretraining(config, str(others), copied_run)


def test_directory_that_is_no_run_is_refused(config, tiny_records, tmp_path):
    (tmp_path / "thesis.txt").write_text("Do not touch.")
    with pytest.raises(BadInputError, match="exists and is no training run"):
        run_pretraining(config, tiny_records, str(tmp_path))
    assert os.listdir(tmp_path) == ["thesis.txt"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data.sequence_length=16"], "data.sequence_length of these records is 24"),
        (["data.sequences=pair"], "data.sequences of these records is single"),
        (
            ["data.sequence_length=16", "data.vocabulary_size=9"],
            "data.sequence_length of these records is 24, of the configuration 16; "
            "data.vocabulary_size of these records is 60, of the configuration 9; write other "
            "records, or --set data.sequence_length=24 --set data.vocabulary_size=60$",
        ),
        (["data.vocabulary_size=28996"], "data.vocabulary_size of these records is 60"),
        (["training.batch_size=41"], "40 training records are fewer than one batch"),
        (["masking.scheme=entities"], "needs annotated records"),
    ],
)
def test_records_that_do_not_fit_are_refused(
    overrides, message, tiny_overrides, tiny_records, tmp_path
):
    config = load_config("spanbert_base", [*tiny_overrides, *overrides])
    with pytest.raises((BadInputError, MismatchError), match=message) as raised:
        run_pretraining(config, tiny_records, str(tmp_path / "run"))
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "run").exists()


def test_records_without_held_out_ones_are_refused(config, tmp_path):
    records = write_records(tmp_path / "records", random_records(40, 24), sequence_length=24)
    with pytest.raises(BadInputError, match="no held-out records"):
        run_pretraining(config, str(records), str(tmp_path / "run"))


@pytest.mark.slow
def test_run_that_kept_no_checkpoints_is_finished(config, tiny_records, tmp_path, capfd):
    """Its preset is what it returns again; it cannot be trained on."""
    config = config.replace(training=config.training.replace(keep_checkpoints=False))
    run = tmp_path / "run"
    model = run_pretraining(config, tiny_records, str(run))
    assert os.listdir(run / "checkpoints") == []
    lines = _without_speed(run)
    again = run_pretraining(config, tiny_records, str(run))
    assert _without_speed(run) == lines
    for expected, found in zip(model.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(found, expected)
    longer = config.replace(training=config.training.replace(steps=20))
    with pytest.raises(MismatchError, match="finished after 12 steps and kept no checkpoints"):
        run_pretraining(longer, tiny_records, str(run))
    best = config.replace(training=config.training.replace(keep_best=True))
    with pytest.raises(MismatchError, match="keep_best False and kept no checkpoints to make it"):
        run_pretraining(best, tiny_records, str(run))


@pytest.mark.slow
def test_the_preset_has_the_weights_of_the_best_evaluation(config, tiny_records, tmp_path, capfd):
    """No evaluation has a right answer of this kind, so that the first one is the best."""
    run = tmp_path / "run"
    changed = {"keep_best": True, "best_metric": "span_boundary_accuracy"}
    changed |= {"evaluate_every": 4, "keep_checkpoints": False}
    config = config.replace(training=config.training.replace(**changed))
    model = run_pretraining(config, tiny_records, str(run))
    printed = capfd.readouterr().out
    lines = [line for line in read_metrics(str(run / "metrics.jsonl")) if "validation_loss" in line]
    best = max(lines, key=lambda line: line["validation_span_boundary_accuracy"])
    assert [line["step"] for line in lines] == [4, 8, 12] and best["step"] < 12
    assert (
        f"the best checkpoint by span_boundary_accuracy is that of step {best['step']}" in printed
    )
    said = f"Held-out records after step {best['step']}: loss {best['validation_loss']:.4f}"
    assert said in printed
    pretrainer = SpanBertMaskedLM.from_preset(str(run / "preset"))
    for ours, written in zip(
        model.backbone.get_weights(), pretrainer.backbone.get_weights(), strict=True
    ):
        np.testing.assert_array_equal(written, ours)
    # Again: the same model, evaluated once more, since the last line of the log is of others.
    run_pretraining(config, tiny_records, str(run))
    assert f"loss {best['validation_loss']:.4f}" in capfd.readouterr().out


@pytest.mark.parametrize("metric", ["f1", "work_tokens"])  # the second counts the work of a step
def test_a_best_metric_that_pretraining_has_not_is_refused_before_a_step(
    metric, config, tiny_records, tmp_path
):
    config = config.replace(training=config.training.replace(best_metric=metric))
    expected = f"chosen by '{metric}', and they have loss, masked_lm_"
    with pytest.raises(ConfigurationError, match=expected):
        run_pretraining(config, tiny_records, str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_no_weight_is_drawn_that_a_checkpoint_has(copied_run, config, tiny_records, monkeypatch):
    longer = config.replace(training=config.training.replace(steps=13))
    draw, drawn = random.truncated_normal, []
    monkeypatch.setattr(
        random,
        "truncated_normal",
        lambda shape, *more, **options: drawn.append(shape) or draw(shape, *more, **options),
    )
    run_pretraining(longer, tiny_records, copied_run)
    assert drawn == []


def test_run_is_refused_before_its_first_step_where_the_disk_is_too_small(
    config, tiny_records, tmp_path, monkeypatch
):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    message = r"run: the run takes up to \d.\d MB on disk \(checkpoints .*, and 1.0 kB are"
    with pytest.raises(BadInputError, match=message):
        run_pretraining(config, tiny_records, str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
