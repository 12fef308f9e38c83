"""Lines that leave the process, and how far it has come; TensorFlow is not needed, rich for bars.

What comes from data is in the lines, and may not act on a terminal.
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

# Controls (escape sequences, line ends, tabs), formats (bidirectional marks, embeddings, overrides
# and isolates among them), line and paragraph separators, halves of surrogate pairs.
_ESCAPED_CATEGORIES = frozenset({"Cc", "Cf", "Zl", "Zp", "Cs"})
# Formats that writing needs: the space without width between the words of Thai and Khmer; the two
# joiners of Persian, Indic scripts and emoji; signs of Arabic, Syriac and Kaithi, which are seen;
# the joiners of hieroglyphs. Soft hyphens are none: they are not seen, and words differ by them.
_KEPT = frozenset(
    "\u200b\u200c\u200d\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2"
    "\U000110bd\U000110cd"
) | frozenset(map(chr, range(0x13430, 0x13440)))


def escape_controls(text: str) -> str:
    r"""A text as one line that does nothing but be read; in ordinary text of any script, the same.

    Control, format and bidirectional characters, and line ends of every kind, become what Python
    writes for them: `\x1b`, `\n`, `\u202e`. Letters, marks, variation selectors and the joiners
    that scripts and emoji need stay.

    Args:
        text: what may come from data; without line ends of one's own.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_escape, text))


def is_control(character: str) -> bool:
    """Whether a character could do more than be read, see `escape_controls`."""
    return unicodedata.category(character) in _ESCAPED_CATEGORIES and character not in _KEPT


def _escape(character: str) -> str:
    return (
        character.encode("unicode_escape").decode("ascii") if is_control(character) else character
    )


def escape_lines(text: str) -> str:
    """The same for a text of several lines, whose line ends (U+000A) stay."""
    return "\n".join(map(escape_controls, text.split("\n")))


def print_line(line: str = "") -> None:
    """Prints a line at once, its controls escaped; goes on where the reader of a pipe has ended.

    Ctrl-C ends all processes of `pretrain … | tee log`; what is printed from then on is dropped.

    Args:
        line: without line ends; one of data is escaped.

    Raises:
        BadInputError: standard output cannot be written otherwise: its disk is full.
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
    """From now on, what is printed or buffered goes nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def print_escaped_traceback(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """What `sys.excepthook` does, with the controls of what the messages quote escaped."""
    import traceback

    if sys.stderr is not None:
        text = "".join(traceback.format_exception(kind, error, trace))
        sys.stderr.write(escape_lines(text))


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


@contextlib.contextmanager
def terminal_bar(
    total: float, *, stays: bool = False
) -> Iterator[Callable[[float, str], None] | None]:
    """A function of what is done and a description, shown as a bar on stderr, if a terminal is."""
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
    """Hides lines that C++ libraries write; all others are shown as soon as the context ends.

    TF_CPP_MIN_LOG_LEVEL does not rule these lines, and they do not go through Python's streams.

    Args:
        descriptor: 1 for standard output, 2 for standard error.
        hidden: what these lines begin with.
    """
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL") != "3":  # the user wants to see them
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
