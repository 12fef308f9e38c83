import subprocess
import sys
import types

import click
import pytest

from spanbert_tf.cli import cli, main

HEAVY = ("tensorflow", "keras", "keras_hub", "tf_keras", "apache_beam", "official", "matplotlib")


def _run(*arguments):
    """Runs a new process, as a shell would."""
    return subprocess.run(
        [sys.executable, "-m", "spanbert_tf.cli", *arguments], capture_output=True, text=True
    )


def _commands(group=cli, prefix=()):
    for name, command in group.commands.items():
        yield (*prefix, name)
        if isinstance(command, click.Group):
            yield from _commands(command, (*prefix, name))


@pytest.mark.parametrize(
    "statement",
    [
        "import spanbert_tf",
        "import data_prep",
        "import spanbert_tf.cli",
        *(
            f"import spanbert_tf.cli; spanbert_tf.cli.main({[*command, '--help']!r})"
            for command in [(), *_commands()]
        ),
    ],
)
def test_help_and_imports_load_nothing_heavy(statement):
    """Imports that cost seconds belong to the commands that need them."""
    program = (
        f"import sys\n"
        f"try:\n    {statement}\nexcept SystemExit as stop:\n    assert stop.code == 0\n"
        f"print(sorted(set({HEAVY!r}) & set(sys.modules)), file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (result.returncode, result.stderr.strip()) == (0, "[]")


def test_help_exits_with_status_0():
    result = _run("--help")
    assert result.returncode == 0
    assert "quickstart" in result.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["no-such-command"],
        ["pretrain"],
        ["pretrain", "--config", "spanbert_tiny", "--data", "no/such/directory", "--output", "run"],
        ["prepare", "vocabulary", "--input", "x", "--vocabulary-size", "many"],
        [
            "prepare",
            "mrqa",
            "--input",
            "x",
            "--vocabulary",
            "x",
            "--output",
            "x",
            "--half",
            "first",
        ],
        ["evaluate", "--data", "."],
        ["evaluate", "--data", ".", "--preset", "x", "--baseline"],
        ["evaluate", "--data", ".", "--data", ".", "--baseline", "--report", "x"],
    ],
)
def test_wrong_command_lines_exit_with_status_2(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


def test_bad_configuration_is_one_line_and_status_2(tmp_path, capsys):
    path = tmp_path / "mine.yaml"
    path.write_text("training:\n  stepz: 5\n")
    arguments = ["pretrain", "--config", str(path), "--data", str(tmp_path), "--output", "run"]
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert capsys.readouterr().err == (
        f"spanbert-tf: {path}: line 2: unknown key training.stepz; the nearest is training.steps\n"
    )


def test_debug_adds_the_traceback(tmp_path, capsys):
    arguments = ["--debug", "pretrain", "--config", "nowhere", "--data", str(tmp_path)]
    with pytest.raises(SystemExit) as stop:
        main([*arguments, "--output", "run"])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert "Traceback" in error
    assert "ConfigurationError" in error


def test_defects_exit_with_status_1(tmp_path):
    """An exception that is not about the user's input is a defect: its traceback is shown."""
    program = (
        "import spanbert_tf.config, spanbert_tf.cli\n"
        "spanbert_tf.config.load_config = lambda *arguments: 1 / 0\n"
        f"spanbert_tf.cli.main(['pretrain', '--config', 'c', '--data', {str(tmp_path)!r}, "
        "'--output', 'run'])\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 1
    assert "ZeroDivisionError" in result.stderr


def test_options_of_compare_take_several_values(monkeypatch, tmp_path):
    calls = []
    module = types.ModuleType("spanbert_tf.comparison")
    module.compare_systems = lambda *arguments, **options: calls.append((arguments, options))
    monkeypatch.setitem(sys.modules, "spanbert_tf.comparison", module)
    data = str(tmp_path)
    arguments = ["--configs", "a", "b", "--data", data, "--seeds", "1", "2", "--steps", "5"]
    with pytest.raises(SystemExit) as stop:
        main(["compare", *arguments, "--configs", "c", "--set", "x.y=1", "x.z=-2"])
    assert stop.value.code == 0
    options = {"steps": 5, "seeds": (1, 2), "overrides": ("x.y=1", "x.z=-2")}
    assert calls == [((("a", "b", "c"), data, "comparison"), options)]


def test_interrupt_exits_with_status_1(monkeypatch, capsys):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "main", interrupt)
    with pytest.raises(SystemExit) as stop:
        main(["quickstart"])
    assert stop.value.code == 1
    assert capsys.readouterr().err == "spanbert-tf: interrupted\n"
