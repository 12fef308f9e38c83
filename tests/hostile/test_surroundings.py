"""Odd places to start a command in: other locales, closed streams, links to nothing, limits."""

import os
import pathlib
import resource
import shlex
import subprocess
import sys

import pytest

from spanbert_tf import cli
from spanbert_tf.doctor import describe_surroundings
from spanbert_tf.errors import BadInputError
from spanbert_tf.files.output import Output, OutputKind
from spanbert_tf.files.paths import check_resumable
from spanbert_tf.pretraining.job import print_summary
from spanbert_tf.training.run_directory import RunDirectory

WORDS = ("hello", "world", ".", "this", "is", "a", "text", "another", "one", "here")
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]


def run(capfd, *arguments):
    with pytest.raises(SystemExit) as ended:
        cli.main([str(argument) for argument in arguments])
    return ended.value.code, *capfd.readouterr()


@pytest.fixture
def text(tmp_path):
    """A folder `café` with a text and a vocabulary."""
    folder = tmp_path / "café"
    folder.mkdir()
    (folder / "text").write_text("Hello world. This is a text.\n\nAnother one here.\n")
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in VOCABULARY))
    return folder


def prepare(folder, output):
    return ["prepare", "pretraining", "--input", folder / "text", "--output", output,
            "--vocabulary", folder / "vocab.txt", "--lowercase", "--sequence-length", 16,
            "--validation-fraction", 0]  # fmt: skip


def test_names_that_are_no_utf8_are_refused_before_the_work(text, tmp_path, capfd):
    """TensorFlow cannot open them; `prepare` ended in a traceback when all was read."""
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")
    text.rename(folder)
    folder = pathlib.Path(folder)
    line = "is not the utf-8 that file names are in here; rename it\n"
    for arguments in (prepare(folder, tmp_path / "out"), ["inspect", folder]):
        status, out, err = run(capfd, *arguments)
        assert (status, out) == (2, "") and len(err.splitlines()) == 1
        assert "caf\\udce9" in err and err.endswith(line)
    assert not (tmp_path / "out").exists()


def test_a_bad_text_whose_name_is_no_utf8_is_one_line(text, tmp_path, capfd):
    """The worker that reads it leaves the line for its parent."""
    (tmp_path / "texts").mkdir()
    path = os.fsdecode(os.fsencode(tmp_path) + b"/texts/caf\xe9")
    pathlib.Path(path).write_bytes(b"A caf\xe9.")
    arguments = prepare(text, tmp_path / "out")
    arguments[arguments.index("--input") + 1] = tmp_path / "texts" / "*"
    status, out, err = run(capfd, *arguments)
    assert (status, out) == (2, "") and len(err.splitlines()) == 1
    assert "caf\\udce9: line 1: not UTF-8 at byte 5" in err
    assert not list(tmp_path.glob("out*"))


PICTURE = """
import sys
from spanbert_tf.lazy import import_figure
figure = import_figure()(figsize=(2, 2))
figure.subplots().plot([1, 3, 2])
figure.savefig("picture", format="png")
sys.exit("own_backend" in sys.modules)
"""


def test_settings_of_matplotlib_in_the_working_directory_are_not_read(tmp_path):
    """matplotlib would read them before any others, and wait for a pipe."""
    own = "backend: module://own_backend\nfigure.facecolor: red\nlines.linewidth: 9\n"
    pictures = []
    for make in (
        lambda path: None,
        lambda path: path.write_text(own),
        lambda path: path.mkdir(),
        os.mkfifo,
    ):
        place = tmp_path / str(len(pictures))
        place.mkdir()
        (place / "own_backend.py").write_text("open('ran', 'w')\n")
        make(place / "matplotlibrc")
        subprocess.run([sys.executable, "-c", PICTURE], cwd=place, check=True, timeout=300)
        pictures.append((place / "picture").read_bytes())
        assert not (place / "ran").exists()
    assert len(set(pictures)) == 1


@pytest.mark.parametrize("settings", ["[" * 100_000, "[1]", "1"], ids=["nested", "list", "number"])
def test_settings_of_keras_that_are_none(settings, text, tmp_path, monkeypatch, capfd):
    """Keras itself falls over them."""
    (tmp_path / "keras.json").write_text(settings)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    status, out, err = run(capfd, "inspect", text)
    place = tmp_path / "keras.json"
    assert (status, out) == (2, "")
    assert err == f"spanbert-tf: {place}: is no object of JSON; mend or remove it\n"


def test_inputs_of_a_run_that_are_nested_deep(tmp_path):
    path = tmp_path / "inputs.json"
    path.write_text("[" * 100_000)
    with pytest.raises(BadInputError, match=r"inputs\.json: is damaged \(") as caught:
        RunDirectory(str(tmp_path)).check_inputs({})
    assert "\n" not in str(caught.value)


def test_working_directories_that_are_no_utf8_are_refused(text, tmp_path, monkeypatch, capfd):
    place = os.fsencode(tmp_path) + b"/caf\xe9"
    os.mkdir(place)
    monkeypatch.chdir(os.fsdecode(place))
    status, out, err = run(capfd, *prepare(text, "out"))
    assert (status, out) == (2, "") and "caf\\udce9: is not the utf-8" in err
    assert os.listdir(place) == []


@pytest.mark.parametrize("check", [
    lambda path: Output(path, OutputKind("a thing", "marker")).check(),
    lambda path: Output(path, OutputKind("a thing", "marker"), overwrite=True).check(),
    lambda path: check_resumable(path, "a run", ()),
])  # fmt: skip
def test_an_output_that_is_a_link_to_nothing_is_called_so(check, tmp_path):
    link = tmp_path / "link"
    link.symlink_to("gone")
    with pytest.raises(Exception, match=r"link: is a link to nothing \(gone\); remove it or name"):
        check(str(link))
    (tmp_path / "gone").mkdir()
    check(str(link))


def test_a_link_to_nothing_on_the_command_line(text, tmp_path, capfd):
    (tmp_path / "link").symlink_to("gone")
    status, out, err = run(capfd, *prepare(text, tmp_path / "link"))
    assert (status, out) == (2, "") and "link: is a link to nothing (gone)" in err
    assert not (tmp_path / "gone").exists()


@pytest.mark.parametrize("output", ["my run", "it's $HOME", "run", "a;b"])
def test_commands_that_are_printed_can_be_pasted(output, capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkdir(output)
    print_summary(output, 3, {"loss": 1.0})
    *_, board, prepare_task, export = capfd.readouterr().out.splitlines()
    assert shlex.split(board) == ["tensorboard", "--logdir", f"{output}/logs"]
    assert shlex.split(prepare_task)[3:5] == ["--preset", f"{output}/preset"]
    expected = ["spanbert-tf", "export", "--preset", f"{output}/preset", "--output", "served"]
    assert shlex.split(export) == expected


def test_errors_for_want_of_address_space_name_the_limit(monkeypatch):
    errors = (
        MemoryError(),
        RuntimeError("can't start new thread"),
        ImportError("x.so: failed to map segment from shared object"),
        OSError(12, "Cannot allocate memory"),
    )
    others = (RuntimeError("x"), ImportError("x"), OSError(2, "x"))
    assert not any(map(describe_surroundings, (*errors, *others)))  # nothing is limited
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (3 << 30, 4 << 30))
    for error in errors:
        assert describe_surroundings(error).startswith("ulimit -v: 3,072 MiB of address space are")
    assert not any(map(describe_surroundings, others))


def child(arguments, folder, *, shell="exec", **variables):
    """A command in a shell of its own; its status and what it printed."""
    line = shlex.join([sys.executable, "-m", "spanbert_tf.cli", *map(str, arguments)])
    root = pathlib.Path(cli.__file__).parents[1]
    path = os.pathsep.join([str(root), variables.pop("PYTHONPATH", "")]).strip(os.pathsep)
    result = subprocess.run(
        ["bash", "-c", f"{shell} {line}" if shell == "exec" else shell.format(line)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, **variables},
        capture_output=True,
        text=True,
        errors="surrogateescape",
    )
    return result.returncode, result.stdout, result.stderr


@pytest.mark.slow  # processes
def test_locales_streams_limits_and_modules_of_the_user(text, tmp_path):
    # LANG=C: Python itself takes UTF-8, unless it is told not to.
    status, out, err = child(prepare(text, text / "out"), text, LC_ALL="C")
    assert status == 0 and "1 training" in out and err == ""
    status, out, err = child(prepare(text, text / "2"), text, LC_ALL="C", PYTHONUTF8="0")
    assert (status, out) == (2, "") and len(err.splitlines()) == 1
    assert err.endswith("in here; set PYTHONUTF8=1, or rename it\n")
    assert not (text / "2").exists()
    # A closed standard output: what is printed is dropped, and no file is taken for it.
    for number, streams in enumerate([">&-", "<&- >&- 2>&-"]):
        output = tmp_path / f"closed{number}"
        assert child(prepare(text, output), text, shell=f"{{}} {streams}") == (0, "", "")
        assert (output / "dataset_info.json").exists()
    assert child(["inspect", tmp_path / "closed0"], text, shell="{} >&-") == (0, "", "")
    # A module of the user's in place of a package, in PYTHONPATH or where `python -m` is started.
    shadow = tmp_path / "shadow"
    shadow.mkdir()
    (shadow / "tokenizers.py").write_text("x = 1\n")
    arguments = ["prepare", "vocabulary", "--input", text / "text", "--output", tmp_path / "v.txt",
                 "--vocabulary-size", 100]  # fmt: skip
    for folder, variables in ((text, {"PYTHONPATH": str(shadow)}), (shadow, {})):
        status, out, err = child(arguments, folder, **variables)
        assert (status, out) == (2, "") and len(err.splitlines()) == 1
        assert err.startswith(f"spanbert-tf: {shadow / 'tokenizers.py'}: is imported in place of")
    status, out, err = child(["inspect", tmp_path / "closed0"], text, shell="ulimit -v 1500000; {}")
    assert (status, out) == (2, "") and len(err.splitlines()) == 1
    assert err.startswith("spanbert-tf: ulimit -v: 1,464 MiB of address space are too little")
