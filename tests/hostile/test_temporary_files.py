"""What lies in a shared temporary directory, or in the working directory, is not imported."""

import importlib.util
import json
import os
import pathlib
import py_compile
import signal
import stat
import subprocess
import sys
import tempfile

import pytest
from tensorflow.python.autograph.pyct import loader
from tiny_models import tiny_model

from spanbert_tf import temporary
from spanbert_tf.presets.writing import write_preset
from spanbert_tf.temporary import protected_children

ROOT = str(pathlib.Path(temporary.__file__).parents[1])
NAMES = [f"name{number}" for number in range(500)]


def environment(shared, **variables):
    """Of a process whose temporary directory others can write to."""
    return {**os.environ, "TMPDIR": str(shared), "PYTHONPATH": ROOT, **variables}


def python(program, shared, *arguments, **variables):
    command = [sys.executable, "-P", "-c", program, *map(str, arguments)]
    return subprocess.run(
        command, env=environment(shared, **variables), capture_output=True, text=True
    )


@pytest.fixture
def shared(tmp_path):
    """A directory as /tmp is."""
    path = tmp_path / "shared"
    path.mkdir()
    path.chmod(0o1777)
    return path


@pytest.fixture
def planted(shared, tmp_path):
    """Bytecode of a stranger's under each name that AutoGraph's files will get; what it makes."""
    mark = tmp_path / "ran"
    source = tmp_path / "theirs.py"
    source.write_text(f"open({str(mark)!r}, 'w').close()\n")
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    bytecode = pathlib.Path(py_compile.compile(str(source), invalidation_mode=unchecked))
    for name in NAMES:
        path = shared / f"__autograph_generated_file{name}.py"
        target = pathlib.Path(importlib.util.cache_from_source(str(path)))
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(bytecode.read_bytes())
    return mark


def test_planted_bytecode_does_not_run(shared, planted, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    monkeypatch.setattr(tempfile, "_name_sequence", iter(NAMES))
    loader.load_source("x = 1\n", delete_on_exit=True)
    assert planted.exists()  # so it does in the shared directory
    planted.unlink()
    monkeypatch.setattr(temporary, "_directory", None)
    temporary.use_private_directory()
    module, path = loader.load_source("x = 1\n", delete_on_exit=True)
    assert module.x == 1 and not planted.exists()
    private = pathlib.Path(path).parent
    assert private.parent == shared and stat.S_IMODE(private.stat().st_mode) == 0o700
    temporary.remove_private_directory()
    assert not private.exists()


COMMAND = f"""
import tempfile
tempfile._name_sequence = iter({NAMES!r})
from spanbert_tf.cli import main
main()
"""


@pytest.mark.slow  # processes with TensorFlow
@pytest.mark.parametrize("name", ["inspect", "pretrain", "predict", "export"])
def test_nor_does_it_in_a_command(name, shared, planted, tiny_records, tiny_overrides, tmp_path):
    output = ["--output", str(tmp_path / "output")]
    settings = ["--config", "spanbert_base", "--set", *tiny_overrides]
    arguments = {
        "inspect": [tiny_records, *settings],
        "pretrain": ["--data", tiny_records, *output, *settings, "training.steps=1"],
        "predict": ["--preset", str(tmp_path / "preset"), "--input", str(tmp_path / "in"), *output],
        "export": ["--preset", str(tmp_path / "preset"), *output],
    }
    if name in ("predict", "export"):
        model = tiny_model("text_classification")
        model.is_head_trained = True
        write_preset(model, str(tmp_path / "preset"))
        (tmp_path / "in").write_text('{"text": "ann has the cat ."}\n')
    done = python(COMMAND, shared, name, *arguments[name])
    assert done.returncode == 0, done.stderr
    assert not planted.exists()
    assert [path.name for path in shared.iterdir()] == ["__pycache__"]


OF_A_USER = """
import os, sys, tempfile
import spanbert_tf

private = tempfile.gettempdir()
for name in ("__pycache__", "empty"):
    os.mkdir(os.path.join(private, name))
for name in ("__autograph_generated_file7.py", "__pycache__/x.pyc"):
    open(os.path.join(private, name), "w").close()
if len(sys.argv) > 1:
    tempfile.NamedTemporaryFile(prefix=sys.argv[1], delete=False).close()
child = os.fork()
if not child:
    sys.exit()  # with what runs at the exit of a process
os.waitpid(child, 0)
print(private, oct(os.stat(private).st_mode), len(os.listdir(private)))
"""


def test_a_program_that_imports_the_package_leaves_its_own_files_alone(shared):
    done = python(OF_A_USER, shared)
    private, mode, num_files = done.stdout.split()
    assert (pathlib.Path(private).parent, mode, num_files) == (shared, "0o40700", "3")
    assert os.listdir(shared) == []
    done = python(OF_A_USER, shared, "mine")
    private, _, num_files = done.stdout.split()
    assert num_files == "4"
    [kept] = os.listdir(private)
    assert kept.startswith("mine")


def test_without_a_temporary_directory_the_package_is_imported_all_the_same(shared):
    program = (
        "import tempfile\ndef fail(*_, **__): raise FileNotFoundError\ntempfile.mkdtemp = fail"
    )
    done = python(f"{program}\nimport spanbert_tf; print(tempfile.tempdir)", shared)
    assert done.returncode == 0 and done.stderr == ""
    assert os.listdir(shared) == []


KERAS_HOME = """
import os, sys, tempfile
import spanbert_tf

home = os.environ.get("KERAS_HOME", "")
print(os.path.relpath(home, tempfile.gettempdir()) if home else "")
print(sorted(os.listdir(home)) if os.path.isdir(home) else [])
"""


@pytest.mark.parametrize(
    ("home", "keras_home", "found", "files"),
    [
        ("", "", "", []),  # the home can be written to, and Keras knows that
        ("", "{}/theirs", "../../home/theirs", ["keras.json"]),
        ("", "~/theirs", ".keras", ["keras.json"]),  # KerasHub would write to a folder `~`
        ("/dev/null", "", ".keras", []),
        ("/dev/null", "/dev/null/x", ".keras", []),
        ("not/from/the/root", "", ".keras", []),
    ],
)
def test_keras_has_a_home_that_it_can_write_to(home, keras_home, found, files, shared, tmp_path):
    """Else it takes /tmp/.keras, which anyone may have made."""
    (tmp_path / "home" / "theirs").mkdir(parents=True)
    (tmp_path / "home" / "theirs" / "keras.json").write_text("{}")
    home = home or str(tmp_path / "home")
    variables = {"HOME": home, "KERAS_HOME": keras_home.format(home)}
    done = python(KERAS_HOME, shared, **variables)
    assert done.stdout.splitlines() == [found, str(files)]
    assert os.listdir(shared) == []


HOMELESS = """
import os, tempfile
import spanbert_tf
import tensorflow as tf
from keras.src.backend import config
from keras_hub.src.utils.preset_utils import get_file

with tf.io.gfile.GFile("ram://theirs/config.json", "w") as file:
    file.write("{}")
for path in (config.keras_home(), get_file("ram://theirs", "config.json")):
    print(os.path.relpath(path, tempfile.gettempdir()))
"""


@pytest.mark.slow  # imports Keras in a process
def test_presets_of_other_file_systems_are_not_looked_for_in_a_folder_of_others(shared):
    done = python(HOMELESS, shared, HOME="/dev/null/x", KERAS_HOME="")
    *_, home, preset = done.stdout.splitlines()
    assert (home, preset) == (".keras", ".keras/models/ram_theirs/config.json"), done.stderr
    assert os.listdir(shared) == []


ENDED = """
import os, subprocess, sys
import spanbert_tf.process
from spanbert_tf.temporary import protected_children

how = sys.argv[1]
if how == "at once":
    spanbert_tf.process.end_process(status=7)
if how == "by its child":
    with protected_children():
        subprocess.run([sys.executable, "-c", "import os, spanbert_tf; os.kill(os.getpid(), 9)"])
if how == "killed":
    os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize(
    ("how", "status", "num_left"),
    [("at once", 7, 0), ("by its child", 0, 0), ("killed", -signal.SIGKILL, 1)],
)
def test_what_a_process_leaves_that_does_not_end_in_order(how, status, num_left, shared):
    done = python(ENDED, shared, how)
    assert (done.returncode, done.stderr) == (status, "")
    assert len(os.listdir(shared)) == num_left


@pytest.fixture
def strange(tmp_path):
    """A working directory with a module of the standard library's name, and what it makes."""
    place, mark = tmp_path / "place", tmp_path / "ran"
    place.mkdir()
    for name in ("string.py", "string/__init__.py"):
        path = place / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"open({str(mark)!r}, 'w').close()\nraise SystemExit(9)\n")
    return place, mark


def command(*arguments, place, shared):
    """As `spanbert-tf` is started, without the working directory on its path."""
    words = [sys.executable, "-P", "-m", "spanbert_tf.cli", *map(str, arguments)]
    return subprocess.run(words, cwd=place, env=environment(shared), capture_output=True, text=True)


def test_a_worker_imports_nothing_from_the_working_directory(
    strange, shared, tmp_path, monkeypatch
):
    """A stranger's configuration may ask for one, which is `python -m spanbert_tf.cli`."""
    place, mark = strange
    config = place / "theirs.yaml"
    config.write_text("base: spanbert_tiny\ntraining:\n  strategy: multi_worker\n")
    cluster = {"cluster": {"worker": ["localhost:1"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    done = command("pretrain", "--config", config, "--data", tmp_path, "--output", "/dev/null/run",
                   place=place, shared=shared)  # fmt: skip
    assert not mark.exists()
    assert done.returncode == 2 and "/dev/null/run" in done.stderr  # by the worker


CHILD_OF_A_PROGRAM = """
import sys
from spanbert_tf.process import run_child
sys.exit(run_child([sys.executable, "-c", "import string; string.ascii_letters"]))
"""


def test_nor_does_the_child_of_a_program(strange, shared):
    """As where a notebook converts a model of Hugging Face in passing."""
    place, mark = strange
    words = [sys.executable, "-P", "-c", CHILD_OF_A_PROGRAM]
    done = subprocess.run(words, cwd=place, env=environment(shared), check=False)
    assert not mark.exists()
    assert done.returncode == 0


@pytest.mark.slow  # four processes
def test_processes_of_prepare_import_nothing_from_there(strange, shared, tmp_path):
    place, mark = strange
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "text", "."]
    (place / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces))
    for number in range(3):
        (place / f"text{number}").write_text("A text.\n")
    done = command("prepare", "pretraining", "--input", place / "text*", "--lowercase",
                   "--vocabulary", place / "vocab.txt", "--output", tmp_path / "records",
                   "--validation-fraction", 0, "--sequence-length", 16, "--num-processes", 2,
                   place=place, shared=shared)  # fmt: skip
    assert not mark.exists()
    assert done.returncode == 0, done.stderr
    assert os.listdir(shared) == []


def test_the_environment_is_as_before_afterwards(monkeypatch):
    monkeypatch.setenv("TMPDIR", "/theirs")
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    before = dict(os.environ)
    with protected_children():
        assert os.environ["PYTHONSAFEPATH"] == "1"
        assert os.environ["TMPDIR"] == temporary._directory
    assert dict(os.environ) == before
