"""Shows how far preparation is: documents and megabytes of text, over all processes."""

import os
import sys
import threading
import time

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

_SECONDS_BETWEEN_LOOKS = 0.5
_SECONDS_BETWEEN_LINES = 10.0


class ProgressWriter:
    """A worker's side: overwrites a small file with its totals.

    Args:
        path: of the file, one for each input file.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    def write(self, documents: int, num_bytes: int) -> None:
        """Says how much of the input file is done."""
        with open(f"{self._path}.new", "w", encoding="ascii") as file:
            file.write(f"{documents} {num_bytes}")
        os.replace(f"{self._path}.new", self._path)


class ProgressDisplay:
    """The parent's side: a bar on a terminal, a line now and then elsewhere.

    Args:
        directory: where the workers' files lie.
        num_files: input files.
    """

    def __init__(self, directory: str, num_files: int) -> None:
        self._directory = directory
        self._num_files = num_files
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._show, daemon=True)

    def __enter__(self) -> "ProgressDisplay":
        self._start = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()

    def totals(self) -> tuple[int, int, int]:
        """(input files begun, documents, bytes) of all workers so far."""
        begun = documents = num_bytes = 0
        for name in os.listdir(self._directory):
            if not name.endswith(".new"):
                with open(os.path.join(self._directory, name), encoding="ascii") as file:
                    done = file.read().split()
                begun += 1
                documents += int(done[0])
                num_bytes += int(done[1])
        return begun, documents, num_bytes

    def _describe(self) -> str:
        _, documents, num_bytes = self.totals()
        rate = num_bytes / 1e6 / max(time.monotonic() - self._start, 1e-9)
        return f"{documents:,} documents, {num_bytes / 1e6:,.1f} MB, {rate:.1f} MB/s"

    def _show(self) -> None:
        if not sys.stderr.isatty():
            while not self._stop.wait(_SECONDS_BETWEEN_LINES):
                print(f"preparing: {self._describe()}", file=sys.stderr, flush=True)
            return
        columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        with Progress(*columns, transient=True) as progress:
            task = progress.add_task("", total=self._num_files)
            while not self._stop.wait(_SECONDS_BETWEEN_LOOKS):
                progress.update(task, completed=self.totals()[0], description=self._describe())
