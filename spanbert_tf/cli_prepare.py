"""`spanbert-tf prepare`: the commands that write vocabularies and records."""

from collections.abc import Callable, Sequence

import click

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
_case_option = click.option(
    "--lowercase/--cased",
    default=False,
    help="Lower-case the text and strip accents.  [default: cased]",
)


@click.group()
def prepare() -> None:
    """Write vocabularies and records."""


@prepare.command("vocabulary")
@_input_option
@_separator_option
@_case_option
@click.option("--output", default="vocab.txt", show_default=True, metavar="FILE")
@click.option("--vocabulary-size", type=click.IntRange(min=100), required=True)
def prepare_vocabulary(
    input_pattern: Sequence[str],
    document_separator: str | None,
    lowercase: bool,
    output: str,
    vocabulary_size: int,
) -> None:
    """Train a WordPiece vocabulary."""
    from data_prep.vocabulary import write_vocabulary

    write_vocabulary(
        input_pattern,
        output,
        vocabulary_size=vocabulary_size,
        lowercase=lowercase,
        document_separator=document_separator,
    )


@prepare.command("pretraining", context_settings=_BEAM_CONTEXT)
@_input_option
@_separator_option
@_case_option
@click.option("--vocabulary", required=True, metavar="FILE")
@click.option("--output", required=True, metavar="DIR")
@click.option("--sequence-length", type=click.IntRange(8, 65535), default=512, show_default=True)
@click.option("--sequences", type=click.Choice(["single", "pair"]), default="single")
@click.option("--annotate", default="", metavar="LIST", help="entities,noun_phrases (needs spaCy)")
@click.option("--spacy-model", default="en_core_web_sm", show_default=True)
@click.option("--validation-fraction", type=click.FloatRange(0, 0.5), default=0.01)
@click.option("--num-shards", type=click.IntRange(min=1), help="Default: one per 32 MB of input.")
@click.option("--num-processes", type=click.IntRange(min=1), default=1, show_default=True)
@click.pass_context
def prepare_pretraining(
    context: click.Context, input_pattern: Sequence[str], annotate: str, **options: object
) -> None:
    """Write pre-training records. Further options go to the Apache Beam runner."""
    from data_prep.pretraining import write_pretraining_records

    write_pretraining_records(
        input_pattern,
        annotate=tuple(name for name in annotate.split(",") if name),
        beam_arguments=tuple(context.args),
        **options,
    )


def _question_options(command: Callable) -> Callable:
    """The options that `prepare squad` and `prepare mrqa` share."""
    options = (
        click.option("--input", "input_path", required=True, metavar="FILE"),
        click.option("--vocabulary", required=True, metavar="FILE"),
        click.option("--output", required=True, metavar="DIR"),
        _case_option,
        click.option("--sequence-length", type=click.IntRange(32, 65535), default=512),
        click.option("--stride", type=click.IntRange(min=1), default=128, show_default=True),
        click.option("--question-first", is_flag=True, help="[CLS] question [SEP] passage [SEP]"),
        click.option("--segment-aware", is_flag=True, help="With SegaBERT's positions."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@prepare.command("squad")
@_question_options
@click.option("--version-2", is_flag=True, help="SQuAD 2.0: some questions have no answer.")
def prepare_squad(
    input_path: str, output: str, vocabulary: str, lowercase: bool, version_2: bool, **options: int
) -> None:
    """Write records of SQuAD 1.1 or 2.0, or of a file in their format."""
    from data_prep.question_answering import QuestionOptions, write_questions
    from data_prep.squad import read_squad

    write_questions(
        read_squad(input_path),
        output,
        vocabulary=vocabulary,
        lowercase=lowercase,
        options=QuestionOptions(has_unanswerable=version_2, **options),
    )


@prepare.command("mrqa")
@_question_options
@click.option("--allow-missing-header", is_flag=True, help="As in the samples of the task.")
@click.option(
    "--half",
    type=click.Choice(["development", "test"]),
    help="Of a development set, where there is no test set.",
)
def prepare_mrqa(
    input_path: str,
    output: str,
    vocabulary: str,
    lowercase: bool,
    allow_missing_header: bool,
    half: str | None,
    **options: int,
) -> None:
    """Write records of one of the MRQA shared task's sets."""
    from data_prep.mrqa import read_mrqa
    from data_prep.question_answering import QuestionOptions, write_questions

    write_questions(
        read_mrqa(input_path, allow_missing_header=allow_missing_header, half=half),
        output,
        vocabulary=vocabulary,
        lowercase=lowercase,
        options=QuestionOptions(**options),
    )
