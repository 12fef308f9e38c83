"""Questions about passages, as the readers of the task formats hand them on."""

import collections
import dataclasses

from spanbert_tf.errors import BadInputError


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
