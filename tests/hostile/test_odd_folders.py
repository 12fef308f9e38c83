"""Odd names of folders, and processes that start with little around them."""

import contextlib
import io
import json
import os
import pathlib
import resource
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


# Models take seconds to convert: a path has six of the names.
NESTED = ["/".join(NAMES[number::4]) for number in range(4)]


@pytest.mark.slow
@pytest.mark.parametrize("odd", NESTED, indirect=True)
def test_models_in_folders_of_odd_names(odd, whole):
    _, _, presets = whole
    formats = ("--from", "keras", "--to", "huggingface")
    assert status("convert", *formats, presets["encoder"], odd / "hf") == 0
    formats = ("--from", "huggingface", "--to", "keras")
    assert status("convert", *formats, odd / "hf", odd / "back") == 0
    assert set(os.listdir(odd)) == {"hf", "back"}


def closed(descriptor):
    return lambda: os.close(descriptor)


# Where nothing can be, not even root's: `/nowhere` is made by TensorFlow, which writes `~/.keras`.
NOWHERE = "/dev/null/x"
KERAS_UNSET = {"KERAS_HOME": None, "KERAS_BACKEND": None}
SURROUNDINGS = {  # command, changed variables (`None`: unset), what the child does first
    "HOME unset": ("predict", {"HOME": None, "USER": None, "LOGNAME": None}, None),
    "HOME missing": ("predict", {"HOME": NOWHERE}, None),
    "HOME missing, a picture": ("inspect", {"HOME": NOWHERE}, None),
    "TMPDIR missing": ("predict", {"TMPDIR": NOWHERE}, None),
    "without assertions": ("predict", {"PYTHONOPTIMIZE": "1"}, None),
    "without docstrings": (None, {"PYTHONOPTIMIZE": "2"}, None),
    "TERM dumb": ("prepare", {"TERM": "dumb"}, None),
    "TF_CONFIG malformed": ("prepare", {"TF_CONFIG": "{"}, None),
    "KERAS_BACKEND of nonsense": ("prepare", {"KERAS_BACKEND": "nonsense"}, None),
    "standard input closed": ("prepare", {}, closed(0)),
    "standard error closed": ("prepare", {}, closed(2)),
    "64 descriptors": ("prepare", {}, lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))),
    "umask 077": ("prepare", {}, lambda: os.umask(0o077)),
    "umask 777": (None, {}, lambda: os.umask(0o777)),
}


def run_in(surrounding, whole, *arguments):
    """A command in a process of such surroundings, in the folder of the records."""
    _, changed, first = SURROUNDINGS[surrounding]
    package = str(pathlib.Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": package, **KERAS_UNSET, **changed}
    environment = {name: value for name, value in environment.items() if value is not None}
    command = [sys.executable, "-m", "spanbert_tf.cli", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=whole[0], env=environment, preexec_fn=first
    )


@pytest.mark.slow  # a process each
@pytest.mark.parametrize("surrounding", [name for name in SURROUNDINGS if SURROUNDINGS[name][0]])
def test_odd_surroundings(surrounding, whole, tmp_path):
    """What is written is what is written elsewhere, and nothing else."""
    _, records, presets = whole
    output = tmp_path / "output"
    command = SURROUNDINGS[surrounding][0]
    if command == "inspect":
        arguments = [records["pretraining"], "--set", "data.sequence_length=32", "--png", output]
    elif command == "predict":
        arguments = ["--preset", presets["text_classification"], "--input", "texts.jsonl"]
        arguments += ["--output", output]
    else:
        arguments = ["classification", "--vocabulary", "vocab.txt", "--lowercase"]
        arguments += ["--text-column", "text", "--label-column", "label", "--sequence-length", 32]
        arguments += ["--input", "texts.jsonl", "--output", output]
    child = run_in(surrounding, whole, command, *arguments)
    assert (child.returncode, child.stderr) == (0, "")
    assert os.listdir(tmp_path) == ["output"]
    if command == "inspect":
        assert output.read_bytes().startswith(b"\x89PNG")
        return
    if command == "predict":
        assert len(output.read_text().splitlines()) == 4
        return
    for path in records["text_classification"].iterdir():
        assert (output / path.name).read_bytes() == path.read_bytes()
    mode = output.stat().st_mode & 0o777
    assert mode == (0o700 if surrounding == "umask 077" else 0o777 & ~_umask())


@pytest.mark.slow  # a process
@pytest.mark.parametrize(
    "surrounding, line",
    [
        ("TF_CONFIG malformed", "TF_CONFIG: not a cluster"),
        ("KERAS_BACKEND of nonsense", "KERAS_BACKEND: nonsense: the command line runs on"),
        ("umask 777", "umask 777: takes rights from yourself, too"),
        ("without docstrings", "PYTHONOPTIMIZE or -OO: TensorFlow needs its docstrings"),
    ],
)
def test_odd_surroundings_that_a_command_cannot_work_in(surrounding, line, whole, tmp_path):
    output = tmp_path / "run"
    command = ["pretrain", "--config", "spanbert_base", "--data", whole[1]["pretraining"]]
    command += ["--set", "data.sequence_length=32", "training.batch_size=2"]
    if surrounding.startswith("TF_CONFIG"):
        command += ["--set", "training.strategy=multi_worker"]
    child = run_in(surrounding, whole, *command, "--output", output)
    assert (child.returncode, child.stderr.count("\n")) == (2, 1), child.stderr
    assert line in child.stderr and not os.listdir(tmp_path)


def _umask():
    current = os.umask(0)
    os.umask(current)
    return current
