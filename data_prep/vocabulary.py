"""`python -m data_prep.vocabulary`, the same as `spanbert-tf prepare vocabulary`."""

import sys
from collections.abc import Sequence

import click

from data_prep.options import (
    QuotedInput,
    case_options,
    follow_links_option,
    input_option,
    separator_option,
)
from spanbert_tf.command_line import OUTPUT_PATH, overwrite_option, quiet_libraries, run_command


@click.command("vocabulary", cls=QuotedInput)
@input_option
@follow_links_option
@separator_option
@case_options
@click.option("--output", default="vocab.txt", show_default=True, type=OUTPUT_PATH, metavar="FILE")
@overwrite_option
@click.option("--vocabulary-size", type=click.IntRange(min=100), required=True)
def prepare_vocabulary(input_pattern: Sequence[str], output: str, **options: object) -> None:
    """Train a WordPiece vocabulary."""
    from data_prep.text.vocabulary import write_vocabulary

    write_vocabulary(input_pattern, output, **options)


if __name__ == "__main__":
    quiet_libraries()
    run_command(prepare_vocabulary, "spanbert-tf prepare vocabulary", sys.argv[1:])
