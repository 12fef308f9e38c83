"""Questions of SQuAD 1.1 and 2.0: `spanbert-tf prepare squad`.

In SQuAD's own layout, or a row a question as HuggingFace's `datasets` has them.
"""

import itertools
import json
from typing import NotRequired

from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12

from data_prep.examples.questions import Answer, Question, QuestionSet
from spanbert_tf.files.text_files import parse_json, read_text_file


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
            questions.append(_question(entry, len(contexts) - 1, answers, is_impossible))
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
        questions.append(_question(row, index, answers, is_impossible=is_known and not answers))
    return QuestionSet(path, list(contexts), questions)


def _question(
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
