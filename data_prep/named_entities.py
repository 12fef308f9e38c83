"""`spanbert-tf prepare named_entities`."""

import click

from spanbert_tf.command_line import WritingCommand, record_options
from spanbert_tf.process.lines import print_line


@click.command("named_entities", cls=WritingCommand)
@record_options
@click.option(
    "--format",
    "file_format",
    type=click.Choice(["conll2003", "jsonlines", "crossre"]),
    required=True,
    help="Columns in BIO or BIOES; JSON lines with spans of characters; CrossRE's own.",
)
def prepare_named_entities(
    input_path: str,
    output: str,
    vocabulary: str,
    lowercase: bool,
    overwrite: bool,
    strip_accents: bool | None,
    sequence_length: int,
    file_format: str,
) -> None:
    """Write records of sentences with named entities."""
    from data_prep.examples.entity_files import READERS
    from data_prep.examples.entity_rows import write_entities
    from spanbert_tf.text.vocabulary import Casing

    sentences = READERS[file_format](input_path)
    write_entities(
        sentences,
        output,
        vocabulary=vocabulary,
        casing=Casing.of(lowercase, strip_accents),
        sequence_length=sequence_length,
        overwrite=overwrite,
    )
    for what, count in sentences.repairs.items():
        if count:
            print_line(f"{input_path}: {what}: {count:,}")
