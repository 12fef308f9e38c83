"""`spanbert-tf prepare`: the table of its commands, and the commands that belong to no task."""

import importlib.metadata
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import EntryPoint
from typing import Any, get_args

import click

from spanbert_tf.command_line import (
    EXISTING_DIRECTORY,
    OUTPUT_PATH,
    WritingCommand,
    case_options,
    follow_links_option,
    language_of_preset_option,
    options,
    overwrite_option,
    vocabulary_options,
)
from spanbert_tf.files.written import print_written
from spanbert_tf.lazy import import_keras, import_tensorflow, load
from spanbert_tf.tasks.table import prepare_commands
from spanbert_tf.text.languages import DEFAULT_SPACY_MODEL, WITH_ICU_WORDS, WordSegmentation
from spanbert_tf.text.vocabulary import LETTER_COVERAGE, NUM_MARKERS, TextRules

# Other packages add commands through this group of entry points. Each names a `click.Command`.
ENTRY_POINTS = "spanbert_tf.prepare"
_COMMANDS = {
    "pretraining": "data_prep.cli:prepare_pretraining",
    "repair": "data_prep.cli:prepare_repair",
    "vocabulary": "data_prep.cli:prepare_vocabulary",
    **prepare_commands(),
}
_BEAM_CONTEXT = {"ignore_unknown_options": True, "allow_extra_args": True}
_input_option = click.option(
    "--input",
    "input_pattern",
    required=True,
    multiple=True,
    metavar="GLOB",
    help="Files of text or tables: plain, WikiExtractor, JSON, CSV, TSV, Parquet, Arrow, also "
    "compressed (recognized by content). Repeat it for more files.",
)
text_column_option = click.option(
    "--text-column",
    "text_columns",
    multiple=True,
    metavar="NAME",
    help="In tables, the column of the text; metadata.title is inside an object (default: text). "
    "Repeat it for more columns, such as title and body of one document.",
)
_separator_option = click.option(
    "--document-separator",
    metavar="LINE",
    help="In plain text, a line equal to this begins a new document (default: a file is one).",
)
corpus_options = options(_input_option, follow_links_option, _separator_option, text_column_option)


def _corpus_arguments(patterns: Sequence[str], options: Mapping[str, Any]) -> list[str]:
    """Returns the arguments with which another command reads the same documents.

    Args:
        patterns: values of `--input`.
        options: values of the other options of `corpus_options`, by name.
    """
    arguments = []
    for pattern in patterns:
        arguments += ["--input", pattern]
    for name in options["text_columns"]:
        arguments += ["--text-column", name]
    if options["document_separator"] is not None:
        arguments += ["--document-separator", options["document_separator"]]
    if options["follow_links"]:
        arguments.append("--follow-links")
    return arguments


class _Commands(Mapping[str, click.Command]):
    """Maps names to commands. A command is imported when it is looked up."""

    def __getitem__(self, name: str) -> click.Command:
        if name in _COMMANDS:
            return load(_COMMANDS[name])
        for point in _entry_points().select(name=name):
            return _CommandOfPackage(point)
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({*_COMMANDS, *_entry_points().names}))

    def __len__(self) -> int:
        return len({*_COMMANDS, *_entry_points().names})


class _CommandOfPackage(click.Command):
    """Placeholder for a command of another package.

    It loads the package when the command is called, so `prepare --help` stays fast.
    """

    def __init__(self, point: EntryPoint) -> None:
        package = point.dist.name if point.dist else point.module
        super().__init__(point.name, help=f"Command of the package {package}.")
        self._point = point

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Loads the command and returns its context."""
        try:
            command = self._point.load()
        except (ImportError, AttributeError) as error:
            raise click.ClickException(
                f"prepare {self.name}: {self._point.value} cannot be loaded ({error}); mend or "
                "remove its package"
            ) from error
        return command.make_context(info_name, args, parent=parent, **extra)


def _entry_points() -> importlib.metadata.EntryPoints:
    return importlib.metadata.entry_points(group=ENTRY_POINTS)


@click.group(commands=_Commands())
def prepare() -> None:
    """Write vocabularies and records."""


@click.group()
def vocabulary() -> None:
    """Change the vocabulary of a preset."""


class _QuotedInput(WritingCommand):
    """A command that explains what to do when the shell has expanded the pattern of `--input`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Raises `UsageError` if more than one word follows `--input`."""
        for flag, first, second in zip(args, args[1:], args[2:], strict=False):
            if flag == "--input" and not second.startswith("-"):
                raise click.UsageError(
                    f"--input {first} {second}: takes one pattern; quote the pattern, as in "
                    "--input 'corpus/*.txt', or give --input again for each file"
                )
        return super().parse_args(ctx, args)


@click.command("vocabulary", cls=_QuotedInput)
@corpus_options
@case_options
@click.option("--output", default="vocab.txt", show_default=True, type=OUTPUT_PATH, metavar="FILE")
@overwrite_option
@click.option("--vocabulary-size", type=click.IntRange(min=100), required=True)
@click.option(
    "--letter-coverage",
    type=click.FloatRange(0, 1),
    default=LETTER_COVERAGE,
    show_default=True,
    help="Share of the characters of the text whose letters get entries, at least.",
)
def prepare_vocabulary(input_pattern: Sequence[str], output: str, **others: Any) -> None:
    """Train a WordPiece vocabulary."""
    from data_prep.text.vocabulary import write_vocabulary

    write_vocabulary(input_pattern, output, **others)
    command = ["spanbert-tf", "prepare", "pretraining", *_corpus_arguments(input_pattern, others)]
    text_rules = TextRules.of(others["lowercase"], others["strip_accents"])
    command += ["--vocabulary", output, *text_rules.options().split(), "--output", "records"]
    print_written(output, command)


@click.command("pretraining", cls=_QuotedInput, context_settings=_BEAM_CONTEXT)
@corpus_options
@vocabulary_options
@click.option("--output", required=True, type=OUTPUT_PATH, metavar="DIR")
@overwrite_option
@click.option("--sequence-length", type=click.IntRange(8, 65535), default=512, show_default=True)
@click.option("--sequences", type=click.Choice(["single", "pair"]), default="single")
@click.option("--annotate", default="", metavar="LIST", help="entities,noun_phrases (needs spaCy)")
@click.option(
    "--spacy-model",
    metavar="NAME",
    help=f"Name or path.  [default: that of --preset; else {DEFAULT_SPACY_MODEL}]",
)
@click.option(
    "--word-segmentation",
    type=click.Choice(get_args(WordSegmentation)),
    help="How to find the words that masking takes whole. spaces: for text that is segmented; "
    f"spacy: by --spacy-model.  [default: icu for {', '.join(WITH_ICU_WORDS)}; else none]",
)
@click.option("--validation-fraction", type=click.FloatRange(0, 0.5), default=0.01)
@click.option(
    "--deduplicate",
    type=click.Choice(["documents", "paragraphs"]),
    help="Leave out documents or paragraphs with the same words as an earlier one.",
)
@click.option("--num-shards", type=click.IntRange(min=1), help="Default: one per 32 MB of input.")
@click.option("--num-processes", type=click.IntRange(min=1), default=1, show_default=True)
@click.option(
    "--runner",
    metavar="NAME",
    help="Runner of Apache Beam in place of this machine: dask, flink, spark or another. "
    "Further options are those of the runner, for Dask --dask_client_address tcp://HOST:8786 or "
    "--dask_scheduler_file FILE, and --dask_npartitions N.",
)
@click.pass_context
def prepare_pretraining(
    context: click.Context,
    input_pattern: Sequence[str],
    annotate: str,
    runner: str | None,
    **others: Any,
) -> None:
    """Write pre-training records."""
    if others["num_processes"] == 1:  # several processes import it themselves
        import_tensorflow()
    from data_prep.beam.writing import write_pretraining_records
    from spanbert_tf.config import load_config

    beam_arguments = list(context.args)
    if runner:
        beam_arguments.insert(0, f"--runner={runner}")
    manifest = write_pretraining_records(
        input_pattern,
        annotate=[name for name in annotate.split(",") if name],
        beam_arguments=beam_arguments,
        **others,
    )
    output = others["output"]
    preset = others["preset"]
    config = "spanbert_base" if preset is None else "continue"
    data = load_config(config).data
    wanted = {"sequence_length": data.sequence_length, "sequences": data.sequences}
    options = ["--config", config]
    if settings := [f"data.{key}={value}" for key, value in manifest.differing(wanted).items()]:
        options += ["--set", *settings]
    begins_with = [] if preset is None else ["--initial-preset", preset]
    print_written(
        output,
        ["spanbert-tf", "inspect", output, *options],
        ["spanbert-tf", "pretrain", *options, *begins_with, "--data", output, "--output", "run"],
    )


@click.command("repair", cls=WritingCommand)
@click.argument("records", metavar="DIR", type=EXISTING_DIRECTORY)
@click.argument("output", metavar="DIR2", type=OUTPUT_PATH)
@overwrite_option
def prepare_repair(records: str, output: str, *, overwrite: bool) -> None:
    """Copy the undamaged pre-training records of DIR to DIR2.

    A run that was started with DIR resumes with DIR2.
    """
    from data_prep.repair import repair_records

    repair_records(records, output, overwrite=overwrite)
    run = ["--config", "CONFIG_OF_THE_RUN", "--data", output, "--output", "RUN"]
    print_written(output, ["spanbert-tf", "pretrain", *run])


@vocabulary.command("extend", cls=_QuotedInput)
@click.option("--preset", required=True, metavar="PRESET", help="The preset to extend.")
@language_of_preset_option
@click.option(
    "--input",
    "input_pattern",
    multiple=True,
    metavar="GLOB",
    help="Text files whose words are counted.",
)
@follow_links_option
@_separator_option
@text_column_option
@click.option("--size", type=click.IntRange(min=1), help="How many words of the text to add.")
@click.option(
    "--words", "words_file", metavar="FILE", help="In place of --size: a list, one word per line."
)
@click.option(
    "--num-markers",
    type=click.IntRange(min=0),
    default=NUM_MARKERS,
    show_default=True,
    help="Number of entries [unused1] … to keep for the markers of relation extraction.",
)
@click.option("--output", required=True, type=OUTPUT_PATH, metavar="PRESET2")
@overwrite_option
def vocabulary_extend(preset: str, output: str, **others: Any) -> None:
    """Add words of a text to the vocabulary of a preset. Each becomes one piece."""
    import_keras()
    from data_prep.text.added_words import extend_vocabulary

    extend_vocabulary(preset, output, **others)
    corpus = _corpus_arguments(others["input_pattern"] or ["TEXT"], others)
    command = ["spanbert-tf", "prepare", "pretraining", *corpus]
    command += ["--preset", output, "--output", "records"]
    pretrain = ["spanbert-tf", "pretrain", "--config", "continue", "--initial-preset", output]
    pretrain += ["--data", "records", "--output", "run"]
    print_written(output, command, pretrain)
