"""The command line: parses, imports lazily, and calls one function per command.

TensorFlow and Keras are imported by the function that a command calls, never here, so that every
`--help` answers at once.
"""

import os
import sys
import traceback
from collections.abc import Sequence

import click

from spanbert_tf.cli_options import EXISTING_DIRECTORY, set_option
from spanbert_tf.cli_prepare import prepare
from spanbert_tf.cli_tasks import evaluate, finetune, predict
from spanbert_tf.errors import SpanBertError, TrainingError

EXIT_DONE, EXIT_FAILED, EXIT_BAD_INPUT = 0, 1, 2


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--debug", is_flag=True, help="Show tracebacks and TensorFlow's own log.")
@click.version_option(package_name="spanbert_tf")
def cli(debug: bool) -> None:
    """Pre-train, fine-tune and serve SpanBERT with TensorFlow and Keras."""
    if not debug:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


for command in (prepare, finetune, evaluate, predict):
    cli.add_command(command)


@cli.command()
@click.option("--output", default="spanbert_quickstart", show_default=True, metavar="DIR")
@click.option("--input", "input_pattern", metavar="GLOB", help="Default: text shipped with Python.")
def quickstart(output: str, input_pattern: str | None) -> None:
    """The whole way from text to a served model, in a few minutes on a CPU."""
    from spanbert_tf.quickstart import run_quickstart

    run_quickstart(output, input_pattern)


@cli.command()
@click.argument("data", type=EXISTING_DIRECTORY)
@click.option("--config", default="spanbert_base", show_default=True, metavar="NAME|FILE")
@set_option
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
@click.option("--data", required=True, type=EXISTING_DIRECTORY)
@click.option("--output", required=True, metavar="RUN")
@click.option("--initial-preset", metavar="PRESET", help="Continue from an existing encoder.")
@click.option("--devices", type=click.IntRange(min=1), help="Devices of this machine. [all]")
@set_option
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
@click.option("--data", required=True, type=EXISTING_DIRECTORY)
@click.option("--output", default="comparison", show_default=True, metavar="DIR")
@click.option("--steps", required=True, type=click.IntRange(min=1))
@click.option("--seeds", multiple=True, type=click.IntRange(min=0), default=[1], metavar="N ...")
@set_option
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
def export(preset: str, output: str, **options: object) -> None:
    """Write a SavedModel for TF Serving: texts in, fillings or answers out."""
    from spanbert_tf.models import SpanBertQuestionAnswerer
    from spanbert_tf.models.task_presets import is_task_preset
    from spanbert_tf.serving.masked_lm import export_masked_lm
    from spanbert_tf.serving.question_answering import export_question_answerer

    is_answerer = is_task_preset(preset, SpanBertQuestionAnswerer)
    export_model = export_question_answerer if is_answerer else export_masked_lm
    export_model(preset, output, **options)


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
