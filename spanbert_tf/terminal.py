"""Prints lines and progress. Data in these lines cannot control the terminal.

Nothing here needs TensorFlow, and only bars need rich.
"""

import contextlib
import datetime
import os
import re
import sys
import tempfile
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import TypeVar

from spanbert_tf.errors import BadInputError, reason

_Item = TypeVar("_Item")
_SECONDS_BETWEEN_LINES = 10.0

# Control characters (escape sequences, line ends, tabs), format characters (such as bidirectional
# marks), line and paragraph separators, and halves of surrogate pairs.
_ESCAPED_CATEGORIES = frozenset({"Cc", "Cf", "Zl", "Zp", "Cs"})
# Format characters that scripts need: the zero-width space of Thai and Khmer, the two joiners of
# Persian, Indic scripts and emoji, visible signs of Arabic, Syriac and Kaithi, and the joiners of
# hieroglyphs. Soft hyphens are escaped: they are invisible and make words differ.
_KEPT = frozenset(
    "\u200b\u200c\u200d\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2"
    "\U000110bd\U000110cd"
) | frozenset(map(chr, range(0x13430, 0x13440)))


def escape_controls(text: str) -> str:
    r"""Escapes the characters of a text that could control a terminal.

    Control, format and bidirectional characters and line ends of every kind become Python's escapes
    for them: `\x1b`, `\n`, `\u202e`. So the result is one line. Letters, marks, variation selectors
    and the joiners that scripts and emoji need stay, so ordinary text of any script is unchanged.

    Args:
        text: untrusted text.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_escape, text))


def is_control(character: str) -> bool:
    """Whether `escape_controls` escapes a character."""
    return unicodedata.category(character) in _ESCAPED_CATEGORIES and character not in _KEPT


def _escape(character: str) -> str:
    if is_control(character):
        return character.encode("unicode_escape").decode("ascii")
    return character


def escape_lines(text: str) -> str:
    """Does the same as `escape_controls` for a text of several lines, and keeps its line ends."""
    return "\n".join(map(escape_controls, text.split("\n")))


def print_line(line: str = "") -> None:
    """Prints a line to standard output at once, with control characters escaped.

    If the reader of a pipe has ended, further output is dropped: Ctrl-C ends all processes of
    `pretrain … | tee log`, and the run must still write its checkpoint.

    Args:
        line: the line, without a line end.

    Raises:
        BadInputError: standard output cannot be written, for example because its disk is full.
    """
    try:
        print(escape_controls(line), flush=True)
    except OSError as error:
        drop_output()
        if not isinstance(error, BrokenPipeError):
            raise BadInputError(
                f"standard output: cannot be written ({reason(error)}); print to another place"
            ) from error


def drop_output() -> None:
    """Drops everything that is printed to standard output from now on, or is still buffered."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def print_escaped_traceback(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Prints a traceback as `sys.excepthook` does, but escapes control characters."""
    import traceback

    if sys.stderr is not None:
        text = "".join(traceback.format_exception(kind, error, trace))
        sys.stderr.write(escape_lines(text))


def describe_share(done: float, total: float, seconds: float) -> str:
    """Describes the share of the work that is done, and estimates the time for the rest.

    Args:
        done: units that are done, such as bytes.
        total: all units.
        seconds: time that the finished units took.
    """
    if not done:
        return "0 %"
    left = datetime.timedelta(seconds=round(seconds * max(total - done, 0) / done))
    return f"{100 * min(done / total, 1):.0f} %, {left} left"


@contextlib.contextmanager
def terminal_bar(
    total: float, *, stays: bool = False
) -> Iterator[Callable[[float, str], None] | None]:
    """Shows a bar on stderr while the context lasts.

    Args:
        total: units of the work.
        stays: whether the bar remains visible at the end.

    Yields:
        A function that takes the units done and a description and updates the bar; `None` if stderr
        is not a terminal.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=not stays) as progress:
        task = progress.add_task("", total=total)
        yield lambda done, shown: progress.update(task, completed=done, description=shown)


def show_progress(
    items: Iterable[_Item],
    total: float,
    name: str,
    *,
    doing: str = "preparing",
    done: Callable[[], float] | None = None,
) -> Iterator[_Item]:
    """Yields items and shows the progress on stderr: a bar on a terminal, otherwise some lines.

    Args:
        items: the items.
        total: number of items, or the amount of work in another unit.
        name: unit of `total`, such as `"questions"` or `"MB"`.
        doing: a word or two that describe the work.
        done: returns how much of `total` is done. By default the number of items is used.
    """
    start = time.monotonic()
    shown = start

    def describe(amount: float) -> str:
        share = describe_share(amount, total, time.monotonic() - start)
        return f"{doing}: {amount:,.0f} of {total:,.0f} {name}, {share}"

    with terminal_bar(total) as update:
        for number, item in enumerate(items, start=1):
            yield item
            amount = done() if done else number
            if update:
                update(amount, describe(amount))
            elif time.monotonic() - shown >= _SECONDS_BETWEEN_LINES and amount < total:
                shown = time.monotonic()
                with contextlib.suppress(BrokenPipeError):  # as in `print_line`
                    print(describe(amount), file=sys.stderr, flush=True)


@contextlib.contextmanager
def hidden_lines(descriptor: int, hidden: re.Pattern[bytes]) -> Iterator[None]:
    """Hides some lines that C++ libraries write; all other lines are shown when the context ends.

    TF_CPP_MIN_LOG_LEVEL does not affect these lines, and they do not pass through Python's streams.

    Args:
        descriptor: 1 for standard output, 2 for standard error.
        hidden: matches the beginning of lines to hide.
    """
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL") != "3":  # the user wants to see all lines
        yield
        return
    stream = sys.stdout if descriptor == 1 else sys.stderr
    stream.flush()
    shown = os.dup(descriptor)
    with tempfile.TemporaryFile() as lines:
        os.dup2(lines.fileno(), descriptor)
        try:
            yield
        finally:
            os.dup2(shown, descriptor)
            os.close(shown)
            lines.seek(0)
            os.write(descriptor, b"".join(line for line in lines if not hidden.match(line)))
