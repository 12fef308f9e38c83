"""`adapt`: the commands of its page on tiny data, and what it refuses."""

import json
import os
import pathlib
import random
import re
import shlex
import subprocess
import sys

import pyarrow
import pyarrow.parquet
import pytest
import tensorflow as tf
import transformers
from commands_on_jax import run_on_jax
from continued_runs import save_encoder
from torch_models import VOCABULARY, save_torch_model, torch_model

from data_prep.text.storage import find_files
from spanbert_tf.cli import main
from spanbert_tf.errors import MismatchError
from spanbert_tf.files.lock import output_lock
from spanbert_tf.files.paths import check_resumable
from spanbert_tf.files.preset import golden_digest
from spanbert_tf.studies.adapt import TextSource, _copy_preset, _note_arguments, _steps_in
from spanbert_tf.studies.task_scores import TaskComparison, read_task_data
from spanbert_tf.training.metrics_log import read_metrics

WORDS = ["the", "a", "cat", "dog", "sat", "cats", "dogs", "on", "mat", "mats", "zoe", "paid"]
KILLER = str(pathlib.Path(__file__).parents[2] / "support" / "killed_commands.py")
PAGE = pathlib.Path(__file__).parents[3] / "docs" / "adapting.md"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory of a user: an encoder, a table of posts, and a task's files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    (tmp_path / "my-encoder").mkdir()
    save_torch_model(torch_model(max_position_embeddings=64), tmp_path / "my-encoder")
    source = random.Random(0)
    posts = [
        "\n\n".join(" ".join(source.choices(WORDS, k=8)) + "." for _ in range(10))
        for _ in range(80)
    ]
    pyarrow.parquet.write_table(pyarrow.table({"body": posts}), "posts.parquet")
    (tmp_path / "topics").mkdir()
    for part, num_rows in (("train", 40), ("dev", 12)):
        lines = ["text,label"]
        for number in range(num_rows):
            label = ("cats", "dogs")[number % 2]
            lines.append(f"{' '.join(source.choices(WORDS, k=5))} {label},{label}")
        (tmp_path / "topics" / f"{part}.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "tiny.yaml").write_text(
        "base: classification_small\ntraining: {epochs: 1, batch_size: 8}\n"
        "data: {sequence_length: 64}\n"
    )
    return tmp_path


def run(arguments, capsys):
    with pytest.raises(SystemExit) as end:
        main(arguments)
    printed = capsys.readouterr()
    return end.value.code, printed


def commands_of_page(number, replaced):
    """The commands of one of the page's blocks, made small by replacing some of their words."""
    block = re.findall(r"^```bash\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)[number]
    block = block.replace("\\\n", " ")
    for old, new in replaced.items():
        assert old in block
        block = block.replace(old, new)
    commands = [shlex.split(line) for line in block.splitlines() if line]
    assert all(program == "spanbert-tf" for program, *_ in commands)
    return [arguments for _, *arguments in commands]


@pytest.mark.slow
def test_the_commands_of_the_page_run(folder, capsys):
    """A directory of Hugging Face and a Parquet file in; adapted, fine-tuned and exported out."""
    replaced = {
        "--words 1000": "--words 2",
        "--hours 2": "--steps 10 --set training.batch_size=4",
        "--sequence-length 128": "--sequence-length 64",
        "classification_small": "tiny.yaml",
    }
    commands = commands_of_page(0, replaced)
    assert [words[0] for words in commands] == ["adapt", "prepare", "finetune", "export"]
    for arguments in commands:
        code, printed = run(arguments, capsys)
        assert code == 0, printed.err
    served = tf.saved_model.load("served/1").signatures["serving_default"]
    answer = served(text=tf.constant(["the mats cats", "the mats dogs"]))
    assert all(values.shape[0] == 2 for values in answer.values())
    page = (folder / "mine" / "README.md").read_text()
    assert re.search(r"\| pieces per word \| 1\.\d+ \| 1\.\d+ \|", page)
    assert "masked-LM loss per character" in page
    assert "trained it further on posts.parquet, in 10 steps" in page
    vocabulary = (folder / "mine" / "preset" / "assets/tokenizer/vocabulary.txt").read_text()
    assert {"cats", "mats"} & set(vocabulary.splitlines())
    # The first command again: all is there, and it says the same.
    code, printed = run(commands[0], capsys)
    assert code == 0, printed.err
    assert (folder / "mine" / "README.md").read_text() == page
    # Another share of the first weights is another preset of the same run.
    first = golden_digest("mine/preset")
    code, printed = run([*commands[0], "--set", "training.initial_encoder_share=0.9"], capsys)
    assert code == 0, printed.err
    assert golden_digest("mine/preset") == golden_digest("mine/run/preset") != first
    # Other arguments are another adaptation.
    code, printed = run([*commands[0], "--document-separator", "x"], capsys)
    assert code == 2
    assert "begun with another --document-separator" in printed.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--steps 2 --hours 1", "give either --steps or --hours"),
        ("--hours 0", "--hours"),
        (
            "--hours 1 --set training.steps=3",
            "--set training.steps=3: --hours has other steps; give one of them",
        ),
        ("--task-data rte", "is not TASK=DIR"),
        ("--task-data rte=nowhere", "nowhere: is no directory"),
        ("--task-data rte=empty", "has 0 files train.*"),
        ("--task-data no_such=topics", "no_such"),
        ("--task-data rte=topics --task-data rte=topics", "a task named rte is given already"),
        ("--task-prepare glue", "is not TASK=COMMAND"),
        ("--task-data rte=topics --task-prepare cola=glue", "cola: belongs to no --task-data"),
        ("--input nowhere-3", "nowhere-3"),
        ("--preset t5", "t5: is a t5 model of Hugging Face, no preset; only BERT models"),
    ],
)
def test_mistakes_are_told_before_anything_is_written(options, message, folder, capsys):
    (folder / "empty").mkdir()
    (folder / "t5").mkdir()
    (folder / "t5" / "config.json").write_text('{"model_type": "t5"}')
    if "--preset" not in options:
        options += " --preset nowhere-2"
    words = f"adapt --input posts.parquet --output mine {options}"
    code, printed = run(words.split(), capsys)
    assert code == 2
    assert message in printed.err
    assert len(printed.err.strip().splitlines()) == 1
    assert not (folder / "mine").exists() or not os.listdir("mine")


def test_another_folder_is_not_touched(folder, capsys):
    (folder / "mine").mkdir()
    (folder / "mine" / "thesis.txt").write_text("Do not touch.")
    code, printed = run(["adapt", "--preset", "p", "--input", "x", "--output", "mine"], capsys)
    assert code == 2
    assert "mine: exists already" in printed.err
    assert os.listdir("mine") == ["thesis.txt"]


def test_text_of_another_script_is_refused_before_the_training(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    preset = save_encoder(tmp_path / "encoder")
    (tmp_path / "text").write_text("\n\n".join(f"Кот сидит на крыше {n}." for n in range(200)))
    options = ["--input", str(tmp_path / "text"), "--set", "training.batch_size=2"]
    code, printed = run(["adapt", "--preset", preset, *options, "--output", "mine"], capsys)
    assert code == 2
    assert re.search(r"records: [\d.]+% of the pieces are \[UNK\]", printed.out)
    assert "mine/records: the held-out text has no word without [UNK]; give" in printed.err
    assert not os.path.exists("mine/run")


def test_a_lock_that_a_kill_left_is_no_other_thing(tmp_path):
    output = str(tmp_path / "mine")
    with output_lock(os.path.join(output, "extended"), "adapt"):
        assert os.listdir(output)
        check_resumable(output, "an adaptation", ())


def test_arguments_can_be_corrected_until_something_was_made_by_them(tmp_path):
    preset = save_encoder(tmp_path / "encoder")

    def note(pattern):
        files = find_files([pattern])
        _note_arguments(str(tmp_path / "mine"), preset, TextSource([pattern]), files, words=3)

    first, second = str(tmp_path / "a.csv"), str(tmp_path / "b*.csv")
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text("text\nThe cat sat.\n")
    note(first)
    note(second)
    (tmp_path / "mine" / "records").mkdir()
    note(second)
    with pytest.raises(MismatchError, match="mine: this run was begun with another --input"):
        note(first)
    (tmp_path / "b2.csv").write_text("text\nThe dog sat.\n")
    with pytest.raises(MismatchError, match="another state of the files of --input; name another"):
        note(second)
    (tmp_path / "b2.csv").unlink()
    note(second)
    (tmp_path / "b.csv").write_text("text\nThe cat slept.\n")
    with pytest.raises(MismatchError, match="another state of the files of --input; name another"):
        note(second)


def test_files_of_a_task_can_be_corrected_until_a_run_was_begun_with_them(folder):
    encoder = save_encoder(folder / "encoder")

    def compare():
        (task,) = read_task_data(["classification_small=topics"], [])
        return TaskComparison(task, "compared", {}, encoder)

    compare()
    os.makedirs("compared/before/train")
    compare()
    assert os.path.exists("compared/before/train")
    (folder / "topics" / "dev.csv").write_text("text,label\nthe cat,cats\n")
    compare()
    assert not os.path.exists("compared/before")
    os.makedirs("compared/before/train")
    (folder / "encoder" / "golden.json").write_text("of another encoder")
    compare()
    assert not os.path.exists("compared/before")
    os.makedirs("compared/before/run")
    compare()
    (folder / "topics" / "dev.csv").write_text("text,label\nthe dog,dogs\n")
    with pytest.raises(MismatchError, match="compared: this run was begun with another --task-dat"):
        compare()
    assert os.path.exists("compared/before/run")


def test_a_preset_is_copied_again_if_the_run_has_written_it_again(tmp_path):
    def write(content):
        (tmp_path / "run").mkdir(exist_ok=True)
        (tmp_path / "run" / "golden.json").write_text(content)
        (tmp_path / "run" / "model.weights.h5").write_text(content)

    copy = tmp_path / "copy"
    for content in ("first", "first", "second"):
        write(content)
        assert _copy_preset(str(tmp_path / "run"), str(copy)) == str(copy)
        assert {path.read_text() for path in copy.iterdir()} == {content}


SMALL = (
    "--set training.batch_size=4 training.log_every=4 training.checkpoint_every_steps=4 "
    "training.keep_checkpoints=true"
)
ADAPT = f"adapt --preset my-encoder --input posts.parquet --text-column body {SMALL}".split()


@pytest.fixture
def headless(folder):
    """The encoder is one without a head, and its vocabulary has rows for words."""
    vocabulary = [*VOCABULARY, *(f"[unused{number}]" for number in range(30))]
    model = torch_model(transformers.BertModel, max_position_embeddings=64, vocab_size=48)
    save_torch_model(model, folder / "my-encoder", vocabulary)
    return folder


@pytest.mark.slow
def test_killed_in_each_stage_it_ends_in_the_same_table_and_bits(headless, capsys):
    """The second command of the page. The words go to rows `[unusedN]`: the vocabulary is as large
    as before.
    """
    replaced = {
        "--words 1000": f"--words 2 --steps 12 {SMALL}",
        "classification_small": "tiny.yaml",
        "--label-column label": "--label-column label --sequence-length 64",
        "--output mine": "",
    }
    (command,) = commands_of_page(1, replaced)
    stages = [
        "killed/tasks/tiny/before/train*",
        "killed/extended.incomplete",
        "killed/records.incomplete",
        "killed/run/checkpoints/step-*4",
        "killed/before/run/checkpoints/step-*8",
        "killed/tasks/tiny/after/run/config.yaml",
    ]
    commands = [
        [[*command, "--output", "straight"], []],
        [[*command, "--output", "killed"], stages],
    ]
    program = [sys.executable, KILLER, json.dumps(["spanbert_tf.studies.adapt", commands])]
    child = subprocess.run(program, capture_output=True, text=True)
    assert child.returncode == 0, child.stderr
    assert child.stdout.count("killed at") == len(stages)
    pages = {(headless / name / "README.md").read_text() for name in ("straight", "killed")}
    (page,) = pages
    assert len(re.findall(r"^\| (?!---).*\d", page, re.MULTILINE)) == 3  # two of the text, a task
    for preset in ("preset", "before/run/preset", "tasks/tiny/after/run/preset"):
        digests = {golden_digest(f"{output}/{preset}") for output in ("straight", "killed")}
        assert len(digests) == 1, preset
    # The task is trained again for the preset of another share of the first weights.
    changed = ["--output", "killed", "--set", "training.initial_encoder_share=0.9"]
    code, printed = run([*command, *changed], capsys)
    assert code == 0, printed.err
    after = "tasks/tiny/after/run/preset"
    assert golden_digest(f"killed/{after}") != golden_digest(f"straight/{after}")


RECORDER = """
import keras

class Recorder(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        with open("notes", "a") as file:
            file.write(f"{self.params['steps']}\\n")
"""


@pytest.mark.slow
def test_hours_are_as_many_steps_as_were_measured(headless, capsys, monkeypatch):
    """The user's callbacks see this run alone, not that of the speed, nor that of a head."""
    folder = headless
    (folder / "my_recorder.py").write_text(RECORDER)
    monkeypatch.syspath_prepend(str(folder))
    further = ["training.batch_by_length=true", "training.callbacks=['my_recorder:Recorder']"]
    arguments = [*ADAPT, *further, "--hours", "0.001", "--output", "mine"]
    code, printed = run(arguments, capsys)
    assert code == 0, printed.err
    (told,) = re.findall(r"a step takes .* s here: ([\d,]+) steps in 0.001 hours", printed.out)
    steps = int(told.replace(",", ""))
    assert read_metrics("mine/run/metrics.jsonl")[-1]["step"] == steps
    assert read_metrics("mine/before/run/metrics.jsonl")[-1]["step"] == steps
    assert (folder / "notes").read_text().split() == [str(steps)]
    assert f"in {told} steps" in (folder / "mine" / "README.md").read_text()
    code, printed = run(arguments, capsys)  # the speed is not measured again
    assert (code, "a step takes" in printed.out) == (0, False)
    code, printed = run([*arguments[:-3], "1e-6", "--output", "short"], capsys)
    assert code == 2
    assert "--hours 1e-06: are 0 steps here, and fewer than 10 change nothing" in printed.err


@pytest.mark.slow
def test_it_adapts_on_jax(folder):
    pytest.importorskip("jax")
    child, (status,) = run_on_jax([*ADAPT, "--steps", "12", "--output", "mine"])
    assert status == 0, child.stderr
    page = (folder / "mine" / "README.md").read_text()
    assert re.search(r"masked-LM loss per character \(nats\) \| \d\.\d+ \| \d\.\d+ \|", page)


def test_speed_is_kept(tmp_path):
    (tmp_path / "speed.json").write_text(json.dumps({"steps": 123}))
    assert _steps_in(1.0, "preset", "records", str(tmp_path), (), None) == 123
