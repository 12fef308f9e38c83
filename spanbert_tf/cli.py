"""The command line. Each command parses its options and calls one function.

This module never imports TensorFlow or Keras; the function of a command does. So `--help` is fast.
"""

import importlib.util
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from data_prep.cli import corpus_options, prepare, text_column_option, vocabulary
from spanbert_tf.command_line import (
    OUTPUT_PATH,
    RECORDS_PATH,
    RUN_PATH,
    WORK_PATH,
    ModelCommand,
    SeveralValues,
    WritingCommand,
    backend_changed_option,
    case_options_with,
    devices_option,
    language_of_preset_option,
    language_option,
    overwrite_option,
    quiet_libraries,
    run_command,
    set_option,
    show_library_logs,
)
from spanbert_tf.errors import ConfigurationError
from spanbert_tf.lazy import import_keras
from spanbert_tf.task_cli import evaluate, finetune, glue, predict
from spanbert_tf.terminal import print_line


class _JaxCommand(SeveralValues):
    """A command that always runs on JAX, whatever backend Keras' settings name."""

    def backend(self) -> str:
        """Returns `"jax"` if JAX is installed."""
        os.environ["KERAS_BACKEND"] = "jax"
        return super().backend()


@click.group()
@click.option("--debug", is_flag=True, help="Show tracebacks, warnings and TensorFlow's own log.")
@click.version_option(package_name="spanbert_tf")
def cli(debug: bool) -> None:
    """Pre-train, fine-tune and serve SpanBERT with TensorFlow and Keras."""
    if debug:
        show_library_logs()
    else:
        quiet_libraries()


for command in (prepare, vocabulary, finetune, evaluate, predict, glue):
    cli.add_command(command)


@cli.command(cls=ModelCommand)
@click.option(
    "--output",
    default="spanbert_quickstart",
    show_default=True,
    type=WORK_PATH,
    metavar="DIR",
)
@click.option(
    "--input",
    "input_pattern",
    metavar="GLOB",
    help="Text, or tables such as Parquet.  [default: text shipped with Python]",
)
@text_column_option
def quickstart(output: str, input_pattern: str | None, text_columns: Sequence[str]) -> None:
    """The whole way from text to a served model, in a few minutes on a CPU."""
    if text_columns and input_pattern is None:
        raise click.UsageError("--text-column is for the tables of --input")
    from spanbert_tf.process import command_line

    # The export needs TensorFlow. So with another backend, a child process trains.
    backend = os.environ["KERAS_BACKEND"]
    os.environ["KERAS_BACKEND"] = "tensorflow"
    trained_by: list[str] = []
    if backend != "tensorflow":
        trained_by += ["env", f"KERAS_BACKEND={backend}"]
        trained_by += command_line(["pretrain"])
    import_keras(leaves_cards=bool(trained_by))
    from spanbert_tf.studies.quickstart import run_quickstart

    run_quickstart(output, input_pattern, text_columns=text_columns, trained_by=trained_by)


@cli.command(cls=SeveralValues)
@click.argument("data", type=RECORDS_PATH)
@click.option("--config", default="spanbert_base", show_default=True, metavar="NAME|FILE")
@set_option
@click.option(
    "--png",
    type=OUTPUT_PATH,
    metavar="FILE",
    help="Write the histogram of span lengths as a picture.",
)
@click.option("--num-examples", type=click.IntRange(min=0), default=3, show_default=True)
@overwrite_option
def inspect(data: str, config: str, overrides: Sequence[str], **options: Any) -> None:
    """Show masked examples, span lengths and counts of a set of records."""
    from spanbert_tf.config import load_config

    load_config(config, overrides)  # reports mistakes before the slow import of TensorFlow
    import_keras()
    from spanbert_tf.tasks.inspection import inspect_records

    inspect_records(data, config, overrides, **options)


@cli.command(cls=SeveralValues)
@click.option("--config", required=True, metavar="NAME|FILE")
@click.option("--data", required=True, type=RECORDS_PATH)
@click.option("--output", required=True, type=RUN_PATH, metavar="RUN")
@click.option("--initial-preset", metavar="PRESET", help="Continue from an existing encoder.")
@devices_option
@backend_changed_option
@set_option
def pretrain(
    config: str,
    data: str,
    output: str,
    initial_preset: str | None,
    num_devices: int | None,
    backend_changed: bool,
    overrides: Sequence[str],
) -> None:
    """Pre-train a model; run again with the same RUN, it resumes."""
    from spanbert_tf.config import load_run_config
    from spanbert_tf.conversion.converted_presets import converted_preset

    if initial_preset is not None:
        initial_preset = converted_preset(initial_preset, records=data)
    # Mistakes are reported before the slow import of TensorFlow.
    settings = load_run_config(config, overrides, preset=initial_preset, run=output)
    from spanbert_tf.process import supervise
    from spanbert_tf.training.cluster import run_lock

    supervise(settings.training.strategy)
    # `run_pretraining` locks as well, for programs; here the lock also covers the fillings.
    with run_lock(output, settings.training.strategy, "spanbert-tf pretrain"):
        import_keras()
        from spanbert_tf.pretraining.job import run_pretraining

        model = run_pretraining(
            settings,
            data,
            output,
            initial_preset,
            num_devices=num_devices,
            backend_changed=backend_changed,
        )
        has_ended = model is not None
        del model  # frees its memory for what follows
        is_one_process = settings.training.strategy in ("one_device", "mirrored")
        is_on_tensorflow = os.environ["KERAS_BACKEND"] == "tensorflow"
        if initial_preset and has_ended and is_one_process and is_on_tensorflow:
            from spanbert_tf.config.run import PRESET
            from spanbert_tf.studies.fillings import show_what_was_learned

            show_what_was_learned(initial_preset, os.path.join(output, PRESET), data)


@cli.command(cls=SeveralValues)
@click.option("--configs", required=True, multiple=True, metavar="NAME|FILE ...")
@click.option("--data", required=True, type=RECORDS_PATH)
@click.option("--output", default="comparison", show_default=True, type=WORK_PATH, metavar="DIR")
@click.option("--steps", required=True, type=click.IntRange(min=1))
@click.option("--seeds", multiple=True, type=click.IntRange(min=0), default=[1], metavar="N ...")
@click.option(
    "--initial-preset",
    metavar="PRESET",
    help="Compare ways of continuing from an existing encoder, in its size.",
)
@click.option(
    "--keep-checkpoints", is_flag=True, help="Finished runs keep them; else their presets alone."
)
@set_option
def compare(
    configs: Sequence[str], data: str, output: str, initial_preset: str | None, **options: Any
) -> None:
    """Train small versions of several systems and compare what they reach."""
    from spanbert_tf.conversion.converted_presets import converted_preset

    if initial_preset is not None:
        initial_preset = converted_preset(initial_preset, records=data)
    import_keras()
    from spanbert_tf.studies.comparison import compare_systems

    compare_systems(configs, data, output, initial_preset=initial_preset, **options)


@cli.command(cls=SeveralValues)
@click.option(
    "--preset",
    required=True,
    metavar="PRESET|DIR",
    help="The encoder: a preset, or a directory of Hugging Face.",
)
@language_of_preset_option
@corpus_options
@click.option("--output", required=True, type=WORK_PATH, metavar="DIR")
@click.option(
    "--words", type=click.IntRange(min=1), help="Words of the text to add to the vocabulary."
)
@click.option("--steps", type=click.IntRange(min=1), help="Steps of training.  [default: 2000]")
@click.option(
    "--hours",
    type=click.FloatRange(min=0, min_open=True),
    help="In place of --steps: how long to train here. The speed is measured first.",
)
@click.option(
    "--task-data",
    multiple=True,
    metavar="TASK=DIR",
    help="Fine-tune both encoders by a configuration, with DIR's train.* and dev.*; repeatable.",
)
@click.option(
    "--task-prepare",
    multiple=True,
    metavar="TASK=COMMAND",
    help="Command of prepare for these files, with its options: 'rte=glue --task rte'.",
)
@devices_option
@backend_changed_option
@set_option
def adapt(
    preset: str,
    input_pattern: Sequence[str],
    text_columns: Sequence[str],
    document_separator: str | None,
    follow_links: bool,
    output: str,
    **options: Any,
) -> None:
    """Train an encoder further on your text, and compare it with what it was."""
    if options["steps"] is not None and options["hours"] is not None:
        raise click.UsageError("give either --steps or --hours")
    import_keras()
    from spanbert_tf.studies.adapt import TextSource, run_adapt

    text = TextSource(input_pattern, text_columns, document_separator, follow_links)
    run_adapt(preset, text, output, **options)


@cli.command(cls=_JaxCommand)
@click.option("--config", required=True, metavar="NAME|FILE", help="Of pretrain or of finetune.")
@click.option("--device", required=True, metavar="CHIPS", help="v5e:2x4, v5p:4x4x4, h100:8 …")
@click.option("--rows", type=click.IntRange(min=1), help="Of a batch. [training.batch_size]")
@click.option(
    "--encoder",
    metavar="NAME|FILE",
    help="To fine-tune or continue: the configuration that it was pre-trained by.  [spanbert_base]",
)
@set_option
def plan(
    config: str,
    device: str,
    encoder: str | None,
    overrides: Sequence[str],
    rows: int | None,
) -> None:
    """What a run takes on chips that are not here: its step is compiled for them."""
    from spanbert_tf.config import load_config
    from spanbert_tf.config.settings import kind_of
    from spanbert_tf.studies.chips import describe_to_compilers
    from spanbert_tf.tasks.table import load_task_config

    # Mistakes are reported before the slow import of TensorFlow.
    load = load_task_config if kind_of(config) == "finetune" else load_config
    settings = load(config, overrides)
    pretraining = load_config(encoder) if encoder else None
    describe_to_compilers(device)
    import_keras()
    from spanbert_tf.studies.plan import run_plan

    run_plan(settings, device, encoder=pretraining, rows=rows)


@cli.command(cls=WritingCommand)
@click.option(
    "--from",
    "source_format",
    required=True,
    type=click.Choice(["huggingface", "fairseq", "tf1", "model_garden", "tfhub", "keras"]),
)
@click.option(
    "--to",
    "target_format",
    required=True,
    type=click.Choice(["keras", "keras_bert", "huggingface", "tf1", "model_garden"]),
)
@click.option("--vocabulary", metavar="FILE", help="For a source that holds none.")
@case_options_with(
    default=None,
    lowercase="For a source that does not state its casing.",
    accents="With --lowercase: the source's text keeps its accents.",
)
@click.option(
    "--pairs", "is_pair", is_flag=True, help="A text classifier's source reads pairs of texts."
)
@click.option(
    "--positions",
    type=click.Choice(["absolute", "segment_aware", "absolute_with_paragraph_and_sentence"]),
    help="For a checkpoint of SegaBERT's authors: which of its tables are read.",
)
@language_option("en")
@click.option(
    "--without-next-steps",
    "show_next_steps",
    flag_value=False,
    default=True,
    type=bool,
    hidden=True,
    help="For a command that converts in passing.",
)
@click.argument("source", metavar="SRC")
@click.argument("destination", type=OUTPUT_PATH, metavar="DST")
@overwrite_option
def convert(
    source_format: str, target_format: str, source: str, destination: str, **options: Any
) -> None:
    """Convert a checkpoint: a directory, a .tar.gz archive or a preset."""
    import_keras()
    from spanbert_tf.conversion.convert import convert_checkpoint

    convert_checkpoint(source_format, target_format, source, destination, **options)


@cli.command(cls=WritingCommand)
@click.option("--preset", required=True, metavar="PRESET", help="Directory, hf://, gs:// …")
@click.option(
    "--output",
    required=True,
    type=OUTPUT_PATH,
    metavar="DIR",
    help="The model goes to DIR/<version>/.",
)
@click.option("--version", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--top-k", type=click.IntRange(min=1), default=5, show_default=True)
@click.option(
    "--precision",
    type=click.Choice(["float32", "bfloat16"]),
    default="float32",
    show_default=True,
    help="bfloat16: half the size.",
)
@click.option(
    "--format",
    "file_format",
    type=click.Choice(["saved_model", "onnx", "litert"]),
    default="saved_model",
    show_default=True,
    help="All but saved_model take rows of ids.",
)
@click.option("--sequence-length", type=click.IntRange(min=4), help="Positions of litert's row.")
@click.option("--int8", is_flag=True, help="Weights of 8 bits, with litert.")
@click.option("--embeddings", is_flag=True, help="Vectors of texts, from any encoder.")
@click.option(
    "--without-text-ops",
    is_flag=True,
    help="Take rows of ids alone: it loads without TensorFlow Text.",
)
@language_of_preset_option
@overwrite_option
def export(preset: str, output: str, language: str | None, **options: Any) -> None:
    """Write a SavedModel for TF Serving, texts in, predictions out; or a file of ids."""
    from spanbert_tf.conversion.converted_presets import converted_preset

    preset = converted_preset(preset, language=language)
    import_keras()
    from spanbert_tf.tasks.prediction import export_preset

    export_preset(preset, output, **options)


@cli.command(cls=WritingCommand)
@click.argument("paths", nargs=-1, required=True, metavar="EXPORT_OR_PRESET ...")
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS")
@click.option("--port", type=click.IntRange(0, 65535), default=8501, show_default=True)
@click.option("--api-key-file", metavar="FILE", help="Holds the key that each request must state.")
@click.option(
    "--top-k",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="Most answers to an input of a preset; an export has its own.",
)
@click.option(
    "--max-batch-tokens",
    type=click.IntRange(min=1),
    default=16_384,
    show_default=True,
    help="Budget of what is computed at once.",
)
@click.option(
    "--max-body-bytes",
    type=click.IntRange(min=1),
    default=2_000_000,
    show_default=True,
    help="Larger requests are refused.",
)
def serve(paths: Sequence[str], **options: Any) -> None:
    """Answer HTTP requests with exported models, by the protocols of other servers too."""
    for package in ("starlette", "uvicorn", "prometheus_client"):
        if importlib.util.find_spec(package) is None:
            raise ConfigurationError(f"serve needs {package}: pip install 'spanbert_tf[serve]'")
    import_keras()
    from spanbert_tf.server.application import run_server

    run_server(paths, **options)


@cli.command(cls=WritingCommand)
@click.option("--show", metavar="NAME|FILE", help="Print all values of one, as YAML.")
@set_option
def configs(show: str | None, overrides: Sequence[str]) -> None:
    """List the configurations that are shipped."""
    from spanbert_tf.config.shipped import resolved_text, shipped_table
    from spanbert_tf.tasks.table import load_task_config

    if overrides and not show:
        raise click.UsageError("--set needs --show")
    text = resolved_text(show, load_task_config, overrides) if show else shipped_table()
    for line in text.removesuffix("\n").split("\n"):
        print_line(line)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line and exits the process."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    run_command(cli, "spanbert-tf", arguments, debug="--debug" in arguments)


if __name__ == "__main__":
    main()
