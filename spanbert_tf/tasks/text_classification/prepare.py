"""`spanbert-tf prepare classification` and `prepare glue`. Other modules are imported when used."""

from typing import Any

import click

from spanbert_tf.command_line import (
    EXISTING_DIRECTORY,
    WritingCommand,
    record_options_with,
    segment_aware_option,
)
from spanbert_tf.tasks.text_classification.glue import GLUE_TASKS


@click.command("classification", cls=WritingCommand)
@record_options_with(sequence_length=128)
@segment_aware_option
@click.option("--text-column", required=True, metavar="NAME")
@click.option("--text-pair-column", metavar="NAME", help="Column of the second text of a pair.")
@click.option("--label-column", metavar="NAME", help="Leave it out where there are no labels.")
@click.option("--regression", "is_regression", is_flag=True, help="Labels are numbers.")
@click.option(
    "--labels-of",
    type=EXISTING_DIRECTORY,
    metavar="RECORDS",
    help="The training records, whose classes and no others may occur.",
)
def prepare_classification(
    input_path: str,
    output: str,
    text_column: str,
    text_pair_column: str | None,
    label_column: str | None,
    is_regression: bool,
    labels_of: str | None,
    **options: Any,
) -> None:
    """Write records of labelled texts, or pairs of texts, from a table of any format."""
    if is_regression and labels_of:
        raise click.UsageError("--regression has no classes; leave out --labels-of")
    from spanbert_tf.tasks.text_classification.files import read_labelled_texts
    from spanbert_tf.tasks.text_classification.rows import load_labels, write_labelled_texts

    text_columns = [text_column]
    if text_pair_column:
        text_columns.append(text_pair_column)
    texts = read_labelled_texts(
        input_path,
        text_columns,
        label_column,
        is_regression=is_regression,
        labels=load_labels(labels_of) if labels_of else None,
    )
    write_labelled_texts(texts, output, **options)


@click.command("glue", cls=WritingCommand)
@click.option(
    "--task",
    required=True,
    type=click.Choice([name for name in GLUE_TASKS if name != "mnli_mm"]),
    help="mnli also reads the mismatched files, by their names.",
)
@record_options_with(sequence_length=128)
@segment_aware_option
def prepare_glue(task: str, input_path: str, output: str, **options: Any) -> None:
    """Write records of a GLUE task's train.tsv, dev.tsv or test.tsv."""
    from spanbert_tf.tasks.text_classification.files import read_glue
    from spanbert_tf.tasks.text_classification.rows import write_labelled_texts

    write_labelled_texts(read_glue(input_path, task), output, **options)
