"""Writes down what every command of README and docs does on tiny data; compares two such folders.

    python -m benchmarks.recorded_outputs record DIR
    python -m benchmarks.recorded_outputs compare DIR1 DIR2

What is recorded is the tree that PYTHONPATH names, whichever tree this file lies in: its commands,
and its documented Python interface. Numbers are compared to the last bit, and where they differ,
the largest difference is told.
"""

import contextlib
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

import click

from benchmarks.recorded_commands import (
    CONVERT,
    EXPORT,
    PREPARE,
    PRETRAIN,
    PRINTED,
    REPLICAS,
    SMALL,
    TASKS,
)
from benchmarks.recorded_differences import compare_recordings
from benchmarks.recorded_inputs import damage_records, write_fairseq, write_inputs
from benchmarks.recorded_messages import messages
from benchmarks.recorded_python import exported, fit, fit_tasks, masks, predictors, presets

ROOT = pathlib.Path(__file__).parents[1]
Item = tuple[str, str | Callable]  # its name, and a command or a function of where it writes
_CHILD = (
    "import sys; sys.path.insert(0, {root!r}); from benchmarks import recorded_outputs; "
    "sys.path.remove({root!r}); recorded_outputs.run_group({group!r}, {items!r})"
)


def _damage(output: pathlib.Path) -> None:
    damage_records(pathlib.Path())


# A process each, in this order: later ones read what earlier ones wrote.
GROUPS: dict[str, list[Item]] = {
    "prepare": PREPARE,
    "masks": [("masks", masks)],
    "pretrain": [
        *PRETRAIN[:1],
        ("damage", _damage),
        *PRETRAIN[1:],
        ("presets", presets),
        ("fit", fit),
        ("fit_tasks", fit_tasks),
    ],
    "replicas": REPLICAS,
    "tasks": [*TASKS, ("predictors", predictors)],
    "export": EXPORT,
    "exported": [("exported", exported)],
    "convert": CONVERT,
    "texts": PRINTED,
    "messages": messages(),
}


@click.group(help=__doc__.splitlines()[0])
def main() -> None:
    """Two commands."""


@main.command()
@click.argument("directory", type=pathlib.Path)
@click.option("--only", multiple=True, type=click.Choice(list(GROUPS)), help="[all]")
@click.option("--items", multiple=True, help="Of these groups; names or their first letters.")
def record(directory: pathlib.Path, only: tuple[str, ...], items: tuple[str, ...]) -> None:
    """Runs the groups, each in a process; a part needs what the groups before it wrote."""
    work = directory.absolute() / "work"
    if not only and work.exists():
        raise click.ClickException(f"{directory}: exists; remove it, or name parts with --only")
    (directory / "out").mkdir(parents=True, exist_ok=True)
    work.mkdir(exist_ok=True)
    inputs = directory.absolute() / "input"
    if not inputs.exists():
        write_inputs(inputs)
        write_fairseq(inputs, len((inputs / "vocab.txt").read_text().split()))
        shutil.copytree(inputs / "text", inputs / "quickstart")
    if not (work / "INPUT").exists():
        (work / "INPUT").symlink_to("../input")
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in paths if path),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "COLUMNS": "100",
        "RECORDED_INPUT": "INPUT",
        "CUDA_VISIBLE_DEVICES": "-1",
    }
    for group in only or GROUPS:
        start, before = time.monotonic(), os.times()
        program = _CHILD.format(root=str(ROOT), group=group, items=items)
        command = ["nice", "-n", "19", sys.executable, "-P", "-c", program]
        status = subprocess.run(command, cwd=work, env=environment).returncode
        after = os.times()
        cost = after.children_user + after.children_system
        cost -= before.children_user + before.children_system
        print(
            f"{group}: status {status}, {time.monotonic() - start:.0f} s, {cost:.0f} s of processor"
        )


@main.command()
@click.argument("first", type=click.Path(exists=True, path_type=pathlib.Path))
@click.argument("second", type=click.Path(exists=True, path_type=pathlib.Path))
@click.option(
    "--tolerance", default=0.0, help="Differences of numbers up to this are told as close."
)
@click.option("--all", "is_all", is_flag=True, help="Name what is equal, too.")
def compare(first: pathlib.Path, second: pathlib.Path, tolerance: float, is_all: bool) -> None:
    """Tells of each item whether it is equal, or where and by how much it differs."""
    counts = {"equal": 0, "close": 0, "differs": 0}
    for name, found in compare_recordings(first, second):
        outcome = "equal" if not found else "differs"
        if found and all(each.size is not None and each.size <= tolerance for each in found):
            outcome = "close"
        counts[outcome] += 1
        if found or is_all:
            print(f"{outcome}  {name}")
        for each in found[:6]:
            print(f"    {each.text}")
        if found[6:]:
            print(f"    and {len(found) - 6} more")
    print(", ".join(f"{number} {outcome}" for outcome, number in counts.items()))
    sys.exit(1 if counts["differs"] else 0)


def run_group(group: str, items: tuple[str, ...]) -> None:
    """Runs the items of a group in this process; the working directory is that of the outputs."""
    import spanbert_tf

    print(f"{group}: {os.path.dirname(spanbert_tf.__file__)}", flush=True)
    for name, what in GROUPS[group]:
        if items and not name.startswith(items):
            continue
        for old in (pathlib.Path(name), pathlib.Path("../out", _file_name(name))):
            if old.is_dir():
                shutil.rmtree(old)
            old.unlink(missing_ok=True)
        place = name.rstrip("+")
        start = time.process_time()
        with _captured() as printed:
            status = _run(what, place)
        cost = time.process_time() - start
        printed |= {"command": what if isinstance(what, str) else what.__name__, "status": status}
        text = json.dumps(printed, indent=1, ensure_ascii=False)
        pathlib.Path("../out", _file_name(name)).write_text(text)
        if cost > 8:
            print(f"  {name}: {cost:.0f} s", flush=True)
        if "keras" in sys.modules:
            sys.modules["keras"].backend.clear_session()


def _file_name(name: str) -> str:
    return f"{re.sub('[^a-zA-Z0-9_+ .-]', '_', name)}.json"


def _run(what: str | Callable, place: str) -> int | str:
    """Runs a command or a function: its exit status, or the exception that ended it."""
    try:
        if not isinstance(what, str):
            return what(pathlib.Path(place)) or 0
        words = [place if word == "@" else word for word in shlex.split(what)]
        if words[0] == "scoring":
            command = [
                sys.executable,
                "-P",
                "-m",
                "spanbert_tf.tasks.coreference.metrics",
                *words[1:],
            ]
            return subprocess.run(command).returncode
        if words[0] == "quickstart":
            _shrink_quickstart()
        from spanbert_tf.cli import main as command_line

        command_line(words)
    except SystemExit as stop:
        return stop.code or 0
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return 0


def _shrink_quickstart() -> None:
    """A smaller model and fewer steps: what the quickstart's module names in capitals."""
    import importlib
    import pkgutil

    import spanbert_tf

    settings = [pair.split("=") for pair in SMALL.split()]
    values: dict = {"base": "spanbert_tiny"}
    for key, value in settings:
        section, name = key.split(".")
        values.setdefault(section, {})[name] = json.loads(value) if value[0].isdigit() else value
    pathlib.Path("small.yaml").write_text(json.dumps(values))
    for found in pkgutil.walk_packages(spanbert_tf.__path__, "spanbert_tf."):
        if "quickstart" in found.name:
            module = importlib.import_module(found.name)
            if hasattr(module, "VOCABULARY_SIZE"):
                module.CONFIG, module.VOCABULARY_SIZE = "small.yaml", 150


@contextlib.contextmanager
def _captured() -> Iterator[dict]:
    """What is printed, by this process and its children, as `stdout` and `stderr`."""
    printed: dict = {}
    with contextlib.ExitStack() as stack:
        files = {}
        for name, number in (("stdout", 1), ("stderr", 2)):
            files[name] = stack.enter_context(tempfile.TemporaryFile())
            kept = os.dup(number)
            stack.callback(os.close, kept)
            stack.callback(os.dup2, kept, number)
            os.dup2(files[name].fileno(), number)
        try:
            yield printed
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for name, file in files.items():
                file.seek(0)
                printed[name] = file.read().decode(errors="replace").split("\n")


if __name__ == "__main__":
    main()
