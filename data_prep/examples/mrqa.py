"""Questions of the MRQA shared task (Fisch et al., 2019): `spanbert-tf prepare mrqa`.

JSON lines, a passage each, after a header line that names the set; answers are spans of characters,
ends inclusive, and one answer can be detected several times in a passage.
"""

import hashlib
from typing import Any

from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12

from data_prep.examples.answers import is_alike
from data_prep.examples.questions import Answer, Question, QuestionSet
from spanbert_tf.errors import BadInputError
from spanbert_tf.files.text_files import parse_json, read_text_file
from spanbert_tf.process.lines import print_line

DEVELOPMENT, TEST = "development", "test"
_SHOWN_DIFFERENT = 3


class _Detected(TypedDict):
    text: str
    char_spans: list[list[int]]


class _Entry(TypedDict):
    qid: str | int
    question: str
    answers: list[str]
    detected_answers: list[_Detected]


class _Passage(TypedDict):
    context: str
    qas: list[_Entry]


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
        questions += [_question(entry, len(contexts) - 1, place) for entry in passage["qas"]]
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


def _question(entry: _Entry, context_index: int, place: str) -> Question:
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
