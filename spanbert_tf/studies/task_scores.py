"""Scores of a task from two encoders that are fine-tuned in the same way, for `adapt`."""

import os
import shlex
from collections.abc import Sequence
from typing import Any, NamedTuple

import click
import keras

from data_prep.cli import prepare
from spanbert_tf.config import FinetuningConfig
from spanbert_tf.errors import BadInputError, ConfigurationError
from spanbert_tf.studies.before_and_after import Measure
from spanbert_tf.studies.stages import print_stage
from spanbert_tf.tasks.finetuning import best_evaluation, run_finetuning
from spanbert_tf.tasks.lookup import open_records
from spanbert_tf.tasks.table import commands_of_task, load_task, load_task_config
from spanbert_tf.tasks.text_classification.glue import GLUE_TASKS
from spanbert_tf.training.checkpoints import Best


class TaskData(NamedTuple):
    """The data of a task by which both encoders are compared.

    Attributes:
        name: name of the configuration, or its file.
        config: the configuration.
        directory: holds `train.*` and `dev.*`.
        command: words of a `prepare` command, without its files.
    """

    name: str
    config: FinetuningConfig
    directory: str
    command: list[str]


def read_task_data(given: str, task_prepare: Sequence[str]) -> TaskData:
    """Reads a value of `--task-data` and the `--task-prepare` that belongs to it."""
    name, _, directory = given.partition("=")
    if not name or not directory:
        raise ConfigurationError(f"--task-data {given}: is not TASK=DIR")
    if not os.path.isdir(directory):
        raise BadInputError(f"{directory}: is no directory; --task-data is TASK=DIR")
    config = load_task_config(name)
    for part in ("train", "dev"):
        _file_of(directory, part)
    commands = dict(each.split("=", 1) for each in task_prepare if "=" in each)
    command = shlex.split(commands.get(name, ""))
    dataset = getattr(config.data, "dataset", None)
    if not command and dataset in GLUE_TASKS:
        command = ["glue", "--task", dataset]
    if not command:
        command = [commands_of_task(config.task)[0]]
    return TaskData(name, config, directory, command)


def _file_of(directory: str, part: str) -> str:
    """The file `train.*` or `dev.*` of a directory."""
    found = [name for name in sorted(os.listdir(directory)) if name.startswith(f"{part}.")]
    if len(found) != 1:
        raise BadInputError(
            f"{directory}: has {len(found)} files {part}.*; --task-data needs one train.* and one "
            "dev.*"
        )
    return os.path.join(directory, found[0])


def score_of_task(
    task: TaskData, encoder: str, result: str, output: str, options: dict[str, Any]
) -> Measure | None:
    """Fine-tunes both encoders in the same way; `None` if a signal ended a run."""
    values = []
    for name, preset in (("before", encoder), ("after", result)):
        print_stage(f"{task.name}, {name}")
        place = os.path.join(output, name)
        train, dev = (os.path.join(place, part) for part in ("train", "dev"))
        _prepare_task(task, "train", preset, train)
        _prepare_task(task, "dev", preset, dev, training_records=train)
        scores = run_finetuning(
            task.config,
            preset,
            train,
            os.path.join(place, "run"),
            dev,
            show_next_steps=False,
            **options,
        )
        if scores is None:
            return None
        best = _best_of(task.config, dev)
        values.append(scores[best.metric])
        keras.backend.clear_session()
    before, after = values
    return Measure(f"{task.name}: {best.metric}", before, after, best.mode, num_digits=2)


def _best_of(config: FinetuningConfig, records: str) -> Best:
    task = load_task(config.task)
    return best_evaluation(task, config, open_records(records, task))


def _prepare_task(
    task: TaskData, part: str, preset: str, output: str, *, training_records: str | None = None
) -> None:
    """Writes the records of a file of a task, unless they are there."""
    if os.path.isdir(output):
        return
    name, *words = task.command
    command = prepare.get_command(click.Context(prepare), name)
    if command is None:
        raise ConfigurationError(f"--task-prepare {task.name}: `prepare` has no command {name}")
    words += ["--input", _file_of(task.directory, part), "--preset", preset, "--output", output]
    known = {option for parameter in command.params for option in parameter.opts}
    if training_records and "--labels-of" in known and "--regression" not in words:
        words += ["--labels-of", training_records]
    if training_records and "--training-input" in known:
        words += ["--training-input", _file_of(task.directory, "train")]
    try:
        context = command.make_context(name, words)
    except click.UsageError as error:
        raise ConfigurationError(
            f"--task-prepare {task.name}={shlex.join(task.command)}: {error.format_message()}"
        ) from error
    with context:
        click.Command.invoke(command, context)
