"""`spanbert-tf prepare coreference`. Other modules are imported when used."""

from typing import Any

import click

from spanbert_tf.command_line import (
    OUTPUT_PATH,
    WritingCommand,
    follow_links_option,
    overwrite_option,
    vocabulary_options,
)


@click.command("coreference", cls=WritingCommand)
@click.option(
    "--input",
    "patterns",
    required=True,
    multiple=True,
    metavar="FILE|DIR|GLOB",
    help="CoNLL-2012 (*_conll), CorefUD (*.conllu), jsonlines of the original code, or GUM files; "
    "again for more.",
)
@click.option(
    "--singletons",
    type=click.Choice(["keep", "drop"]),
    default="keep",
    show_default=True,
    help="Whether clusters of one mention are written.",
)
@follow_links_option
@vocabulary_options
@click.option("--output", required=True, type=OUTPUT_PATH, metavar="DIR")
@click.option(
    "--sequence-length",
    type=click.IntRange(8, 65535),
    default=384,
    show_default=True,
    help="Positions of a segment.",
)
@click.option(
    "--max-span-width",
    type=click.IntRange(min=1),
    default=30,
    show_default=True,
    help="Limit of the model that is trained; longer mentions are counted.",
)
@click.option(
    "--max-training-segments",
    type=click.IntRange(min=1),
    help="Trained at once.  [default: the original's: 11 of 128, 5 of 256, 3 of 384 or 512]",
)
@overwrite_option
def prepare_coreference(
    patterns: tuple[str, ...], singletons: str, follow_links: bool, output: str, **options: Any
) -> None:
    """Write records of documents with coreferent mentions, one a document."""
    from spanbert_tf.tasks.coreference.files import read_documents
    from spanbert_tf.tasks.coreference.rows import write_documents

    documents = read_documents(
        patterns, follow_links=follow_links, drops_singletons=singletons == "drop"
    )
    write_documents(documents, output, **options)
