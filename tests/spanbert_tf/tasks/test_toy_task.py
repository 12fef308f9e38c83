"""A task of another package: found by its entry point, and run by the shipped commands."""

import io
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time
from typing import ClassVar

import numpy as np
import pytest
import tensorflow as tf
import toy_task
from task_tests import SEQUENCE_LENGTH, SPECIAL, TaskTests, assert_same_answers, write_encoder

from spanbert_tf.console import DataConsole
from spanbert_tf.errors import BadInputError
from spanbert_tf.presets.preset import Preset
from spanbert_tf.tasks.evaluation import run_evaluation
from spanbert_tf.tasks.inspection import inspect_records

WORDS = ["the", "a", "sees", "has", "old", "new", "here", ".", *toy_task.ToyManifest.labels]
ENTRY_POINTS = """[spanbert_tf.tasks]
toy = toy_task:ToyTask
[spanbert_tf.prepare]
toy = toy_task:prepare
"""


def install(site):
    """What pip leaves of a package, beside its module."""
    directory = site / "toy_task-1.0.dist-info"
    directory.mkdir(parents=True)
    (directory / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-task\nVersion: 1.0\n")
    (directory / "entry_points.txt").write_text(ENTRY_POINTS)


def made_up_lines(count, seed):
    source = random.Random(seed)
    for _ in range(count):
        words = [source.choice(WORDS[:-2]) for _ in range(source.randrange(3, 20))]
        animal = source.choice(toy_task.ToyManifest.labels)
        words.insert(source.randrange(len(words)), animal)
        yield {"text": " ".join(words), "label": animal}


def write_lines(path, count, seed):
    path.write_text("".join(f"{json.dumps(line)}\n" for line in made_up_lines(count, seed)))


def prepare(source, output, vocabulary):
    options = ["--input", source, "--output", output, "--vocabulary", vocabulary, "--lowercase"]
    options += ["--sequence-length", SEQUENCE_LENGTH]
    toy_task.prepare.main(list(map(str, options)), standalone_mode=False)


@pytest.fixture(scope="module", autouse=True)
def installed(tmp_path_factory):
    """The toy is installed in this process, and in those that it starts."""
    site = tmp_path_factory.mktemp("site")
    install(site)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(site))
        paths = [str(site), os.path.dirname(toy_task.__file__), *sys.path]
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
        yield


@pytest.mark.slow  # what is true of every task; text classification's are quick
class TestToyTask(TaskTests):
    config_text = "task: toy\n"
    vocabulary = SPECIAL + WORDS
    raw_input: ClassVar = {"text": "the cat has a new dog ."}
    # Its model and its batches are the text classifier's, whose tests have these.
    test_bfloat16_trains_goes_on_and_predicts = None
    test_a_tpu_gets_rows_of_one_shape_and_a_step_without_the_host = None
    test_a_run_goes_on_with_jax_and_is_scored_there = None

    def write_records(self, directory, vocabulary):
        for name, count, seed in (("train", 64, 1), ("dev", 24, 2), ("other", 64, 3)):
            write_lines(directory / f"{name}.jsonl", count, seed)
            prepare(directory / f"{name}.jsonl", directory / name, vocabulary)

    def raw_inputs(self, data):
        lines = pathlib.Path(f"{data}.jsonl").read_text().splitlines()
        return [{"text": json.loads(line)["text"]} for line in lines]

    def answers_in_files(self, output):
        rows = map(json.loads, (output / "predictions.jsonl").read_text().splitlines())
        return [{"label": row["label"], "score": row["score"]} for row in rows]

    def answers_of_export(self, outputs):
        rows = zip(outputs["labels"], outputs["probabilities"], strict=True)
        return [{"label": label.decode(), "score": float(row.max())} for label, row in rows]

    def answer_of_predictor(self, found):
        return found

    def test_inspection_shows_rows_and_labels(self, material):
        console = DataConsole(file=io.StringIO(), width=200)
        inspect_records(material["dev"], "spanbert_base", num_examples=24, console=console)
        shown = console.file.getvalue()
        assert "toy in rows of up to 32, lower-cased" in shown and "  rows: 24\n" in shown
        lines = pathlib.Path(f"{material['dev']}.jsonl").read_text().splitlines()
        labels = toy_task.ToyManifest.labels
        expected = [
            f"[CLS] {line['text']} [SEP]\n  label: {labels.index(line['label'])}\n"
            for line in map(json.loads, lines)
        ]
        assert all(text in shown for text in expected)

    def test_a_report_that_the_task_does_not_have_is_refused(self, finished, material, tmp_path):
        report = str(tmp_path / "report.html")
        with pytest.raises(BadInputError, match="toy has no report; leave out --report"):
            run_evaluation(finished[0], [material["dev"]], report=report)
        assert not os.path.exists(report)


def run(*arguments, **options):
    """Runs a shipped command in a process of its own."""
    command = [sys.executable, "-m", "spanbert_tf.cli", *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, **options)
    assert result.returncode == 0, result.stderr
    return result.stdout


def kill_in_the_middle(arguments, output):
    """Starts a training, and kills it after its second checkpoint."""
    command = [sys.executable, "-m", "spanbert_tf.cli", *map(str, arguments)]
    child = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL)
    while child.poll() is None:
        checkpoints = output / "checkpoints"
        if checkpoints.exists() and len(os.listdir(checkpoints)) >= 2:
            os.killpg(child.pid, signal.SIGKILL)
        time.sleep(0.01)
    assert child.returncode == -signal.SIGKILL


@pytest.mark.slow
def test_a_task_of_another_package_goes_the_whole_way_by_the_shipped_commands(tmp_path):
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("".join(f"{piece}\n" for piece in SPECIAL + WORDS))
    write_encoder(tmp_path / "preset", SPECIAL + WORDS, seed=1)
    (tmp_path / "config.yaml").write_text("task: toy\n")
    write_lines(tmp_path / "train.jsonl", 96, seed=1)
    write_lines(tmp_path / "dev.jsonl", 24, seed=2)
    prepare(tmp_path / "dev.jsonl", tmp_path / "dev", vocabulary)  # as the command does
    run(
        *("prepare", "toy", "--lowercase", "--sequence-length", SEQUENCE_LENGTH),
        *("--vocabulary", vocabulary, "--input", tmp_path / "train.jsonl"),
        *("--output", tmp_path / "train"),
    )

    def finetuning(output):
        settings = (
            f"data.sequence_length={SEQUENCE_LENGTH}",
            "training.batch_size=8",
            "training.epochs=15",
            "training.checkpoint_every_steps=4",
            "training.log_every=10",
            "optimizer.learning_rate=0.005",
        )
        data = ("--data", tmp_path / "train", "--validation-data", tmp_path / "dev")
        options = ("--config", tmp_path / "config.yaml", "--preset", tmp_path / "preset", *data)
        return ("finetune", *options, "--output", output, "--set", *settings)

    straight, killed = tmp_path / "straight", tmp_path / "killed"
    run(*finetuning(straight))
    kill_in_the_middle(finetuning(killed), killed)
    assert "going on after step" in run(*finetuning(killed))
    models = [
        Preset(str(run / "preset")).trained_task(toy_task.ToyClassifier)
        for run in (straight, killed)
    ]
    for expected, actual in zip(*(model.get_weights() for model in models), strict=True):
        np.testing.assert_array_equal(actual, expected)

    preset = killed / "preset"
    scores = json.loads((killed / "scores.json").read_text())
    assert scores["accuracy"] > 80  # it is learned; by chance, 50
    printed = run("evaluate", "--preset", preset, "--data", tmp_path / "dev")
    assert f"accuracy {scores['accuracy']:.2f}" in printed
    run("predict", "--preset", preset, "--data", tmp_path / "dev", "--output", tmp_path / "rows")
    run(
        *("predict", "--preset", preset, "--input", tmp_path / "dev.jsonl"),
        *("--output", tmp_path / "answers.jsonl"),
    )
    in_files = TestToyTask().answers_in_files(tmp_path / "rows")
    lines = [json.loads(line) for line in (tmp_path / "dev.jsonl").read_text().splitlines()]
    right = [a["label"] == line["label"] for a, line in zip(in_files, lines, strict=True)]
    assert 100 * sum(right) / len(right) == scores["accuracy"]
    raw = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert_same_answers(raw, in_files)
    run("export", "--preset", preset, "--output", tmp_path / "served")
    serve = tf.saved_model.load(str(tmp_path / "served" / "1")).signatures["serving_default"]
    served = serve(text=tf.constant([line["text"] for line in lines]))
    rows = {name: values.numpy() for name, values in served.items()}
    assert_same_answers(TestToyTask().answers_of_export(rows), in_files)


def test_help_lists_commands_of_other_packages_and_imports_none():
    program = (
        "import sys, spanbert_tf.cli\n"
        "try:\n    spanbert_tf.cli.main(['prepare', '--help'])\n"
        "except SystemExit as stop:\n    assert stop.code == 0\n"
        "print(sorted({'tensorflow', 'keras', 'toy_task'} & set(sys.modules)), file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (result.returncode, result.stderr.strip()) == (0, "[]")
    assert re.search(r"^  toy +Command of the package toy-task\.$", result.stdout, re.MULTILINE)
    assert "squad" in result.stdout


def test_a_package_that_cannot_be_imported_is_named(tmp_path):
    install(tmp_path / "broken")
    points = ENTRY_POINTS.replace("toy_task:", "no_toy:").replace("toy =", "broken =")
    (tmp_path / "broken" / "toy_task-1.0.dist-info" / "entry_points.txt").write_text(points)
    (tmp_path / "config.yaml").write_text("task: broken\n")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}/broken:{os.environ['PYTHONPATH']}"}
    finetuning = ["finetune", "--config", str(tmp_path / "config.yaml"), "--preset", "p"]
    finetuning += ["--data", str(tmp_path), "--output", str(tmp_path / "run")]
    for arguments in (["prepare", "broken", "--help"], finetuning):
        command = [sys.executable, "-m", "spanbert_tf.cli", *arguments]
        result = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert result.returncode == 2
        assert "no_toy" in result.stderr and result.stderr.count("\n") == 1
