"""`spanbert-tf prepare named_entities`. Other modules are imported when used."""

from typing import Any

import click

from spanbert_tf.command_line import WritingCommand, record_options


@click.command("named_entities", cls=WritingCommand)
@record_options
@click.option(
    "--format",
    "file_format",
    type=click.Choice(["conll", "conll2003", "jsonlines", "tokens", "crossre"]),
    required=True,
    help="Columns, the tag in BIO or BIOES the last (conll, conll2003: the same); a table with "
    "spans of characters (jsonlines) or with lists of tokens and ner_tags (tokens): JSON lines, "
    "Parquet or another; CrossRE's own.",
)
def prepare_named_entities(input_path: str, output: str, file_format: str, **options: Any) -> None:
    """Write records of sentences with named entities."""
    from spanbert_tf.tasks.named_entities.rows import READERS, write_entities

    write_entities(READERS[file_format](input_path), output, **options)
