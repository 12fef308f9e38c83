import configparser
import functools
import json
import os
import pathlib
import re
import subprocess
import sys
import types

import click
import pytest

import spanbert_tf.data
from spanbert_tf.cli import cli, main
from spanbert_tf.command_line import ModelCommand
from spanbert_tf.config import load_config
from spanbert_tf.config.settings import shipped_names
from spanbert_tf.tasks.table import load_task_config
from spanbert_tf.text.languages import DEFAULT_SPACY_MODEL

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
        "import spanbert_tf.text.chosen_vocabulary",
    ],
)
def test_imports_load_nothing_heavy(statement):
    """Imports that cost seconds belong to the commands that need them."""
    program = f"import sys\n{statement}\nprint(sorted(set({HEAVY!r}) & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (result.stdout, result.stderr) == ("[]\n", "")


HELP = """
import json, sys
import spanbert_tf.cli

commands, heavy = map(json.loads, sys.argv[1:])
for words in commands:
    try:
        spanbert_tf.cli.main([*words, "--help"])
    except SystemExit as stop:
        assert stop.code == 0, words
    assert not set(heavy) & set(sys.modules), words
print("done", file=sys.stderr)
"""


def test_help_loads_nothing_heavy():
    """That of no command: one process asks for all of them."""
    arguments = [json.dumps([(), *_commands()]), json.dumps([*HEAVY, "numpy"])]
    result = subprocess.run(
        [sys.executable, "-c", HELP, *arguments], capture_output=True, text=True
    )
    assert (result.returncode, result.stderr) == (0, "done\n")


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


@pytest.mark.parametrize("words", [("prepare", "ner"), ("finetun",)], ids=" ".join)
def test_an_unknown_command_names_the_help_that_lists_the_known_ones(words, capsys):
    with pytest.raises(SystemExit):
        main(list(words))
    (line,) = capsys.readouterr().err.splitlines()
    assert f"No such command '{words[-1]}'." in line
    (advice,) = re.findall("`spanbert-tf (.*?)`", line)
    with pytest.raises(SystemExit):
        main(advice.split())
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown for *group, name in _commands() if group == list(words[:-1]))


def _single_options():
    for words in _commands():
        command = functools.reduce(lambda group, word: group.commands[word], words, cli)
        for option in command.params:
            if isinstance(option, click.Option) and not (option.multiple or option.is_flag):
                yield (*words, option.opts[0])


@pytest.mark.parametrize("words", _single_options(), ids=" ".join)
def test_an_option_of_one_value_is_refused_where_it_is_given_twice(words, capfd):
    """The second would hide the first: half of the files of `--input a --input b`."""
    *command, flag = words
    with pytest.raises(SystemExit) as stop:
        main([*command, flag, "1", f"{flag}=2"])
    assert stop.value.code == 2
    assert capfd.readouterr().err == (f"spanbert-tf: {flag}: is given twice, and takes one value\n")


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


def _set_backend_by_variable(monkeypatch, directory):
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    return "KERAS_BACKEND"


def _set_backend_by_file(monkeypatch, directory):
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    monkeypatch.setenv("KERAS_HOME", str(directory))
    (directory / "keras.json").write_text('{"backend": "torch"}')
    return directory / "keras.json"


@pytest.mark.parametrize("set_backend", [_set_backend_by_variable, _set_backend_by_file])
def test_another_backend_is_one_line_and_status_2(set_backend, monkeypatch, tmp_path):
    place = set_backend(monkeypatch, tmp_path)
    result = _run("pretrain", "--config", "spanbert_tiny", "--data", ".", "--output", "run")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == (
        f"spanbert-tf: {place}: torch: the command line runs on TensorFlow and on JAX; use "
        "KERAS_BACKEND=tensorflow, or `spanbert_tf.models` from Python\n"
    )
    assert _run("pretrain", "--help").returncode == 0
    assert _run("configs").returncode == 0  # needs no Keras


def test_all_commands_but_those_without_a_model_look_at_the_backend():
    """Those that write a graph of TensorFlow, or convert, run on it whatever is set."""
    without = {name for name, each in cli.commands.items() if not isinstance(each, ModelCommand)}
    expected = {"configs", "convert", "export", "glue", "predict", "prepare", "serve", "vocabulary"}
    assert without == expected


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
        "spanbert_tf.config.load_run_config = lambda *arguments, **options: 1 / 0\n"
        f"spanbert_tf.cli.main(['pretrain', '--config', 'c', '--data', {str(tmp_path)!r}, "
        "'--output', 'run'])\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 1
    assert "ZeroDivisionError" in result.stderr


def test_options_of_compare_take_several_values(monkeypatch, tmp_path):
    calls = []
    module = types.ModuleType("spanbert_tf.studies.comparison")
    module.compare_systems = lambda *arguments, **options: calls.append((arguments, options))
    monkeypatch.setitem(sys.modules, "spanbert_tf.studies.comparison", module)
    data = str(tmp_path)
    arguments = ["--configs", "a", "b", "--data", data, "--seeds", "1", "2", "--steps", "5"]
    with pytest.raises(SystemExit) as stop:
        main(["compare", *arguments, "--configs", "c", "--set", "x.y=1", "x.z=-2"])
    assert stop.value.code == 0
    options = {"steps": 5, "seeds": (1, 2), "overrides": ("x.y=1", "x.z=-2")}
    options |= {"initial_preset": None, "keep_checkpoints": False}
    assert calls == [((("a", "b", "c"), data, "comparison"), options)]


def test_interrupt_exits_with_status_1(monkeypatch, capsys):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "main", interrupt)
    with pytest.raises(SystemExit) as stop:
        main(["quickstart"])
    assert stop.value.code == 1
    assert capsys.readouterr().err == "spanbert-tf: interrupted\n"


def test_a_file_that_ends_early_is_no_interrupt(monkeypatch, capsys):
    def read(*arguments, **options):
        raise EOFError("marshal data too short")

    monkeypatch.setattr(cli, "invoke", read)
    with pytest.raises(EOFError, match="too short"):
        main(["quickstart"])
    assert "interrupted" not in capsys.readouterr().err


def test_set_takes_several_values_and_leaves_arguments_alone(monkeypatch, tmp_path):
    calls = []
    module = types.ModuleType("spanbert_tf.tasks.inspection")
    module.inspect_records = lambda *arguments, **options: calls.append(arguments)
    monkeypatch.setitem(sys.modules, "spanbert_tf.tasks.inspection", module)
    data = str(tmp_path)
    for arguments in (
        ["--set", "training.seed=1", "training.tpu=x y", data],
        [data, "--set", "training.seed=1", "--set", "training.tpu=x y"],
        ["--set", "training.seed=1", data, "--set=training.tpu=x y"],
    ):
        with pytest.raises(SystemExit) as stop:
            main(["inspect", "--config", "spanbert_tiny", *arguments])
        assert stop.value.code == 0
    overrides = ("training.seed=1", "training.tpu=x y")
    assert calls == [(data, "spanbert_tiny", overrides)] * 3


@pytest.mark.parametrize(
    "command",
    [["vocabulary", "--vocabulary-size", "100"], ["pretraining", "--vocabulary", "vocab.txt"]],
)
def test_a_pattern_that_the_shell_opened_is_named(command, tmp_path, capsys):
    files = [tmp_path / "a.txt", tmp_path / "b.txt", tmp_path / "c.txt"]
    for file in files:
        file.write_text("Some words.")
    with pytest.raises(SystemExit) as stop:
        main(["prepare", *command, "--input", *map(str, files), "--output", str(tmp_path / "out")])
    assert stop.value.code == 2
    assert "quote the pattern" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_configs_lists_each_shipped_one_in_a_line(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")  # lines are cut at the terminal's width
    with pytest.raises(SystemExit) as stop:
        main(["configs"])
    assert stop.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    shown = {line.split()[0]: line.split(maxsplit=1)[1] for line in lines if line.startswith("  ")}
    names = {"pretrain": shipped_names("pretrain"), "finetune": shipped_names("finetune")}
    assert sorted(shown) == sorted(names["pretrain"] + names["finetune"])
    assert shown["squad_v1"].startswith("SQuAD 1.1 with SpanBERT")
    assert shown["masking_geometric_spans"].endswith("SpanBERT's spans, without SBO.")


@pytest.mark.parametrize(
    ("name", "load"), [("spanbert_base", load_config), ("squad_v2", load_task_config)]
)
def test_a_shown_configuration_is_the_whole_one(name, load, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["configs", "--show", name])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert text.startswith("# S")
    (tmp_path / "copy.yaml").write_text(text)
    assert load(str(tmp_path / "copy.yaml")).model_dump() == load(name).model_dump()
    assert "base:" not in text


@pytest.mark.parametrize(
    ("name", "load", "key"),
    [
        ("spanbert_base", load_config, "training.steps=7"),
        ("squad_v2", load_task_config, "training.epochs=7"),
    ],
)
def test_so_is_one_of_ones_own_with_what_is_set(name, load, key, tmp_path, capsys):
    own = tmp_path / "own.yaml"
    own.write_text(f"# Our own.\n\nbase: {name}\ntraining: {{batch_size: 8}}\n")
    with pytest.raises(SystemExit) as stop:
        main(["configs", "--show", str(own), "--set", key])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert text.startswith("# Our own.\n")
    (tmp_path / "copy.yaml").write_text(text)
    expected = load(name, ["training.batch_size=8", key])
    assert load(str(tmp_path / "copy.yaml")).model_dump() == expected.model_dump()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--show", "spanbert_bsae"], "--show: spanbert_bsae is neither a file nor a shipped"),
        (["--show", "SpanBERT-base"], "nearest is spanbert_base; `spanbert-tf configs` lists them"),
        (["--show", "mine/squad-v1.yaml"], "the nearest is squad_v1; `spanbert-tf configs` lists"),
        (["--set", "training.steps=1"], "--set needs --show"),
        (["--show", "spanbert_base", "--set", "training.stepps=1"], "training.stepps"),
    ],
)
def test_a_configuration_that_is_not_there_is_named(words, line, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["configs", *words])
    assert stop.value.code == 2
    assert line in capsys.readouterr().err


@pytest.mark.parametrize("debug", [[], ["--debug"]])
def test_only_debugging_shows_what_libraries_warn_of(debug):
    """Python's warnings, in this process and its children, and TensorFlow's lines at its start."""
    program = (
        "import os, subprocess, sys, warnings\n"
        "import spanbert_tf.config.shipped, spanbert_tf.cli\n"
        "def show(*_):\n"
        "    warnings.warn('of a library')\n"
        "    code = 'import warnings; warnings.warn(\"of a child\")'\n"
        "    subprocess.run([sys.executable, '-c', code])\n"
        "    print(os.environ.get('TF_CPP_MIN_LOG_LEVEL'), file=sys.stderr)\n"
        "    return ''\n"
        "spanbert_tf.config.shipped.resolved_text = show\n"
        f"spanbert_tf.cli.main({[*debug, 'configs', '--show', 'x']!r})\n"
    )
    silent = ("TF_CPP_MIN_LOG_LEVEL", "PYTHONWARNINGS")
    environment = {name: value for name, value in os.environ.items() if name not in silent}
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment
    )
    assert result.returncode == 0
    if debug:
        assert "of a library" in result.stderr and "of a child" in result.stderr
        assert result.stderr.endswith("\n0\n")
    else:
        assert result.stderr == "3\n"


def test_names_that_load_lazily_are_listed():
    for package in (spanbert_tf, spanbert_tf.data):
        assert all(hasattr(package, name) for name in dir(package))
    assert {"pretraining_dataset"} <= set(dir(spanbert_tf.data))


ROOT = pathlib.Path(__file__).parents[2]


def package_settings():
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    return settings


def test_plain_pytest_runs_nothing_that_a_marker_sets_apart():
    """README's command has the extra `test` alone, and no cluster and no accelerator."""
    section = package_settings()["tool:pytest"]
    markers = {line.partition(":")[0] for line in section["markers"].split("\n") if line}
    (selection,) = re.findall(r'-m "([^"]*)"', section["addopts"])
    assert {part.removeprefix("not ") for part in selection.split(" and ")} == markers
    assert "--strict-markers" in section["addopts"].split()


def test_extras_for_cards_take_the_releases_of_those_for_processors():
    options = package_settings()["options"]
    extras = package_settings()["options.extras_require"]
    (tensorflow,) = re.findall(r"^tensorflow(>.*)$", options["install_requires"], re.MULTILINE)
    assert extras["cuda"].split() == [f"tensorflow[and-cuda]{tensorflow}"]
    (jax,) = re.findall(r"^jax(>.*)$", extras["jax"], re.MULTILINE)
    assert extras["jax_cuda"].split() == [f"jax[cuda12]{jax}"]


def test_the_default_model_of_spacy_is_installed_by_its_hash_alone():
    """Somebody else than its authors uploaded it; pip takes any file for what an extra names."""
    lines = (ROOT / ".ci" / "re-uploaded.txt").read_text().splitlines()
    pins = dict(line.split("==", 1) for line in lines if not line.startswith("#"))
    assert all(" --hash=sha256:" in pin for pin in pins.values())
    packages = [name.replace("-", "_") for name in pins]
    for extra in package_settings()["options.extras_require"].values():
        names = {re.split(r"[\[<>=]", line)[0].replace("-", "_") for line in extra.split()}
        assert not names & set(packages)
    assert DEFAULT_SPACY_MODEL in packages


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--keep-checkpoints"], "--keep-checkpoints is for --grid alone"),
        (["--grid", "--validation-data", ".", "--backend-changed"], "leave out --grid"),
        (["--grid"], "--grid needs --validation-data"),
    ],
)
def test_options_that_would_do_nothing_are_refused(options, message):
    words = ["--config", "squad_v1", "--preset", "p", "--data", ".", "--output", "run"]
    result = _run("finetune", *words, *options)
    assert (result.returncode, result.stdout) == (2, "")
    assert message in result.stderr and result.stderr.count("\n") == 1
