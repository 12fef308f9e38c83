"""`spanbert-tf prepare glue`."""

import click

from spanbert_tf.command_line import WritingCommand, record_options_with, segment_aware_option
from spanbert_tf.tasks.text_classification.glue import GLUE_TASKS


@click.command("glue", cls=WritingCommand)
@click.option(
    "--task",
    required=True,
    type=click.Choice([name for name in GLUE_TASKS if name != "mnli_mm"]),
    help="mnli takes the mismatched files, too, by their names.",
)
@record_options_with(sequence_length=128)
@segment_aware_option
def prepare_glue(task: str, input_path: str, output: str, **options: object) -> None:
    """Write records of a GLUE task's train.tsv, dev.tsv or test.tsv."""
    from data_prep.examples.classification_rows import write_labelled_texts
    from data_prep.examples.glue import read_glue

    write_labelled_texts(read_glue(input_path, task), output, **options)
