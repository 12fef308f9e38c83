"""How commands run, whatever they do."""

import errno
import os
import subprocess
import sys

import pytest

from spanbert_tf.cli import main
from spanbert_tf.doctor import describe_surroundings

PROGRAM = """
import click, sys
from spanbert_tf.command_line import run_command
from spanbert_tf.errors import BadInputError

@click.command()
def speak():
    print({text!r})
    raise BadInputError({text!r})

run_command(speak, "speak", [])
"""


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_characters_that_the_terminal_lacks_are_escaped(encoding):
    """The last one is a byte of a file's name that is no UTF-8, as Python has it."""
    text = "caf\xe9 → \U0001f600 \udcff"
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(text=text)],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": encoding},
    )
    assert result.returncode == 2
    assert result.stdout.strip() == text.encode(encoding, "backslashreplace")
    assert b"Traceback" not in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_file_that_one_may_not_read_is_one_line():
    error = PermissionError(errno.EACCES, "Permission denied", "preset/config.json")
    line = describe_surroundings(error)
    assert line.startswith("preset/config.json: cannot be used (Permission denied); ")
    assert describe_surroundings(PermissionError("of no file")) is None


@pytest.mark.parametrize("words", [[], ["prepare"]])
def test_a_group_alone_shows_its_help_as_it_is(words, capsys):
    """Its message is the help, which is no error to be put on one line."""
    with pytest.raises(SystemExit) as stop:
        main([*words, "--help"])
    assert stop.value.code == 0
    helped = capsys.readouterr().out
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    assert capsys.readouterr().err == helped


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        (["compare", "--configs", "a", "--seeds", "--data", "."], "--seeds"),
        (["compare", "--configs", "--data", "."], "--configs"),
        (["pretrain", "--config", "spanbert_tiny", "--data", ".", "--set"], "--set"),
        (["pretrain", "--set", "training.seed=1", "--set", "--", "--data", "."], "--set"),
    ],
)
def test_a_flag_of_several_values_needs_one(words, flag, capsys):
    """A shell's variable that is empty would leave the default in place, without a word."""
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    assert capsys.readouterr().err == f"spanbert-tf: {flag}: needs a value\n"


def test_configs_are_listed_on_a_narrow_terminal(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "1")
    with pytest.raises(SystemExit) as stop:
        main(["configs"])
    assert stop.value.code == 0
    assert "  squad_v1 " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "status", "line"),
    [("squad_v1", 0, ""), ("mine.yaml", 2, "spanbert-tf: --show: mine.yaml is neither a file")],
)
def test_configurations_are_found_from_a_removed_directory(name, status, line, tmp_path):
    (tmp_path / "removed").mkdir()
    program = (
        "import os, sys\nfrom spanbert_tf.cli import main\n"
        f"os.rmdir(os.getcwd())\nmain(['configs', '--show', {name!r}])"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path / "removed", capture_output=True, text=True
    )
    assert (result.returncode, result.stderr[: len(line) or None]) == (status, line)
    assert result.stderr.count("\n") == bool(line)


def test_a_full_standard_output_is_one_line():
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [sys.executable, "-m", "spanbert_tf.cli", "configs"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert result.returncode == 2
    assert result.stderr == (
        "spanbert-tf: standard output: cannot be written (No space left on device); print to "
        "another place\n"
    )
