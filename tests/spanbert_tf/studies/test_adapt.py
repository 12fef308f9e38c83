"""`adapt`: the commands of its page on tiny data, and what it refuses."""

import json
import os
import pathlib
import random
import re
import shlex

import pyarrow
import pyarrow.parquet
import pytest
from torch_models import save_torch_model, torch_model

from spanbert_tf.cli import main
from spanbert_tf.studies.adapt import _steps_in

WORDS = ["the", "a", "cat", "dog", "sat", "cats", "dogs", "on", "mat", "mats", "zoe", "paid"]
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
    return tmp_path


def run(arguments, capsys):
    with pytest.raises(SystemExit) as end:
        main(arguments)
    printed = capsys.readouterr()
    return end.value.code, printed


@pytest.mark.slow
def test_the_commands_of_the_page_run(folder, capsys):
    """A directory of Hugging Face and a Parquet file in; adapted, fine-tuned and exported out."""
    text = PAGE.read_text()
    (block,) = re.findall(r"^```bash\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[:1]
    smaller = {
        "--words 1000": "--words 2",
        "--hours 2": "--steps 10 --set training.batch_size=4",
        "--sequence-length 128": "--sequence-length 64",
        "classification_small": "tiny.yaml",
    }
    for old, new in smaller.items():
        assert old in block
        block = block.replace(old, new)
    (folder / "tiny.yaml").write_text(
        "base: classification_small\ntraining:\n  epochs: 1\n  batch_size: 8\n"
        "data:\n  sequence_length: 64\n"
    )
    lines = [line for line in block.replace("\\\n", " ").splitlines() if line]
    for line in lines:
        program, *arguments = shlex.split(line)
        assert program == "spanbert-tf"
        code, printed = run(arguments, capsys)
        assert code == 0, printed.err
    assert os.path.exists("served/1/saved_model.pb")
    page = (folder / "mine" / "README.md").read_text()
    assert re.search(r"\| pieces a word \| 1\.\d+ \| 1\.\d+ \|", page)
    assert "masked-LM loss a character" in page
    vocabulary = (folder / "mine" / "preset" / "assets/tokenizer/vocabulary.txt").read_text()
    assert {"cats", "mats"} & set(vocabulary.splitlines())
    # The first command again: all is there, and it says the same.
    code, printed = run(shlex.split(lines[0])[1:], capsys)
    assert code == 0, printed.err
    assert (folder / "mine" / "README.md").read_text() == page
    # Other arguments are another adaptation.
    code, printed = run([*shlex.split(lines[0])[1:], "--document-separator", "x"], capsys)
    assert code == 2
    assert "begun with another --document-separator" in printed.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--steps 2 --hours 1", "give either --steps or --hours"),
        ("--hours 0", "--hours"),
        ("--task-data rte", "is not TASK=DIR"),
        ("--task-data rte=nowhere", "nowhere: is no directory"),
        ("--task-data rte=empty", "has 0 files train.*"),
        ("--task-data no_such=topics", "no_such"),
    ],
)
def test_mistakes_are_told_before_anything_is_written(options, message, folder, capsys):
    (folder / "empty").mkdir()
    words = f"adapt --preset nowhere-2 --input posts.parquet --output mine {options}"
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


def test_speed_is_kept(tmp_path):
    (tmp_path / "speed.json").write_text(json.dumps({"steps": 123}))
    assert _steps_in(1.0, "preset", "records", str(tmp_path), (), None) == 123
