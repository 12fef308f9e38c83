"""Questions of the MRQA shared task (Fisch et al., 2019): `spanbert-tf prepare mrqa`.

JSON lines, a passage each, after a header line that names the set; answers are spans of characters,
ends inclusive, and one answer can be detected several times in a passage.
"""

import hashlib
import json
import sys

from data_prep.questions import Answer, Question, QuestionSet
from data_prep.text_file import read_text_file
from spanbert_tf.errors import BadInputError

DEVELOPMENT, TEST = "development", "test"


def read_mrqa(
    path: str, *, allow_missing_header: bool = False, half: str | None = None
) -> QuestionSet:
    """Reads a .jsonl or .jsonl.gz file.

    Args:
        path: of the file.
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
        try:
            entry = json.loads(line)
        except ValueError as error:
            raise BadInputError(f"{place}: not JSON ({error})") from error
        if not isinstance(entry, dict):
            raise BadInputError(f"{place}: is no JSON object")
        if number == 1 and "header" in entry:
            continue
        if number == 1 and not allow_missing_header:
            raise BadInputError(
                f"{place}: has no header; this may be another format, or a sample "
                "(--allow-missing-header)"
            )
        try:
            if half and half_of(entry["context"]) != half:
                continue
            contexts.append(entry["context"])
            questions += [_read_question(qa, len(contexts) - 1) for qa in entry["qas"]]
        except (KeyError, TypeError, IndexError) as error:
            raise BadInputError(f"{place}: lacks a key of MRQA's format ({error!r})") from error
    return QuestionSet(path, contexts, questions)


def half_of(context: str) -> str:
    """The half that a passage and its questions belong to.

    The paper halves the development sets and does not say how. Here the first byte of the SHA-256
    of the passage's UTF-8 decides: even is `"development"`, odd `"test"`. Questions about one
    passage stay together, wherever it stands.
    """
    first_byte = hashlib.sha256(context.encode("utf-8", "surrogatepass")).digest()[0]
    return TEST if first_byte % 2 else DEVELOPMENT


def _read_question(entry: dict, context_index: int) -> Question:
    answers = tuple(
        Answer(answer["text"], int(start))
        for answer in entry["detected_answers"]
        for start, _ in answer["char_spans"]
    )
    gold_texts = tuple(entry["answers"])
    return Question(str(entry["qid"]), entry["question"], context_index, answers, gold_texts)


if __name__ == "__main__":
    from spanbert_tf.cli import main

    main(["prepare", "mrqa", *sys.argv[1:]])
