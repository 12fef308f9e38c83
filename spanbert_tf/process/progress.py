"""Shows how far this process has come. Nothing here needs TensorFlow."""

import datetime
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

Item = TypeVar("Item")
_SECONDS_BETWEEN_LINES = 10.0


def describe_share(done: float, total: float, seconds: float) -> str:
    """How much is done and how long the rest will take, as fast as it went so far.

    Args:
        done: parts that are done, such as bytes.
        total: all parts, of about the same work each.
        seconds: what those took.
    """
    if not done:
        return "0 %"
    left = datetime.timedelta(seconds=round(seconds * max(total - done, 0) / done))
    return f"{100 * min(done / total, 1):.0f} %, {left} left"


def show_progress(
    items: Iterable[Item],
    total: float,
    name: str,
    *,
    doing: str = "preparing",
    done: Callable[[], float] | None = None,
) -> Iterator[Item]:
    """Items as they are, with a bar on a terminal, or a line now and then elsewhere (on stderr).

    Args:
        items: what to go through in this process.
        total: how many there are, or how much work they are.
        name: what that is: `"questions"`, `"MB"`.
        doing: what is done with them, in a word or two.
        done: how much of `total` is done; `None`: as many as were handed on.
    """
    start = shown = time.monotonic()

    def describe(amount: float) -> str:
        share = describe_share(amount, total, time.monotonic() - start)
        return f"{doing}: {amount:,.0f} of {total:,.0f} {name}, {share}"

    if sys.stderr.isatty():
        columns = (BarColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task("", total=total)
            for number, item in enumerate(items, start=1):
                yield item
                amount = done() if done else number
                progress.update(task, completed=amount, description=describe(amount))
        return
    for number, item in enumerate(items, start=1):
        yield item
        if time.monotonic() - shown >= _SECONDS_BETWEEN_LINES:
            amount = done() if done else number
            if amount < total:
                shown = time.monotonic()
                print(describe(amount), file=sys.stderr, flush=True)
