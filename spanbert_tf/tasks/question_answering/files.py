"""Reads questions about passages, and finds their answers in the passages.

Two formats are read. SQuAD 1.1 and 2.0: as published, or with one row for each question, as in
Hugging Face's `datasets`. MRQA (Fisch et al., 2019): a header and then one passage a line, with the
character spans at which each answer was detected.
"""

import collections
import dataclasses
import enum
import hashlib
import itertools
import json
from typing import Any, NamedTuple, NotRequired

from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12

from spanbert_tf.errors import BadInputError
from spanbert_tf.files.tables import is_columnar, read_objects
from spanbert_tf.files.text_files import parse_json, read_text_file
from spanbert_tf.terminal import print_line

_SHOWN_DIFFERENT = 3
_NEARBY = 30  # characters before and after a wrong position in which an answer is searched for


@dataclasses.dataclass(frozen=True)
class Answer:
    """A gold answer.

    Attributes:
        text: its text in the file.
        start: index of its first character in the context, according to the file.
        end: index of its last character, inclusive; `None` if the file does not give it.
    """

    text: str
    start: int
    end: int | None = None


@dataclasses.dataclass(frozen=True)
class Question:
    """A question about a passage.

    Attributes:
        id: its id, unique in a file.
        text: the question.
        context_index: index of its passage in `QuestionSet.contexts`.
        answers: the answers of all annotators; empty if the question has no answer.
        gold_texts: the texts with which the official scorer compares a prediction.
        is_impossible: whether the file marks the question as not answered by its passage.
    """

    id: str
    text: str
    context_index: int
    answers: tuple[Answer, ...]
    gold_texts: tuple[str, ...]
    is_impossible: bool = False


@dataclasses.dataclass(frozen=True)
class QuestionSet:
    """The contents of a file.

    Attributes:
        path: path of the file.
        contexts: the passages.
        questions: the questions about them.
    """

    path: str
    contexts: list[str]
    questions: list[Question]


def describe_unanswered(questions: QuestionSet) -> str | None:
    """Returns a line for the user if some questions have answers and others have none."""
    without = sum(not question.answers for question in questions.questions)
    total = len(questions.questions)
    if not 0 < without < total:
        return None
    return (
        f"{questions.path}: {without:,} of {total:,} questions have no answer, as in SQuAD 2.0; "
        "they are part of the task only with --version-2"
    )


def check_questions(questions: QuestionSet) -> None:
    """Raises `BadInputError` if there are no questions, an id occurs twice, or a context is empty.

    Some questions may be empty, as two of CMRC 2018's trial set are, but not all of them.
    """
    path = questions.path
    if not questions.questions:
        raise BadInputError(f"{path}: contains no questions")
    counts = collections.Counter(question.id for question in questions.questions)
    if twice := [identifier for identifier, count in counts.items() if count > 1]:
        raise BadInputError(f"{path}: question id {twice[0]!r} occurs {counts[twice[0]]} times")
    for question in questions.questions:
        if not questions.contexts[question.context_index].strip():
            raise BadInputError(f"{path}: question {question.id!r}: its context is empty")
    if not any(question.text.strip() for question in questions.questions):
        raise BadInputError(f"{path}: the texts of all questions are empty")


class Outcome(enum.Enum):
    """Whether an answer was found in its context."""

    FOUND = "found"  # its text is where the file says
    REPAIRED = "repaired"  # it occurs once nearby, or only without its leading and trailing space
    LOST = "lost"  # it does not occur nearby, or more than once


class Location(NamedTuple):
    """A range of characters of a context. The end is exclusive."""

    start: int
    end: int


def locate_answer(context: str, answer: Answer) -> tuple[Outcome, Location | None]:
    """Finds an answer in its context.

    If the file also gives the end of the answer, its range is used, whatever `answer.text` says.

    Args:
        context: the passage.
        answer: the answer in the file.

    Returns:
        Whether it was found, and its range without leading and trailing white space; `None` for an
        answer that is lost.
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
    """Returns the range that a file gives, whose end is inclusive, without outer white space."""
    there = context[start : end + 1] if 0 <= start <= end < len(context) else ""
    if not there.strip():
        return Outcome.LOST, None
    start += len(there) - len(there.lstrip())
    outcome = Outcome.FOUND if there == there.strip() else Outcome.REPAIRED
    return outcome, Location(start, start + len(there.strip()))


def is_alike(text: str, other: str) -> bool:
    """Whether two texts are equal apart from case and white space."""
    return "".join(text.split()).casefold() == "".join(other.split()).casefold()


class _Answer(TypedDict):
    text: str
    answer_start: int


class _Entry(TypedDict):
    id: str | int
    question: str
    answers: NotRequired[list[_Answer] | None]
    is_impossible: NotRequired[bool | None]


class _Paragraph(TypedDict):
    context: str
    qas: list[_Entry]


class _Article(TypedDict):
    paragraphs: list[_Paragraph]


class _File(TypedDict):
    data: list[_Article]


class _RowAnswers(TypedDict):
    text: list[str]
    answer_start: list[int]


class _Row(TypedDict):
    id: str | int
    question: str
    context: str
    answers: NotRequired[_RowAnswers | None]


class _RowFile(TypedDict):
    data: list[_Row]


def read_squad(path: str) -> QuestionSet:
    """Reads a file in the format of SQuAD 1.1 or 2.0.

    Args:
        path: path of a JSON file, compressed or not, as SQuAD is published: `data` → `paragraphs` →
            `context` and `qas`. Or of a file of rows with `id`, `question`, `context` and
            `answers`, which has the lists `text` and `answer_start`: JSON lines, a JSON list, a
            list under `data`, Parquet or Arrow.

    Raises:
        BadInputError: the file is in none of these formats; the message names the place.
    """
    if is_columnar(path):
        return _from_rows(path, read_objects(path, _Row))
    text = read_text_file(path)
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if _is_row(lines[0][1] if lines else ""):
        rows = [parse_json(line, _Row, f"{path}: line {number}") for number, line in lines]
        return _from_rows(path, rows)
    if text.lstrip().startswith("["):
        text = f'{{"data": {text}}}'
    if _has_rows(text):
        return _from_rows(path, parse_json(text, _RowFile, path)["data"])
    return _from_articles(path, parse_json(text, _File, path)["data"])


def _is_row(line: str) -> bool:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(entry, dict) and "context" in entry


def _has_rows(text: str) -> bool:
    """Whether the entries under `data` are rows with a context each, judging by the first one."""
    try:
        data = json.loads(text)["data"]
        return "context" in data[0] and "paragraphs" not in data[0]
    except (ValueError, RecursionError, LookupError, TypeError):
        return False


def _from_articles(path: str, articles: list[_Article]) -> QuestionSet:
    contexts: list[str] = []
    questions: list[Question] = []
    for paragraph in itertools.chain.from_iterable(article["paragraphs"] for article in articles):
        contexts.append(paragraph["context"])
        for entry in paragraph["qas"]:
            is_impossible = bool(entry.get("is_impossible"))
            found = [] if is_impossible else entry.get("answers") or []
            answers = tuple(Answer(answer["text"], answer["answer_start"]) for answer in found)
            questions.append(_squad_question(entry, len(contexts) - 1, answers, is_impossible))
    return QuestionSet(path, contexts, questions)


def _from_rows(path: str, rows: list[_Row]) -> QuestionSet:
    """Makes questions of rows. Rows with equal contexts share one, wherever they are."""
    contexts: dict[str, int] = {}
    questions = []
    for row in rows:
        index = contexts.setdefault(row["context"], len(contexts))
        lists = row.get("answers")
        # A test set has no `answers`; an empty list says that the context has no answer.
        is_known = lists is not None
        lists = lists or {"text": [], "answer_start": []}
        # A text without a start is an answer that cannot be found, and is counted as one.
        places = itertools.chain(lists["answer_start"], itertools.repeat(-1))
        answers = tuple(map(Answer, lists["text"], places))
        questions.append(
            _squad_question(row, index, answers, is_impossible=is_known and not answers)
        )
    return QuestionSet(path, list(contexts), questions)


def _squad_question(
    entry: _Entry | _Row, context_index: int, answers: tuple[Answer, ...], is_impossible: bool
) -> Question:
    return Question(
        str(entry["id"]),
        entry["question"],
        context_index,
        answers,
        tuple(answer.text for answer in answers),
        is_impossible,
    )


class _Detected(TypedDict):
    text: str
    char_spans: list[list[int]]


class _MrqaEntry(TypedDict):
    qid: str | int
    question: str
    answers: list[str]
    detected_answers: list[_Detected]


class _Passage(TypedDict):
    context: str
    qas: list[_MrqaEntry]


class _FirstLine(TypedDict, total=False):
    header: Any


def read_mrqa(
    path: str, *, allow_missing_header: bool = False, half: str | None = None
) -> QuestionSet:
    """Reads a file of MRQA.

    The answers of a question are the ranges at which one was detected, in the order of the passage;
    the original code trains on the first. If the text of a range differs from its answer by more
    than case and white space, the range is used, and the first such answers are printed.

    Args:
        path: path of a `.jsonl` or `.jsonl.gz` file.
        allow_missing_header: whether the first line may already be a passage, as in samples.
        half: `"development"` or `"test"` to read one half of a development set, `None` to read the
            whole file. SpanBERT (section 4.1) halves the development sets, since MRQA's test sets
            are not public; see `half_of`.

    Raises:
        BadInputError: a line is not JSON or lacks a key, or the header is missing; the message
            names the line.
    """
    contexts: list[str] = []
    questions: list[Question] = []
    for number, line in enumerate(read_text_file(path).split("\n"), start=1):
        if not line.strip():
            continue
        place = f"{path}: line {number}"
        if number == 1:
            if "header" in parse_json(line, _FirstLine, place):
                continue
            if not allow_missing_header:
                raise BadInputError(
                    f"{place}: has no header; the file may have another format, or be a sample, "
                    "which needs --allow-missing-header"
                )
        passage = parse_json(line, _Passage, place)
        if half and half_of(passage["context"]) != half:
            continue
        contexts.append(passage["context"])
        questions += [_mrqa_question(entry, len(contexts) - 1, place) for entry in passage["qas"]]
    _print_different(path, contexts, questions)
    return QuestionSet(path, contexts, questions)


def half_of(context: str) -> str:
    """Returns the half of a development set to which a passage and its questions belong.

    The paper does not say how it halves them. Here the first byte of the SHA-256 of the passage's
    UTF-8 decides: `"development"` if it is even, `"test"` if it is odd.
    """
    first_byte = hashlib.sha256(context.encode("utf-8", "surrogatepass")).digest()[0]
    return "test" if first_byte % 2 else "development"


def _mrqa_question(entry: _MrqaEntry, context_index: int, place: str) -> Question:
    answers = []
    for answer in entry["detected_answers"]:
        for span in answer["char_spans"]:
            if len(span) != 2:
                raise BadInputError(
                    f"{place}: question {entry['qid']!r}: an item of char_spans has {len(span)} "
                    "numbers, not 2"
                )
            answers.append(Answer(answer["text"], *span))
    answers.sort(key=lambda answer: (answer.start, answer.end))
    return Question(
        str(entry["qid"]),
        entry["question"],
        context_index,
        tuple(answers),
        tuple(entry["answers"]),
    )


def _print_different(path: str, contexts: list[str], questions: list[Question]) -> None:
    different = []
    for question in questions:
        for answer in question.answers:
            assert answer.end is not None  # MRQA states the ends of all answers
            there = contexts[question.context_index][max(answer.start, 0) : answer.end + 1]
            if there and not is_alike(there, answer.text):
                different.append(
                    f"  question {question.id!r}: {answer.text!r}, where the text is {there!r}"
                )
    if different:
        print_line(
            f"{path}: {len(different):,} answers differ from the text at their position, which is "
            "used"
        )
        for line in different[:_SHOWN_DIFFERENT]:
            print_line(line)
