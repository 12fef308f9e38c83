"""Damages each kind of file that is read, thousands of times, and counts how the readers fare.

A reader may take a damaged file or refuse it with one line that is meant for the user; it may not
end in another exception, in an error of several lines, or take longer than some seconds. Containers
(archives, YAML, arrays, weights, records) are damaged in their own form, too, and in place of each
file lies a directory, a socket, a pipe, a link to a device (the last two not where the user names
the file itself and may mean them).

    python -m benchmarks.fuzzing --mutations 1000

prints for each kind of file how many were taken, refused, badly refused and too slow.
"""

import collections
import os
import pathlib
import random
import resource
import signal
import tempfile
import warnings

import click

from benchmarks.fuzzed_containers import special_files
from benchmarks.fuzzed_files import Kind, Reader, kinds_of_files
from spanbert_tf.errors import SpanBertError

_SECONDS = 10
_MEMORY = 8 << 30  # of this process; a reader that wants more ends in `MemoryError`


class _TooSlow(Exception):
    """A file took longer than `_SECONDS`."""


def fuzz(kind: Kind, count: int, seed: int) -> collections.Counter:
    """Reads damaged copies of a file in its place, which is as before at the end.

    Args:
        kind: the kind of file.
        count: how many copies, beside what is no file (see `special_files`).
        seed: seed of the damage.

    Returns:
        How many were `taken`, `refused`, `badly refused` and `too slow`.
    """
    name, path, read, mutate = kind
    specials = special_files(endless=not kind.is_named)
    source, content = random.Random(f"{seed} {name}"), path.read_bytes()
    outcomes: collections.Counter = collections.Counter()

    def look(done: object) -> None:
        outcome, reason = outcome_of(read)
        outcomes[outcome] += 1
        if outcome not in ("taken", "refused"):
            print(f"{name}: {outcome}: {reason}: {done!r:.300}", flush=True)

    try:
        read()  # as it is, it must be taken
        for _ in range(count):
            damaged = mutate(content, source)
            path.write_bytes(damaged)
            look(damaged[:300])
        for special, make in specials.items():
            _remove(path)
            make(path)
            look(special)
    finally:
        _remove(path)
        path.write_bytes(content)
    return outcomes


def _remove(path: pathlib.Path) -> None:
    path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


def outcome_of(read: Reader, seconds: float = _SECONDS) -> tuple[str, str]:
    """How a reader fares, and why: `taken`, `refused`, `badly refused` or `too slow`.

    Needs `raise_too_slow` as the handler of SIGALRM.
    """
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        try:
            read()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        return "taken", ""
    except SpanBertError as error:
        return ("badly refused", repr(error)) if "\n" in str(error) else ("refused", str(error))
    except _TooSlow:
        return "too slow", f"{seconds} s"
    except Exception as error:
        return "badly refused", f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def raise_too_slow(number: int, frame: object) -> None:
    """Ends what takes too long."""
    raise _TooSlow


@click.command(help=__doc__.splitlines()[0])
@click.option("--mutations", default=1000, show_default=True, help="Copies of each kind of file.")
@click.option("--seed", default=0, show_default=True)
@click.option("--only", multiple=True, help="Kinds of files. [all]")
def main(mutations: int, seed: int, only: tuple[str, ...]) -> None:
    """Runs all kinds and prints a table."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, raise_too_slow)
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
    total: collections.Counter = collections.Counter()
    with tempfile.TemporaryDirectory() as name:
        for kind in kinds_of_files(pathlib.Path(name)):
            if only and kind.name not in only:
                continue
            outcomes = fuzz(kind, mutations, seed)
            print(f"{kind.name}: {dict(sorted(outcomes.items()))}", flush=True)
            total += outcomes
    print(f"all, {total.total():,} files: {dict(sorted(total.items()))}")


if __name__ == "__main__":
    main()
