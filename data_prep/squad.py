"""Questions of SQuAD 1.1 and 2.0: `spanbert-tf prepare squad`."""

import json
import sys
from typing import Any

from data_prep.questions import Answer, Question, QuestionSet
from data_prep.text_file import read_text_file
from spanbert_tf.errors import BadInputError


def read_squad(path: str) -> QuestionSet:
    """Reads a file of SQuAD 1.1 or 2.0, or one in their format.

    Args:
        path: JSON, .gz or not: `data` → `paragraphs` → `context` and `qas`.

    Raises:
        BadInputError: it is not JSON, or not in this format; the message names the place.
    """
    text = read_text_file(path)
    try:
        content = json.loads(text)
    except ValueError as error:
        raise BadInputError(f"{path}: not JSON ({error})") from error
    contexts: list[str] = []
    questions: list[Question] = []
    articles = _get(content, "data", list, path)
    for article_number, article in enumerate(articles):
        where = f"{path}: data[{article_number}]"
        for number, paragraph in enumerate(_get(article, "paragraphs", list, where)):
            place = f"{where}.paragraphs[{number}]"
            contexts.append(_get(paragraph, "context", str, place))
            for entry_number, entry in enumerate(_get(paragraph, "qas", list, place)):
                entry_place = f"{place}.qas[{entry_number}]"
                questions.append(_read_question(entry, entry_place, len(contexts) - 1))
    return QuestionSet(path, contexts, questions)


def _read_question(entry: Any, place: str, context_index: int) -> Question:
    identifier = _get(entry, "id", (str, int), place)
    place = f"{place} (id {identifier})"
    is_impossible = bool(entry.get("is_impossible", False))
    answers = tuple(
        Answer(_get(answer, "text", str, place), _get(answer, "answer_start", int, place))
        for answer in ([] if is_impossible else entry.get("answers") or [])
    )
    return Question(
        str(identifier),
        _get(entry, "question", str, place),
        context_index,
        answers,
        tuple(answer.text for answer in answers),
        is_impossible,
    )


def _get(mapping: Any, key: str, kind: type | tuple[type, ...], place: str) -> Any:
    if not isinstance(mapping, dict) or not isinstance(mapping.get(key), kind):
        names = kind if isinstance(kind, tuple) else (kind,)
        wanted = " or ".join(name.__name__ for name in names)
        raise BadInputError(f"{place}: has no {key!r} that is a {wanted}")
    return mapping[key]


if __name__ == "__main__":
    from spanbert_tf.cli import main

    main(["prepare", "squad", *sys.argv[1:]])
