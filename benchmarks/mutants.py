"""Puts plausible errors into the code, one at a time, and counts those that the tests notice.

    python -m benchmarks.mutants [--room decoding] [--only NAME] [--from 20]

`mutants.toml` names each: a piece of code, what takes its place, and the few tests that should
notice. The piece must stand once in `spanbert_tf` and `data_prep`, whatever its line breaks, so
that a mutant goes with code that is moved; where it stands nowhere or twice, or no file or several
are called as a test's, nothing is run, and the table is to be renewed. All this happens in a copy
of the working tree, with the changes in it that are not committed.

First the tests must pass without an error. Then a test that fails counts as noticed; a time-out
does not: whoever waits learns nothing. The libraries are imported once, and this process forks for
each mutant.
"""

import ast
import collections
import compileall
import dataclasses
import multiprocessing
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence

import click

ROOT = pathlib.Path(__file__).parents[1]
TABLE = pathlib.Path(__file__).with_suffix(".toml")
_PACKAGES = ("spanbert_tf", "data_prep")
# What takes seconds to import, and starts no thread by it: a process with threads cannot fork.
_LIBRARIES = ("tensorflow", "tensorflow_text", "keras_hub", "torch", "transformers")
_LIBRARIES += ("scipy.stats", "sklearn.metrics", "seqeval.metrics", "hypothesis", "pytest")
_OPTIONS = ("-n", "0", "-q", "-p", "no:cacheprovider", "--durations=0", "--no-header")


@dataclasses.dataclass(frozen=True)
class Mutant:
    """An error.

    Attributes:
        name: what goes wrong.
        room: group of the table.
        code: what must stand once in the packages; any white space stands for any other.
        mutated: what takes its place.
        tests: ends of the paths of files under `tests/`, each of a single one; `::` and a test may
            follow.
    """

    name: str
    room: str
    code: str
    mutated: str
    tests: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a mutant belongs in a tree: a file, its content with the error in it, and the tests."""

    file: pathlib.Path
    content: str
    tests: tuple[str, ...]


def read_mutants(path: pathlib.Path = TABLE) -> list[Mutant]:
    """The mutants of a table, in its order."""
    rooms = tomllib.loads(path.read_text())
    return [
        Mutant(values["name"], room, values["code"], values["mutated"], tuple(values["tests"]))
        for room, mutants in rooms.items()
        for values in mutants
    ]


def find_places(mutants: Sequence[Mutant], root: pathlib.Path) -> list[Place]:
    """Where mutants belong in a tree.

    Raises:
        click.ClickException: of some of them, the code or a test file stands nowhere or more than
            once, or what would be made of it is no Python.
    """
    places, errors = [], []
    for mutant in mutants:
        try:
            places.append(_find_place(mutant, root))
        except click.ClickException as error:
            errors.append(error.message)
    if errors:
        raise click.ClickException("\n".join(errors))
    return places


def _find_place(mutant: Mutant, root: pathlib.Path) -> Place:
    pattern = re.compile(r"\s+".join(re.escape(part) for part in mutant.code.split()))
    found = [
        (file, match)
        for package in _PACKAGES
        for file in sorted((root / package).rglob("*.py"))
        for match in pattern.finditer(file.read_text())
    ]
    if len(found) != 1:
        where = ", ".join(str(file.relative_to(root)) for file, _ in found) or "nowhere"
        raise click.ClickException(
            f"{mutant.name}: its code must stand once, and stands in: {where}; renew it"
        )
    [(file, match)] = found
    text = file.read_text()
    content = text[: match.start()] + mutant.mutated + text[match.end() :]
    try:
        ast.parse(content)
    except SyntaxError as error:
        raise click.ClickException(f"{mutant.name}: makes no Python of {file.name}") from error
    return Place(file, content, tuple(_find_test(name, mutant, root) for name in mutant.tests))


def _find_test(name: str, mutant: Mutant, root: pathlib.Path) -> str:
    name, *test = name.split("::")
    parts = pathlib.PurePath(name).parts
    files = [file.relative_to(root) for file in sorted((root / "tests").rglob(parts[-1]))]
    found = [str(file) for file in files if file.parts[-len(parts) :] == parts]
    if len(found) != 1:
        raise click.ClickException(
            f"{mutant.name}: {len(found)} test files are {name}; name one, by its folder if need be"
        )
    return "::".join([found[0], *test])


class FirstFailure:
    """Of a run of pytest, the first test that failed, and the seconds of each file."""

    def __init__(self) -> None:
        self.name = ""
        self.seconds: collections.Counter[str] = collections.Counter()

    def pytest_runtest_logreport(self, report: object) -> None:
        """A test, or its setting up, has ended."""
        self.seconds[report.nodeid.split("::")[0]] += report.duration
        if report.failed and not self.name:
            self.name = report.nodeid.split("/")[-1]

    def pytest_collectreport(self, report: object) -> None:
        """A file was imported."""
        if report.failed and not self.name:
            self.name = f"{report.nodeid.split('/')[-1]} (import)"


def run_tests(
    tests: Sequence[str], root: pathlib.Path, seconds: float, *options: str
) -> tuple[str, FirstFailure]:
    """Runs test files of a tree in a process of their own.

    Returns:
        `"noticed"`, `"lived"` or `"hung"`, and what failed first.
    """
    receiver, sender = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(
        target=_run_in_child, args=(sender, tests, root, options)
    )
    child.start()
    sender.close()
    outcome, failure = "hung", FirstFailure()
    try:
        if receiver.poll(seconds):
            status, failure = receiver.recv()
            outcome = "noticed" if status else "lived"
    except EOFError:  # the process has ended by a signal
        outcome, failure.name = "noticed", "(crash)"
    try:
        os.killpg(child.pid, signal.SIGKILL)  # with all that it has started
    except ProcessLookupError:
        child.kill()
    child.join()
    return outcome, failure


def _run_in_child(
    sender: object, tests: Sequence[str], root: pathlib.Path, options: Sequence[str]
) -> None:
    import pytest

    os.setsid()
    os.chdir(root)
    os.environ |= {"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(root))
    with open(root / "output.txt", "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    failure = FirstFailure()
    directory = f"--basetemp={root / 'temporary'}"
    status = pytest.main([*_OPTIONS, directory, *options, *tests], plugins=[failure])
    sender.send((int(status), failure))


def _import_libraries() -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    for name in _LIBRARIES:
        __import__(name)


def _copy_tree(directory: str) -> pathlib.Path:
    """The files that git knows or would add, as they are."""
    root = pathlib.Path(directory) / "tree"
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.check_output(listed, cwd=ROOT, text=True).split("\0"):
        if name and (ROOT / name).is_file():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, root / name)
    for package in _PACKAGES:
        compileall.compile_dir(root / package, quiet=1)
    return root


def _check_unchanged(places: Sequence[Place], root: pathlib.Path, seconds: float) -> None:
    """Runs the tests of all mutants without one, and tells how long each file takes."""
    tests = sorted({test for place in places for test in place.tests})
    outcome, failure = run_tests(tests, root, seconds * len(tests))
    if outcome != "lived":
        print((root / "output.txt").read_text()[-5000:])
        raise click.ClickException(f"without a mutant: {failure.name or outcome}")
    for test, duration in failure.seconds.most_common():
        print(f"{duration:6.1f} s  {test}")


def _try(place: Place, root: pathlib.Path, seconds: float) -> tuple[str, str]:
    """The outcome of a mutant, and the first test that failed."""
    original, times = place.file.read_text(), place.file.stat()
    place.file.write_text(place.content)
    try:
        outcome, failure = run_tests(place.tests, root, seconds, "-x")
    finally:
        place.file.write_text(original)
        os.utime(place.file, ns=(times.st_atime_ns, times.st_mtime_ns))  # of its byte code
    return outcome, failure.name


@click.command()
@click.option("--only", multiple=True, metavar="NAME", help="Mutants to try; all by default.")
@click.option("--room", multiple=True, metavar="ROOM", help="Rooms whose mutants to try.")
@click.option("--from", "first", default=1, metavar="N", help="Number of the first one to try.")
@click.option("--seconds", default=180.0, show_default=True, help="Time-out of a mutant's tests.")
@click.option("--check/--no-check", default=True, help="Run the tests without a mutant first.")
@click.option("--find", is_flag=True, help="Only look whether all have their places.")
def main(
    only: Sequence[str], room: Sequence[str], first: int, seconds: float, check: bool, find: bool
) -> None:
    mutants = [
        (number, mutant)
        for number, mutant in enumerate(read_mutants(), start=1)
        if number >= first
        and (not only or mutant.name in only)
        and (not room or mutant.room in room)
    ]
    if not mutants:
        raise click.ClickException("no such mutant")
    if find:
        find_places([mutant for _, mutant in mutants], ROOT)
        return
    with tempfile.TemporaryDirectory() as directory:
        root = _copy_tree(directory)
        places = find_places([mutant for _, mutant in mutants], root)
        _import_libraries()
        if check:
            _check_unchanged(places, root, seconds)
        print("\n| | room | mutant | | seconds | first test that fails |")
        print("| --- | --- | --- | --- | --- | --- |", flush=True)
        outcomes = collections.Counter()
        for (number, mutant), place in zip(mutants, places, strict=True):
            start = time.monotonic()
            outcome, test = _try(place, root, seconds)
            outcomes[outcome] += 1
            took = f"{time.monotonic() - start:.0f}"
            cells = (str(number), mutant.room, mutant.name, outcome, took, test)
            print(f"| {' | '.join(cells)} |", flush=True)
    total = outcomes.total()
    counts = ", ".join(f"{outcomes[name]} {name}" for name in ("noticed", "lived", "hung"))
    print(f"\n{total} mutants: {counts}; {outcomes['noticed'] / total:.0%} noticed")


if __name__ == "__main__":
    main()
