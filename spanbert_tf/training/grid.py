"""`finetune --grid`: all combinations of learning rate and batch size, and which is best."""

import dataclasses
import itertools
import os

import keras
import rich.console
import rich.table

from spanbert_tf.finetuning_config import QuestionAnsweringConfig
from spanbert_tf.training.question_answering import run_question_answering


def run_grid(
    config: QuestionAnsweringConfig, preset: str, data: str, output: str, validation_data: str
) -> str | None:
    """Fine-tunes with each combination, and prints the scores as a table.

    Run again after it was stopped, it goes on: finished runs are scored again, not trained.

    Args:
        config: of the runs; its `grid` says what they differ in.
        preset: whose encoder the runs begin with.
        data: directory of the training questions.
        output: holds a directory for each run, `learning-rate-2e-05-batch-32`.
        validation_data: directory of the questions that decide.

    Returns:
        The directory of the run with the best F1; `None` if SIGTERM ended a run.

    Raises:
        BadInputError: a file or directory cannot be used.
        MismatchError: preset, questions and configuration do not fit together.
    """
    f1: dict[str, float] = {}
    table = rich.table.Table("learning rate", "batch size", "exact match", "F1")
    for rate, size in itertools.product(config.grid.learning_rates, config.grid.batch_sizes):
        run = os.path.join(output, f"learning-rate-{rate:g}-batch-{size}")
        scores = run_question_answering(
            _with(config, rate, size), preset, data, run, validation_data
        )
        if scores is None:
            return None
        table.add_row(f"{rate:g}", str(size), f"{scores['exact_match']:.2f}", f"{scores['f1']:.2f}")
        f1[run] = scores["f1"]
        keras.backend.clear_session()
    rich.console.Console().print(table)
    best = max(f1, key=f1.get)
    print(f"best on {validation_data}: {best}, F1 {f1[best]:.2f}", flush=True)
    return best


def _with(
    config: QuestionAnsweringConfig, learning_rate: float, batch_size: int
) -> QuestionAnsweringConfig:
    return dataclasses.replace(
        config,
        optimizer=dataclasses.replace(config.optimizer, learning_rate=learning_rate),
        training=dataclasses.replace(config.training, batch_size=batch_size),
    )
