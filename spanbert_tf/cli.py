"""The command line: parses, imports lazily, and calls one function per command.

TensorFlow and Keras are imported by the function that a command calls, never here, so that every
`--help` answers at once.
"""

import os
import sys
import traceback
from collections.abc import Callable, Sequence

import click

from spanbert_tf.errors import SpanBertError, TrainingError

EXIT_DONE, EXIT_FAILED, EXIT_BAD_INPUT = 0, 1, 2
_EXISTING_DIRECTORY = click.Path(exists=True, file_okay=False)
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
_set_option = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a key of the configuration, for example training.steps=1000.",
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--debug", is_flag=True, help="Show tracebacks and TensorFlow's own log.")
@click.version_option(package_name="spanbert_tf")
def cli(debug: bool) -> None:
    """Pre-train, fine-tune and serve SpanBERT with TensorFlow and Keras."""
    if not debug:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


@cli.command()
@click.option("--output", default="spanbert_quickstart", show_default=True, metavar="DIR")
@click.option("--input", "input_pattern", metavar="GLOB", help="Default: text shipped with Python.")
def quickstart(output: str, input_pattern: str | None) -> None:
    """The whole way from text to a served model, in a few minutes on a CPU."""
    from spanbert_tf.quickstart import run_quickstart

    run_quickstart(output, input_pattern)


@cli.group()
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
def prepare_mrqa(
    input_path: str,
    output: str,
    vocabulary: str,
    lowercase: bool,
    allow_missing_header: bool,
    **options: int,
) -> None:
    """Write records of one of the MRQA shared task's sets."""
    from data_prep.mrqa import read_mrqa
    from data_prep.question_answering import QuestionOptions, write_questions

    write_questions(
        read_mrqa(input_path, allow_missing_header=allow_missing_header),
        output,
        vocabulary=vocabulary,
        lowercase=lowercase,
        options=QuestionOptions(**options),
    )


@cli.command()
@click.argument("data", type=_EXISTING_DIRECTORY)
@click.option("--config", default="spanbert_base", show_default=True, metavar="NAME|FILE")
@_set_option
@click.option("--png", metavar="FILE", help="Write the histogram of span lengths as a picture.")
@click.option("--num-examples", type=click.IntRange(min=0), default=3, show_default=True)
def inspect(
    data: str, config: str, overrides: Sequence[str], png: str | None, num_examples: int
) -> None:
    """Show masked examples, span lengths and counts of a set of records."""
    from spanbert_tf.inspection import inspect_records

    inspect_records(data, config, overrides, png=png, num_examples=num_examples)


@cli.command()
@click.option("--config", required=True, metavar="NAME|FILE")
@click.option("--data", required=True, type=_EXISTING_DIRECTORY)
@click.option("--output", required=True, metavar="RUN")
@click.option("--initial-preset", metavar="PRESET", help="Continue from an existing encoder.")
@click.option("--devices", type=click.IntRange(min=1), help="Devices of this machine. [all]")
@_set_option
def pretrain(
    config: str,
    data: str,
    output: str,
    initial_preset: str | None,
    devices: int | None,
    overrides: Sequence[str],
) -> None:
    """Pre-train a model; run again with the same RUN, it resumes."""
    from spanbert_tf.config import load_config
    from spanbert_tf.training.supervision import is_supervised, run_supervised

    settings = load_config(config, overrides)
    if settings.training.strategy == "multi_worker" and not is_supervised():
        sys.exit(run_supervised(sys.argv[1:]))
    from spanbert_tf.training.pretraining import run_pretraining

    run_pretraining(settings, data, output, initial_preset, num_devices=devices)


@cli.command()
@click.option("--config", required=True, metavar="NAME|FILE")
@click.option("--preset", required=True, metavar="PRESET")
@click.option("--data", required=True, type=_EXISTING_DIRECTORY)
@click.option("--validation-data", type=_EXISTING_DIRECTORY, help="Scored at the end.")
@click.option("--output", required=True, metavar="RUN")
@click.option("--grid", is_flag=True, help="Try the configuration's grid; show the best.")
@_set_option
def finetune(
    config: str,
    preset: str,
    data: str,
    validation_data: str | None,
    output: str,
    grid: bool,
    overrides: Sequence[str],
) -> None:
    """Fine-tune an encoder for question answering; run again, it resumes."""
    from spanbert_tf.finetuning_config import load_finetuning_config
    from spanbert_tf.training.grid import run_grid
    from spanbert_tf.training.question_answering import run_question_answering

    if grid and not validation_data:
        raise click.UsageError("--grid needs --validation-data")
    settings = load_finetuning_config(config, overrides)
    if grid:
        run_grid(settings, preset, data, output, validation_data)
        return
    run_question_answering(settings, preset, data, output, validation_data)


@cli.command()
@click.option("--preset", required=True, metavar="PRESET")
@click.option("--data", required=True, type=_EXISTING_DIRECTORY)
@click.option("--report", metavar="FILE", help="Write a page that shows questions and answers.")
@click.option("--batch-size", type=click.IntRange(min=1), default=32, show_default=True)
def evaluate(preset: str, data: str, report: str | None, batch_size: int) -> None:
    """Score a question answerer by the official rules."""
    from spanbert_tf.question_answering.prediction import run_evaluation

    run_evaluation(preset, data, report=report, batch_size=batch_size)


@cli.command()
@click.option("--preset", required=True, metavar="PRESET")
@click.option("--data", required=True, type=_EXISTING_DIRECTORY)
@click.option("--output", required=True, metavar="DIR")
@click.option("--batch-size", type=click.IntRange(min=1), default=32, show_default=True)
def predict(preset: str, data: str, output: str, batch_size: int) -> None:
    """Write the answers to questions in SQuAD's official layout."""
    from spanbert_tf.question_answering.prediction import run_prediction

    run_prediction(preset, data, output, batch_size=batch_size)


class _SeveralValues(click.Command):
    """A command whose repeatable options take several values after one flag: `--seeds 1 2 3`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Repeats the flag before each value, as click wants it: `--seeds 1 --seeds 2 …`."""
        options = [param for param in self.params if isinstance(param, click.Option)]
        repeatable = {flag for option in options if option.multiple for flag in option.opts}
        repeated, flag = [], None
        for argument in args:
            if argument.startswith("-"):
                flag = argument if argument in repeatable else None
                if flag is None:
                    repeated.append(argument)
            else:
                repeated += [argument] if flag is None else [flag, argument]
        return super().parse_args(ctx, repeated)


@cli.command(cls=_SeveralValues)
@click.option("--configs", required=True, multiple=True, metavar="NAME|FILE ...")
@click.option("--data", required=True, type=_EXISTING_DIRECTORY)
@click.option("--output", default="comparison", show_default=True, metavar="DIR")
@click.option("--steps", required=True, type=click.IntRange(min=1))
@click.option("--seeds", multiple=True, type=click.IntRange(min=0), default=[1], metavar="N ...")
@_set_option
def compare(
    configs: Sequence[str],
    data: str,
    output: str,
    steps: int,
    seeds: Sequence[int],
    overrides: Sequence[str],
) -> None:
    """Train small versions of several systems and compare what they reach."""
    from spanbert_tf.comparison import compare_systems

    compare_systems(configs, data, output, steps=steps, seeds=seeds, overrides=overrides)


@cli.command()
@click.option(
    "--from",
    "source_format",
    required=True,
    type=click.Choice(["huggingface", "fairseq", "tf1", "keras"]),
)
@click.option(
    "--to",
    "target_format",
    required=True,
    type=click.Choice(["keras", "keras_bert", "huggingface", "tf1"]),
)
@click.option("--vocabulary", metavar="FILE", help="For a source that holds none.")
@click.option(
    "--lowercase/--cased", default=None, help="For a source that does not state its casing."
)
@click.argument("source", metavar="SRC")
@click.argument("destination", metavar="DST")
def convert(
    source_format: str, target_format: str, source: str, destination: str, **options: object
) -> None:
    """Convert a checkpoint: a directory, a .tar.gz archive or a preset."""
    from spanbert_tf.conversion.convert import convert_checkpoint

    convert_checkpoint(source_format, target_format, source, destination, **options)


@cli.command()
@click.option("--preset", required=True, metavar="PRESET", help="Directory, hf://, gs:// …")
@click.option("--output", required=True, metavar="DIR", help="The model goes to DIR/<version>/.")
@click.option("--version", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--top-k", type=click.IntRange(min=1), default=5, show_default=True)
@click.option(
    "--precision",
    type=click.Choice(["float32", "bfloat16", "int8"]),
    default="float32",
    show_default=True,
    help="bfloat16: half the size. int8: dense layers in a quarter, slower on a processor.",
)
def export(preset: str, output: str, precision: str, **options: int) -> None:
    """Write a SavedModel for TF Serving: texts in, fillings or answers out."""
    from spanbert_tf.models import SpanBertQuestionAnswerer
    from spanbert_tf.models.task_presets import is_task_preset
    from spanbert_tf.serving.masked_lm import export_masked_lm
    from spanbert_tf.serving.question_answering import export_question_answerer

    if not is_task_preset(preset, SpanBertQuestionAnswerer):
        export_masked_lm(preset, output, precision=precision, **options)
    elif precision == "float32":
        export_question_answerer(preset, output, **options)
    else:
        raise click.UsageError(f"--precision {precision}: only masked-language models have it yet")


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line and exits the process with the status that the design fixes."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        cli.main(arguments, prog_name="spanbert-tf", standalone_mode=False)
    except click.ClickException as error:
        click.echo(f"spanbert-tf: {' '.join(error.format_message().split())}", err=True)
        sys.exit(EXIT_BAD_INPUT)
    except (click.Abort, KeyboardInterrupt):
        click.echo("spanbert-tf: interrupted", err=True)
        sys.exit(EXIT_FAILED)
    except SpanBertError as error:
        if "--debug" in arguments:
            traceback.print_exc()
        click.echo(f"spanbert-tf: {error}", err=True)
        sys.exit(EXIT_FAILED if isinstance(error, TrainingError) else EXIT_BAD_INPUT)
    sys.exit(EXIT_DONE)


if __name__ == "__main__":
    main()
