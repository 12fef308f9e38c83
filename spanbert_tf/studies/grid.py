"""`finetune --grid`: trains with all combinations of a grid's values and finds the best one."""

import itertools
import os

import keras
import rich.table

from spanbert_tf.config import FinetuningConfig
from spanbert_tf.config.run import PRESET, check_equal_parts
from spanbert_tf.console import DataConsole
from spanbert_tf.errors import ConfigurationError
from spanbert_tf.files.paths import check_resumable
from spanbert_tf.files.written import print_written
from spanbert_tf.tasks.finetuning import best_evaluation, commands_with, run_finetuning
from spanbert_tf.tasks.lookup import open_records
from spanbert_tf.tasks.table import load_task
from spanbert_tf.terminal import print_line
from spanbert_tf.training.cluster import locks_run
from spanbert_tf.training.job import check_best


@locks_run
def run_grid(
    config: FinetuningConfig,
    preset: str,
    data: str,
    output: str,
    validation_data: str,
    *,
    num_devices: int | None = None,
    keep_checkpoints: bool = False,
) -> str | None:
    """Fine-tunes with each combination, and prints the scores as a table.

    If it is called again after an interruption, finished runs are not repeated.

    Args:
        config: configuration of the runs. Its `grid` has the values to try.
        preset: preset whose encoder the runs begin with.
        data: directory of the training records.
        output: directory that gets one directory for each run: `learning-rate-2e-05-batch-32`,
            followed by `-epochs-3` if the grid has epochs.
        validation_data: directory of the records that decide which run is best.
        num_devices: devices of each machine to use; by default all.
        keep_checkpoints: whether finished runs keep their checkpoints beside their presets.

    Returns:
        The directory of the best run. `None` if a signal ended a run, and for workers that are not
        the chief.

    Raises:
        BadInputError: a file or directory cannot be used.
        MismatchError: preset, records and configuration do not fit together.
    """
    if config.grid.epochs and config.training.max_steps:
        raise ConfigurationError(
            "training.max_steps: takes the place of the epochs, of which this grid tries "
            "several; leave it out, or --set grid.epochs=[]"
        )
    check_resumable(output, "runs of a grid", ("learning-rate-*-batch-*",))
    task = load_task(config.task)
    training_records = open_records(data, task)
    validation_records = open_records(validation_data, task)
    for size in config.grid.batch_sizes:
        check_equal_parts(
            "grid.batch_sizes",
            size,
            num_devices=1,
            accumulation_steps=config.training.accumulation_steps,
            advice="change one of them",
        )
    chosen_by = best_evaluation(task, config, validation_records)
    results: dict[str, dict[str, float]] = {}
    points: dict[str, dict[str, str]] = {}
    grid = config.grid
    for rate, size, epochs in itertools.product(
        grid.learning_rates, grid.batch_sizes, grid.epochs or [config.training.epochs]
    ):
        point = {"learning rate": f"{rate:g}", "batch size": str(size)}
        name = f"learning-rate-{rate:g}-batch-{size}"
        if grid.epochs:
            point["epochs"] = str(epochs)
            name = f"{name}-epochs-{epochs}"
        run = os.path.join(output, name)
        run_config = _with(config, rate, size, epochs, keep_checkpoints)
        scores = run_finetuning(
            run_config,
            preset,
            training_records,
            run,
            validation_records,
            num_devices=num_devices,
            show_next_steps=False,
        )
        if scores is None:
            return None
        if scores:
            check_best(chosen_by, scores, run)
        results[run] = scores
        points[run] = point
        keras.backend.clear_session()
    if not all(results.values()):  # only the chief of several workers has scores
        return None
    DataConsole().print(_table(list(points.values()), list(results.values())))
    metric = chosen_by.metric
    values = [scores[metric] for scores in results.values()]
    place = chosen_by.index_of_best(values)
    best = list(results)[place]
    print_line(f"best on {validation_records}: {best}, {_shown(metric)} {values[place]:.2f}")
    print_written(output, *commands_with(os.path.join(best, PRESET), task, validation_records))
    return best


def _shown(metric: str) -> str:
    return "F1" if metric == "f1" else metric


def _table(points: list[dict[str, str]], scores: list[dict[str, float]]) -> rich.table.Table:
    titles = [_shown(name).replace("_", " ") for name in scores[0]]
    table = rich.table.Table(*points[0], *titles)
    for point, row in zip(points, scores, strict=True):
        table.add_row(*point.values(), *(f"{score:.2f}" for score in row.values()))
    return table


def _with(
    config: FinetuningConfig, learning_rate: float, batch_size: int, epochs: int, keep: bool
) -> FinetuningConfig:
    training = config.training.replace(batch_size=batch_size, epochs=epochs, keep_checkpoints=keep)
    optimizer = config.optimizer.replace(learning_rate=learning_rate)
    return config.replace(optimizer=optimizer, training=training)
