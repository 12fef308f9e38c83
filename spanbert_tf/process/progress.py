"""Shows how far this process has come. Nothing here needs TensorFlow."""

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

Item = TypeVar("Item")
_SECONDS_BETWEEN_LINES = 10.0


def show_progress(
    items: Iterable[Item], total: int, name: str, *, doing: str = "preparing"
) -> Iterator[Item]:
    """Items as they are, with a bar on a terminal, or a line now and then elsewhere (on stderr).

    Args:
        items: what to go through in this process.
        total: how many there are.
        name: what they are, `"questions"`.
        doing: what is done with them, in a word.
    """
    if sys.stderr.isatty():
        columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task("", total=total)
            for number, item in enumerate(items, start=1):
                yield item
                description = f"{doing}: {number:,} of {total:,} {name}"
                progress.update(task, completed=number, description=description)
        return
    shown = time.monotonic()
    for number, item in enumerate(items, start=1):
        yield item
        if number < total and time.monotonic() - shown >= _SECONDS_BETWEEN_LINES:
            shown = time.monotonic()
            print(f"{doing}: {number:,} of {total:,} {name}", file=sys.stderr, flush=True)
