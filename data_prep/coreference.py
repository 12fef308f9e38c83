"""`python -m data_prep.coreference`, the same as `spanbert-tf prepare coreference`."""

import sys

import click

from data_prep.options import case_options, follow_links_option
from spanbert_tf.command_line import (
    OUTPUT_PATH,
    WritingCommand,
    overwrite_option,
    quiet_libraries,
    run_command,
)
from spanbert_tf.process.lines import print_line
from spanbert_tf.text.vocabulary import Casing

_SHOWN = (
    ("documents", "rows"),
    ("segments", "segments"),
    ("sentences", "sentences"),
    ("words", "words"),
    ("clusters", "clusters"),
    ("mentions", "mentions"),
)
_LOST = {
    "mentions_too_long": "mentions are longer than {width} pieces and cannot be found",
    "mentions_across_sentences": "mentions cross a sentence's end and cannot be found",
    "mentions_without_pieces": "mentions have no word piece and cannot be found",
    "words_without_pieces": "words have no word piece (control characters, for example)",
    "singletons": "clusters have one mention; OntoNotes has none, and predictions have none",
}


@click.command("coreference", cls=WritingCommand)
@click.option(
    "--input",
    "patterns",
    required=True,
    multiple=True,
    metavar="FILE|DIR|GLOB",
    help="CoNLL-2012 (*_conll), jsonlines of the original code, or GUM files; again for more.",
)
@follow_links_option
@click.option("--vocabulary", required=True, metavar="FILE")
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
    help="Limit of the model to train; longer mentions are counted.",
)
@click.option(
    "--max-training-segments",
    type=click.IntRange(min=1),
    help="Trained at once.  [default: the original's: 11 of 128, 5 of 256, 3 of 384 or 512]",
)
@case_options
@overwrite_option
def prepare_coreference(
    patterns: tuple[str, ...],
    follow_links: bool,
    vocabulary: str,
    output: str,
    sequence_length: int,
    max_span_width: int,
    max_training_segments: int | None,
    lowercase: bool,
    strip_accents: bool | None,
    overwrite: bool,
) -> None:
    """Write records of documents with coreferent mentions, one a document."""
    from data_prep.documents.reading import read_documents
    from data_prep.documents.records import write_documents

    info = write_documents(
        read_documents(patterns, follow_links=follow_links),
        output,
        vocabulary=vocabulary,
        casing=Casing.of(lowercase, strip_accents),
        sequence_length=sequence_length,
        max_span_width=max_span_width,
        max_training_segments=max_training_segments,
        overwrite=overwrite,
    )
    shown = ", ".join(f"{info.counts[name]:,} {title}" for title, name in _SHOWN)
    print_line(f"{output}: {shown}")
    for name, meaning in _LOST.items():
        if info.counts[name]:
            print_line(f"  {info.counts[name]:,} {meaning.format(width=max_span_width)}")


if __name__ == "__main__":
    quiet_libraries()
    run_command(prepare_coreference, "spanbert-tf prepare coreference", sys.argv[1:])
