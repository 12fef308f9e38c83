"""`spanbert-tf inspect` on records of questions: counts, and rows with their answers."""

from rich.text import Text

from spanbert_tf.console import DataConsole
from spanbert_tf.data.records import Records
from spanbert_tf.tasks.inspection import pieces_of_row, print_counts
from spanbert_tf.tasks.question_answering.dataset import (
    load_questions,
    question_answering_dataset,
)
from spanbert_tf.tasks.question_answering.records import QuestionAnsweringInfo
from spanbert_tf.terminal import escape_controls
from spanbert_tf.text.vocabulary import is_continuation

_ANSWER_STYLE = "bold green"


def inspect_questions(data: str, console: DataConsole, num_examples: int) -> None:
    """Prints what a set of questions holds, and its first rows as the model reads them.

    Args:
        data: directory of the records.
        console: where to print.
        num_examples: rows to print.

    Raises:
        BadInputError: a file of the records is missing or damaged.
    """
    records = Records.of(data, QuestionAnsweringInfo)
    info, questions = records.info, load_questions(records)
    order = "question first" if info.question_first else "passage first"
    console.print(
        f"{data}: questions in rows of up to {info.sequence_length}, stride {info.stride}, "
        f"{order}, {info.casing.describe()}, vocabulary of {info.vocabulary_size:,}"
        + ", some without an answer" * info.has_unanswerable
        + ", with SegaBERT's positions" * info.segment_aware,
    )
    print_counts(info, console)
    if not num_examples:
        return
    vocabulary = records.vocabulary
    rows = question_answering_dataset(records, batch_size=1, training=False)
    for x, y in rows.take(num_examples).as_numpy_iterator():
        question = questions[int(x["question_index"][0])]
        golds = ", ".join(dict.fromkeys(question["gold_texts"])) or "none"
        console.print()
        console.print(f"{question['id']}: {question['question']}")
        console.print(f"gold answers: {golds}")
        pieces = pieces_of_row(x, vocabulary)
        answer = (int(y["start_positions"][0]), int(y["end_positions"][0]))
        console.print(_row(pieces, *answer))


def _row(pieces: list[str], first: int, last: int) -> Text:
    """A row as words, its answer in colour and brackets; 0 and 0: no answer in this window."""
    text = Text()
    for position, piece in enumerate(pieces):
        is_answer = 0 < first <= position <= last
        if position and not is_continuation(piece):
            text.append(" ")
        if is_answer and position == first:
            text.append("»", _ANSWER_STYLE)
        text.append(escape_controls(piece.removeprefix("##")), _ANSWER_STYLE if is_answer else "")
        if is_answer and position == last:
            text.append("«", _ANSWER_STYLE)
    return text
