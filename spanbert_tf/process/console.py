"""Where tables are printed, text in colours of our own, and how far this process has come.

Nothing here needs TensorFlow.
"""

import datetime
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import rich.console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.segment import Segment

from spanbert_tf.process.lines import escape_controls, escape_lines

_FILE_WIDTH = 120  # of tables in a file or a pipe


class DataConsole(rich.console.Console):
    """A console on which texts of data are no more than text.

    A string, also in the cells and titles of tables, is one line: its controls are escaped
    (`escape_controls`) before widths are measured, and nothing in it is rich's markup or the name
    of an emoji. Colours come from `rich.text.Text` alone; who builds one escapes what goes into it.
    """

    def __init__(self, **options: object) -> None:
        super().__init__(**{**options, "markup": False, "emoji": False})

    def render_str(self, text: str, **options: object) -> rich.console.Text:
        """A string as text; called by rich for every string, wherever it stands."""
        return super().render_str(escape_controls(text), **options)

    def render(
        self, renderable: object, options: rich.console.ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """What is printed; the last place where controls in a `Text` can be escaped."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield segment._replace(text=escape_lines(segment.text))


def table_console() -> DataConsole:
    """A console as wide as the terminal; wide enough for tables without one."""
    return DataConsole(width=None if os.isatty(1) else _FILE_WIDTH)


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
        with Progress(
            *columns, console=rich.console.Console(stderr=True), transient=True
        ) as progress:
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
