"""`spanbert-tf prepare classification`."""

import click

from spanbert_tf.command_line import (
    EXISTING_DIRECTORY,
    WritingCommand,
    record_options_with,
    segment_aware_option,
)


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
@click.option(
    "--format",
    "file_format",
    type=click.Choice(["csv", "tsv", "jsonl"]),
    help="Where the file's name does not tell.",
)
def prepare_classification(
    input_path: str,
    output: str,
    text_column: str,
    text_pair_column: str | None,
    label_column: str | None,
    is_regression: bool,
    labels_of: str | None,
    file_format: str | None,
    **options: object,
) -> None:
    """Write records of labelled texts, or pairs of texts, from CSV, TSV or JSON lines."""
    if is_regression and labels_of:
        raise click.UsageError("--regression has no classes; leave out --labels-of")
    from data_prep.examples.classification import read_labelled_texts
    from data_prep.examples.classification_rows import load_labels, write_labelled_texts

    texts = read_labelled_texts(
        input_path,
        [text_column, *([text_pair_column] if text_pair_column else [])],
        label_column,
        is_regression=is_regression,
        labels=load_labels(labels_of) if labels_of else None,
        file_format=file_format,
    )
    write_labelled_texts(texts, output, **options)
