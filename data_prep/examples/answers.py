"""From an answer's characters to the tokens of its passage, checked on the way."""

import enum
from typing import NamedTuple

from data_prep.examples.questions import Answer

_NEARBY = 30  # characters on either side in which a misplaced answer is looked for


class Outcome(enum.Enum):
    """What became of an answer."""

    FOUND = "found"  # its text stands where the file says
    REPAIRED = "repaired"  # it stands nearby, once, or without its outer white space
    LOST = "lost"  # it is nowhere near, or more than once


class Location(NamedTuple):
    """Characters of a context, the end exclusive."""

    start: int
    end: int


def locate_answer(context: str, answer: Answer) -> tuple[Outcome, Location | None]:
    """Where an answer stands in its context.

    A file that says where it ends is trusted: what stands there is the answer, whatever its text.

    Args:
        context: the passage.
        answer: as the file has it.

    Returns:
        The outcome, and the answer's place unless it is lost.
    """
    if answer.end is not None:
        return _trusted(context, answer.start, answer.end)
    text = answer.text.strip()
    if not text or answer.start < 0:
        return Outcome.LOST, None
    leading = len(answer.text) - len(answer.text.lstrip())
    start = answer.start + leading
    if context.startswith(text, start):
        outcome = Outcome.FOUND if text == answer.text else Outcome.REPAIRED
        return outcome, Location(start, start + len(text))
    first = max(answer.start - _NEARBY, 0)
    nearby = context[first : answer.start + len(answer.text) + _NEARBY]
    found = nearby.find(text)
    if found < 0 or nearby.find(text, found + 1) >= 0:
        return Outcome.LOST, None
    return Outcome.REPAIRED, Location(first + found, first + found + len(text))


def _trusted(context: str, start: int, end: int) -> tuple[Outcome, Location | None]:
    """The place that a file states, the end inclusive, without outer white space."""
    there = context[start : end + 1] if 0 <= start <= end < len(context) else ""
    if not there.strip():
        return Outcome.LOST, None
    start += len(there) - len(there.lstrip())
    outcome = Outcome.FOUND if there == there.strip() else Outcome.REPAIRED
    return outcome, Location(start, start + len(there.strip()))


def is_alike(text: str, other: str) -> bool:
    """Whether texts differ in nothing but case and white space."""
    return "".join(text.split()).casefold() == "".join(other.split()).casefold()
