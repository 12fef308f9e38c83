"""Options that several of the prepare commands share."""

from collections.abc import Callable

import click

from spanbert_tf.command_line import OUTPUT_PATH, WritingCommand, overwrite_option

input_option = click.option(
    "--input",
    "input_pattern",
    required=True,
    multiple=True,
    metavar="GLOB",
    help="Text files: plain, WikiExtractor, JSON lines; .gz or not (recognised by content). Give "
    "it again for more.",
)
follow_links_option = click.option(
    "--follow-links",
    is_flag=True,
    help="Read what links in the input's folders lead to outside of them, too.",
)
separator_option = click.option(
    "--document-separator",
    metavar="LINE",
    help="In plain text, a line equal to this begins a new document (default: one file, one).",
)


class QuotedInput(WritingCommand):
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


def case_options(command: Callable) -> Callable:
    """The options that say what is done to the text."""
    options = (
        click.option(
            "--lowercase/--cased",
            default=False,
            help="Lower-case the text and strip accents.  [default: cased]",
        ),
        click.option(
            "--keep-accents",
            "strip_accents",
            flag_value=False,
            default=None,
            type=bool,
            help="With --lowercase: strip no accents (German uncased models).",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def record_options_with(sequence_length: int) -> Callable[[Callable], Callable]:
    """The options of every command that writes records of a task.

    Args:
        sequence_length: by default, positions of a row at most.
    """
    options = (
        click.option("--input", "input_path", required=True, metavar="FILE"),
        click.option("--vocabulary", required=True, metavar="FILE"),
        click.option("--output", required=True, type=OUTPUT_PATH, metavar="DIR"),
        overwrite_option,
        case_options,
        click.option(
            "--sequence-length",
            type=click.IntRange(32, 65535),
            default=sequence_length,
            show_default=True,
        ),
    )

    def add_options(command: Callable) -> Callable:
        for option in reversed(options):
            command = option(command)
        return command

    return add_options


record_options = record_options_with(sequence_length=512)
segment_aware_option = click.option(
    "--segment-aware", is_flag=True, help="With SegaBERT's positions."
)


def relation_options(entities: str) -> Callable[[Callable], Callable]:
    """The options that `prepare tacred` and `prepare semeval2010` share.

    Args:
        entities: default of `--entities`.
    """
    options = (
        record_options_with(sequence_length=128),
        click.option(
            "--training-input",
            metavar="FILE",
            help="The training set, whose entity types and relations count.  [default: --input]",
        ),
        click.option(
            "--entities",
            type=click.Choice(["masked", "text"]),
            default=entities,
            show_default=True,
            help="A marker in place of each entity, or markers around its words.",
        ),
    )

    def decorate(command: Callable) -> Callable:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def question_options(command: Callable) -> Callable:
    """The options that `prepare squad` and `prepare mrqa` share."""
    options = (
        record_options,
        click.option("--stride", type=click.IntRange(min=1), default=128, show_default=True),
        click.option("--question-first", is_flag=True, help="[CLS] question [SEP] passage [SEP]"),
        segment_aware_option,
    )
    for option in reversed(options):
        command = option(command)
    return command
