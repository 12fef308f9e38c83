"""`spanbert-tf prepare squad` and `prepare mrqa`, and the formats that they read.

SQuAD 1.1 and 2.0 in their own layout, or a row a question as HuggingFace's `datasets` has them. The
MRQA shared task (Fisch et al., 2019): JSON lines, a passage each, after a header line that names
the set; answers are spans of characters, ends inclusive, and one answer can be detected several
times in a passage.
"""

import hashlib
import itertools
import json
from typing import Any, NotRequired

import click
from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12

from spanbert_tf.command_line import (
    WritingCommand,
    options,
    record_options,
    segment_aware_option,
)
from spanbert_tf.errors import BadInputError
from spanbert_tf.files.text_files import parse_json, read_text_file
from spanbert_tf.process.lines import print_line
from spanbert_tf.tasks.question_answering.files import (
    Answer,
    Question,
    QuestionSet,
    describe_unanswered,
    is_alike,
)

DEVELOPMENT, TEST = "development", "test"
_SHOWN_DIFFERENT = 3

_question_options = options(
    record_options,
    click.option("--stride", type=click.IntRange(min=1), default=128, show_default=True),
    click.option("--question-first", is_flag=True, help="[CLS] question [SEP] passage [SEP]"),
    segment_aware_option,
)


@click.command("squad", cls=WritingCommand)
@_question_options
@click.option("--version-2", is_flag=True, help="SQuAD 2.0: some questions have no answer.")
def prepare_squad(input_path: str, output: str, version_2: bool, **others: Any) -> None:
    """Write records of SQuAD 1.1 or 2.0, or of a file in their format."""
    questions = read_squad(input_path)
    _write(questions, output, has_unanswerable=version_2, **others)
    if not version_2 and (line := describe_unanswered(questions)):
        print_line(line)


@click.command("mrqa", cls=WritingCommand)
@_question_options
@click.option("--allow-missing-header", is_flag=True, help="As in the samples of the task.")
@click.option(
    "--half",
    type=click.Choice([DEVELOPMENT, TEST]),
    help="Half of a development set, where there is no test set.",
)
def prepare_mrqa(
    input_path: str, output: str, allow_missing_header: bool, half: str | None, **others: Any
) -> None:
    """Write records of one of the MRQA shared task's sets."""
    questions = read_mrqa(input_path, allow_missing_header=allow_missing_header, half=half)
    _write(questions, output, **others)


def _write(
    questions: QuestionSet,
    output: str,
    *,
    vocabulary: str,
    lowercase: bool,
    strip_accents: bool | None,
    overwrite: bool,
    **of_rows: Any,
) -> None:
    from spanbert_tf.tasks.question_answering.rows import QuestionOptions, write_questions

    write_questions(
        questions,
        output,
        options=QuestionOptions(**of_rows),
        vocabulary=vocabulary,
        lowercase=lowercase,
        strip_accents=strip_accents,
        overwrite=overwrite,
    )


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
    """Reads a file of SQuAD 1.1 or 2.0, or one in their format.

    Args:
        path: JSON, .gz or not: `data` → `paragraphs` → `context` and `qas`; or rows with `id`,
            `question`, `context` and `answers` of lists `text` and `answer_start`, one a line, in
            a list, or under `data`.

    Raises:
        BadInputError: it is not JSON, or in neither layout; the message names the place.
    """
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
    """Whether what lies under `data` has contexts of its own, by the first entry."""
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
    """Rows of one context, wherever they stand, share it."""
    contexts: dict[str, int] = {}
    questions = []
    for row in rows:
        index = contexts.setdefault(row["context"], len(contexts))
        lists = row.get("answers")
        # Test sets have no answers, which is not an empty list of them.
        is_known = lists is not None
        lists = lists or {"text": [], "answer_start": []}
        # What has no place is an answer that is lost, and counted so.
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
    """Reads a .jsonl or .jsonl.gz file.

    The answers of a question are the places where it was detected, the earliest first: the
    original trains on that one. Where the text at a place differs from the stated answer by more
    than case and white space, the place is trusted, and the first such answers are printed.

    Args:
        path: path of the file.
        allow_missing_header: whether the first line may be a passage already, as in samples.
        half: `"development"` or `"test"`, of a development set whose test set was not published
            (SpanBERT, section 4.1); `None`: all. See `half_of`.

    Raises:
        BadInputError: a line is not JSON, lacks a key, or the header is missing; the message names
            the line.
    """
    lines = read_text_file(path).split("\n")
    contexts: list[str] = []
    questions: list[Question] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        place = f"{path}: line {number}"
        if number == 1:
            if "header" in parse_json(line, _FirstLine, place):
                continue
            if not allow_missing_header:
                raise BadInputError(
                    f"{place}: has no header; this may be another format, or a sample "
                    "(--allow-missing-header)"
                )
        passage = parse_json(line, _Passage, place)
        if half and half_of(passage["context"]) != half:
            continue
        contexts.append(passage["context"])
        questions += [_mrqa_question(entry, len(contexts) - 1, place) for entry in passage["qas"]]
    _print_different(path, contexts, questions)
    return QuestionSet(path, contexts, questions)


def half_of(context: str) -> str:
    """The half that a passage and its questions belong to.

    The paper halves the development sets and does not say how. Here the first byte of the SHA-256
    of the passage's UTF-8 decides: even is `"development"`, odd `"test"`. Questions about one
    passage stay together, wherever it stands.
    """
    first_byte = hashlib.sha256(context.encode("utf-8", "surrogatepass")).digest()[0]
    return TEST if first_byte % 2 else DEVELOPMENT


def _mrqa_question(entry: _MrqaEntry, context_index: int, place: str) -> Question:
    answers = []
    for answer in entry["detected_answers"]:
        for span in answer["char_spans"]:
            if len(span) != 2:
                raise BadInputError(
                    f"{place}: question {entry['qid']!r}: a span of characters has {len(span)} "
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
            there = contexts[question.context_index][max(answer.start, 0) : answer.end + 1]
            if there and not is_alike(there, answer.text):
                different.append(f"  question {question.id!r}: {answer.text!r} is {there!r} there")
    if different:
        print_line(
            f"{path}: {len(different):,} answers have other text than stands in their place; the "
            "place is trusted"
        )
        for line in different[:_SHOWN_DIFFERENT]:
            print_line(line)
