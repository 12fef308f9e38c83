"""`spanbert-tf prepare squad` and `prepare mrqa`. Other modules are imported when used."""

import dataclasses
from typing import TYPE_CHECKING, Any

import click

from spanbert_tf.command_line import (
    WritingCommand,
    options,
    record_options,
    segment_aware_option,
)
from spanbert_tf.terminal import print_line

if TYPE_CHECKING:
    from spanbert_tf.tasks.question_answering.files import QuestionSet

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
    from spanbert_tf.tasks.question_answering.files import describe_unanswered, read_squad

    questions = read_squad(input_path)
    _write(questions, output, has_unanswerable=version_2, **others)
    unanswered = "" if version_2 else describe_unanswered(questions)
    if unanswered:
        print_line(unanswered)


@click.command("mrqa", cls=WritingCommand)
@_question_options
@click.option("--allow-missing-header", is_flag=True, help="As in the samples of the task.")
@click.option(
    "--half",
    type=click.Choice(["development", "test"]),
    help="Half of a development set, for sets without a test set.",
)
def prepare_mrqa(
    input_path: str, output: str, allow_missing_header: bool, half: str | None, **others: Any
) -> None:
    """Write records of one of the MRQA shared task's sets."""
    from spanbert_tf.tasks.question_answering.files import read_mrqa

    questions = read_mrqa(input_path, allow_missing_header=allow_missing_header, half=half)
    _write(questions, output, **others)


def _write(questions: "QuestionSet", output: str, **others: Any) -> None:
    """Writes the records. `others` has the options of rows and those of `write_task_records`."""
    from spanbert_tf.tasks.question_answering.rows import QuestionOptions, write_questions

    names = {field.name for field in dataclasses.fields(QuestionOptions)} & others.keys()
    row_options = QuestionOptions(**{name: others.pop(name) for name in names})
    write_questions(questions, output, options=row_options, **others)
