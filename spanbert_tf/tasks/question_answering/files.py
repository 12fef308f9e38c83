"""Questions about passages, as the readers of all formats hand them on, and where answers stand."""

import collections
import dataclasses
import enum
from typing import NamedTuple

from spanbert_tf.errors import BadInputError

_NEARBY = 30  # characters on either side in which a misplaced answer is looked for


@dataclasses.dataclass(frozen=True)
class Answer:
    """A gold answer.

    Attributes:
        text: as the file has it.
        start: its first character in the context, by the file.
        end: its last character, inclusive, where the file says it.
    """

    text: str
    start: int
    end: int | None = None


@dataclasses.dataclass(frozen=True)
class Question:
    """A question about a passage.

    Attributes:
        id: unique in a file.
        text: the question.
        context_index: index of its passage.
        answers: the answers of all annotators; empty for a question without an answer.
        gold_texts: what the official scorer compares a prediction with.
        is_impossible: whether the passage does not answer it.
    """

    id: str
    text: str
    context_index: int
    answers: tuple[Answer, ...]
    gold_texts: tuple[str, ...]
    is_impossible: bool = False


@dataclasses.dataclass(frozen=True)
class QuestionSet:
    """What a file holds.

    Attributes:
        path: path of the file.
        contexts: passages.
        questions: questions about the passages.
    """

    path: str
    contexts: list[str]
    questions: list[Question]


def describe_unanswered(questions: QuestionSet) -> str | None:
    """A line that says so if only some questions have answers, as in SQuAD 2.0."""
    without = sum(not question.answers for question in questions.questions)
    total = len(questions.questions)
    if not 0 < without < total:
        return None
    return (
        f"{questions.path}: {without:,} of {total:,} questions have no answer, as in SQuAD 2.0; "
        "they belong to the task with --version-2 alone"
    )


def check_questions(questions: QuestionSet) -> None:
    """Refuses questions that no row can be made of.

    Raises:
        BadInputError: there is no question, two have the same id, or one is empty or about an
            empty passage.
    """
    path = questions.path
    if not questions.questions:
        raise BadInputError(f"{path}: holds no questions")
    counts = collections.Counter(question.id for question in questions.questions)
    if twice := [identifier for identifier, count in counts.items() if count > 1]:
        raise BadInputError(f"{path}: question id {twice[0]!r} is there {counts[twice[0]]} times")
    for question in questions.questions:
        if not questions.contexts[question.context_index].strip():
            raise BadInputError(f"{path}: question {question.id!r}: its context is empty")
        if not question.text.strip():
            raise BadInputError(f"{path}: question {question.id!r}: its text is empty")


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
