"""The commands of tasks: `finetune`, `evaluate`, `predict` and `glue`."""

from collections.abc import Sequence
from typing import Any

import click

from spanbert_tf.command_line import (
    EXISTING_DIRECTORY,
    OUTPUT_PATH,
    RECORDS_PATH,
    RUN_PATH,
    ModelCommand,
    SeveralValues,
    WritingCommand,
    backend_changed_option,
    devices_option,
    language_of_preset_option,
    overwrite_option,
    set_option,
)
from spanbert_tf.lazy import import_keras

precision_option = click.option(
    "--precision",
    type=click.Choice(["auto", "float32", "bfloat16"]),
    default="float32",
    show_default=True,
    help="auto: what this machine computes fastest in.",
)


@click.command(cls=SeveralValues)
@click.option("--config", required=True, metavar="NAME|FILE")
@click.option("--preset", required=True, metavar="PRESET")
@click.option("--data", required=True, type=RECORDS_PATH)
@click.option("--validation-data", type=RECORDS_PATH, help="Scored as configured.")
@click.option("--output", required=True, type=RUN_PATH, metavar="RUN")
@click.option("--grid", is_flag=True, help="Try the configuration's grid; show the best.")
@click.option(
    "--keep-checkpoints", is_flag=True, help="Finished runs of a grid keep them; else the presets."
)
@devices_option
@backend_changed_option
@set_option
def finetune(
    config: str,
    overrides: Sequence[str],
    preset: str,
    grid: bool,
    keep_checkpoints: bool,
    backend_changed: bool,
    **options: Any,
) -> None:
    """Fine-tune an encoder for the configuration's task; run again, it resumes."""
    if grid and not options["validation_data"]:
        raise click.UsageError("--grid needs --validation-data")
    if keep_checkpoints and not grid:
        raise click.UsageError("--keep-checkpoints is for --grid alone: other runs keep them")
    if backend_changed and grid:
        raise click.UsageError("--backend-changed is for one run; leave out --grid")
    from spanbert_tf.tasks.table import load_task_config

    # Mistakes are reported before the slow import of TensorFlow.
    settings = load_task_config(config, overrides)
    from spanbert_tf.conversion.converted_presets import converted_preset
    from spanbert_tf.files.kinds import refuse_no_preset
    from spanbert_tf.process import supervise
    from spanbert_tf.training.cluster import run_lock

    supervise(settings.training.strategy)
    with run_lock(options["output"], settings.training.strategy, "spanbert-tf finetune"):
        preset = converted_preset(preset, records=options["data"])
        refuse_no_preset(preset)
        import_keras()
        if grid:
            from spanbert_tf.studies.grid import run_grid

            run_grid(settings, preset, keep_checkpoints=keep_checkpoints, **options)
            return
        from spanbert_tf.tasks.finetuning import run_finetuning

        run_finetuning(settings, preset, backend_changed=backend_changed, **options)


@click.command(cls=ModelCommand)
@click.option("--preset", metavar="PRESET")
@click.option(
    "--baseline", is_flag=True, help="The task's rule without training, in place of a preset."
)
@click.option(
    "--data",
    required=True,
    multiple=True,
    type=RECORDS_PATH,
    help="Give it again for more sets; then their mean is printed, too.",
)
@click.option(
    "--metric",
    metavar="NAME",
    help="The script that scores answers to questions: squad, mlqa or cmrc2018.  [default: squad]",
)
@click.option(
    "--report",
    type=OUTPUT_PATH,
    metavar="FILE",
    help="Write a page that shows each record.",
)
@click.option("--batch-size", type=click.IntRange(min=1), default=32, show_default=True)
@precision_option
@overwrite_option
def evaluate(
    preset: str | None,
    baseline: bool,
    data: Sequence[str],
    report: str | None,
    **options: Any,
) -> None:
    """Score a fine-tuned model by the official rules of its task."""
    if baseline == bool(preset):
        raise click.UsageError("give either --preset or --baseline")
    if report and len(data) > 1:
        raise click.UsageError("--report shows the records of one --data")
    from spanbert_tf.conversion.converted_presets import converted_preset

    if preset is not None:
        preset = converted_preset(preset, records=data[0])
    import_keras()
    from spanbert_tf.tasks.evaluation import run_evaluation

    run_evaluation(preset, data, report=report, **options)


@click.command(cls=WritingCommand)
@click.option("--preset", required=True, metavar="PRESET")
@click.option("--data", type=RECORDS_PATH, help="Records: the task's official files.")
@click.option("--input", "source", metavar="FILE|-", help="Raw inputs, a line each.")
@click.option(
    "--format",
    "source_format",
    type=click.Choice(["jsonlines", "text"]),
    help="Lines of --input: JSON objects of the task's fields, or texts.  [default: jsonlines]",
)
@click.option("--output", required=True, type=OUTPUT_PATH, metavar="DIR|FILE|-")
@language_of_preset_option
@click.option("--top-k", type=click.IntRange(min=1), help="Predictions of each --input.")
@click.option("--batch-size", type=click.IntRange(min=1), default=32, show_default=True)
@precision_option
@overwrite_option
def predict(
    preset: str,
    data: str | None,
    source: str | None,
    source_format: str | None,
    output: str,
    language: str | None,
    top_k: int | None,
    **options: Any,
) -> None:
    """Predict for records (--data, official files) or raw inputs (--input, lines)."""
    if (data is None) == (source is None):
        raise click.UsageError("give either --data or --input")
    if data is not None and top_k is not None:
        raise click.UsageError("--top-k is for --input alone; leave it out")
    if data is not None and source_format is not None:
        raise click.UsageError("--format is for --input alone; leave it out")
    if data is not None and language is not None:
        raise click.UsageError("--language is for --input alone: the records tell it; leave it out")
    if data is not None and output == "-":
        raise click.UsageError("--output - is for --input alone; name a directory")
    from spanbert_tf.conversion.converted_presets import converted_preset

    preset = converted_preset(preset, language=language, records=data)
    import_keras()
    if source is not None:
        from spanbert_tf.tasks.prediction import predict_lines

        predict_lines(
            preset,
            source,
            output,
            source_format=source_format or "jsonlines",
            top_k=top_k,
            **options,
        )
    elif data is not None:
        from spanbert_tf.tasks.prediction import run_prediction

        run_prediction(preset, data, output, **options)


@click.command(cls=WritingCommand)
@click.argument("runs", type=EXISTING_DIRECTORY, metavar="RUNS")
@click.option("--submission", type=OUTPUT_PATH, metavar="ZIP", help="Write GLUE's zip.")
@overwrite_option
def glue(runs: str, submission: str | None, overwrite: bool) -> None:
    """The papers' GLUE tables from a folder of runs, and the submission."""
    from spanbert_tf.studies.glue import run_glue

    run_glue(runs, submission, overwrite=overwrite)
