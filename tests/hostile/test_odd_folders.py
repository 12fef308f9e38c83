"""Odd names of folders, and processes that start with little around them."""

import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys

import pytest

from benchmarks.damaged_records import write_all_records, write_presets
from spanbert_tf.cli import main

NAMES = [
    "with space",
    "  two  ",
    "'quoted'",
    '"doubly"',
    "[brackets]",
    "(round)",
    "*",
    "what?",
    "{a,b}",
    "line\nend",
    "tab\tstop",
    "100%",
    "~",
    "$HOME",
    "#1",
    "a:b",
    "key=value",
    "a,b",
    "back\\slash",
    "[red]markup[/red]",
    "[/x]",
    "-n",
    "; touch x",
    "x" * 250,
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    directory = tmp_path_factory.mktemp("records")
    records = write_all_records(directory)
    with contextlib.redirect_stdout(io.StringIO()):
        return directory, records, write_presets(directory, records)


def status(*arguments):
    """The exit status of a command in this process."""
    try:
        main(list(map(str, arguments)))
    except SystemExit as end:
        return end.code or 0
    return 0


@pytest.fixture
def odd(request, tmp_path, monkeypatch, capfd):
    """A folder of an odd name; nothing beside it is written, and no traceback."""
    folder = tmp_path / request.param
    folder.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    yield folder
    assert os.listdir(tmp_path) == [request.param.split("/")[0]]
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("odd", NAMES, indirect=True)
def test_records_in_folders_of_odd_names(odd, whole):
    """Relative, absolute, with `..` and slashes at the end: all lie where they were asked for."""
    directory, records, _ = whole
    for name in ("vocab.txt", "texts.jsonl"):
        (odd / name).write_text((directory / name).read_text())
    prepare = ["prepare", "classification", "--input", odd / "texts.jsonl", "--lowercase"]
    prepare += ["--vocabulary", f"{odd}/../{odd.name}/vocab.txt", "--sequence-length", 32]
    prepare += ["--text-column", "text", "--label-column", "label"]
    output = f"./{odd.relative_to(os.getcwd())}/records///"
    assert status(*prepare, "--output", output) == 0
    assert set(os.listdir(odd)) == {"vocab.txt", "texts.jsonl", "records"}
    places = (odd / "records", records["text_classification"])
    files = [
        json.loads((place / "text_classification_info.json").read_text())["files"]
        for place in places
    ]
    assert files[0] == files[1]


@pytest.mark.slow
@pytest.mark.parametrize("odd", NAMES, indirect=True)
def test_models_in_folders_of_odd_names(odd, whole):
    _, _, presets = whole
    formats = ("--from", "keras", "--to", "huggingface")
    assert status("convert", *formats, presets["encoder"], odd / "hf") == 0
    formats = ("--from", "huggingface", "--to", "keras")
    assert status("convert", *formats, odd / "hf", odd / "back") == 0
    assert set(os.listdir(odd)) == {"hf", "back"}


SURROUNDINGS = {  # changed variables (`None`: unset), what the child does first, exit status
    "HOME unset": ({"HOME": None, "USER": None, "LOGNAME": None}, None, 0),
    "TMPDIR missing": ({"TMPDIR": "/nowhere"}, None, 0),
}


@pytest.mark.slow  # a process each
@pytest.mark.parametrize("surrounding", SURROUNDINGS)
def test_odd_surroundings(surrounding, whole, tmp_path):
    changed, first, expected = SURROUNDINGS[surrounding]
    environment = {**os.environ, "PYTHONPATH": str(pathlib.Path(__file__).parents[2]), **changed}
    environment = {name: value for name, value in environment.items() if value is not None}
    _, _, presets = whole
    command = [sys.executable, "-m", "spanbert_tf.cli", "predict", "--input", "texts.jsonl"]
    command += ["--preset", presets["text_classification"], "--output", str(tmp_path / "answers")]
    child = subprocess.run(
        command, capture_output=True, text=True, cwd=whole[0], env=environment, preexec_fn=first
    )
    assert child.returncode == expected, child.stderr
    assert "Traceback" not in child.stderr
    if expected:
        assert child.stderr.count("\n") == 1 and not os.listdir(tmp_path)
        return
    assert os.listdir(tmp_path) == ["answers"]
    assert len((tmp_path / "answers").read_text().splitlines()) == 4
    mode = (tmp_path / "answers").stat().st_mode & 0o777
    assert mode == (0o600 if surrounding == "umask 077" else 0o666 & ~_umask())


def _umask():
    current = os.umask(0)
    os.umask(current)
    return current
