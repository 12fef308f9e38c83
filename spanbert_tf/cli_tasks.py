"""The commands of tasks: `finetune`, `evaluate` and `predict`."""

from collections.abc import Sequence

import click

from spanbert_tf.cli_options import EXISTING_DIRECTORY, set_option


@click.command()
@click.option("--config", required=True, metavar="NAME|FILE")
@click.option("--preset", required=True, metavar="PRESET")
@click.option("--data", required=True, type=EXISTING_DIRECTORY)
@click.option("--validation-data", type=EXISTING_DIRECTORY, help="Scored at the end.")
@click.option("--output", required=True, metavar="RUN")
@click.option("--grid", is_flag=True, help="Try the configuration's grid; show the best.")
@set_option
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


@click.command()
@click.option("--preset", metavar="PRESET")
@click.option("--baseline", is_flag=True, help="Words beside shared ones, in place of a preset.")
@click.option(
    "--data",
    required=True,
    multiple=True,
    type=EXISTING_DIRECTORY,
    help="Give it again for more sets; then their mean is printed, too.",
)
@click.option("--report", metavar="FILE", help="Write a page that shows questions and answers.")
@click.option("--batch-size", type=click.IntRange(min=1), default=32, show_default=True)
def evaluate(
    preset: str | None, baseline: bool, data: Sequence[str], report: str | None, batch_size: int
) -> None:
    """Score a question answerer by the official rules."""
    from spanbert_tf.question_answering.prediction import run_baseline_evaluation, run_evaluation

    if baseline == bool(preset):
        raise click.UsageError("give either --preset or --baseline")
    if report and len(data) > 1:
        raise click.UsageError("--report shows the questions of one --data")
    if baseline:
        run_baseline_evaluation(data, report=report)
    else:
        run_evaluation(preset, data, report=report, batch_size=batch_size)


@click.command()
@click.option("--preset", required=True, metavar="PRESET")
@click.option("--data", required=True, type=EXISTING_DIRECTORY)
@click.option("--output", required=True, metavar="DIR")
@click.option("--batch-size", type=click.IntRange(min=1), default=32, show_default=True)
def predict(preset: str, data: str, output: str, batch_size: int) -> None:
    """Write the answers to questions in SQuAD's official layout."""
    from spanbert_tf.question_answering.prediction import run_prediction

    run_prediction(preset, data, output, batch_size=batch_size)
