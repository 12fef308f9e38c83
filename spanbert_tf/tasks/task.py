"""The notion of a fine-tuning task.

A task is a record of functions and classes. `finetune`, `evaluate`, `predict`, `export`, `inspect`
and `--grid` know tasks through it alone; `tasks.table` says where they are found.
"""

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any

import keras_hub
import tensorflow as tf

from spanbert_tf.config import FinetuningConfig
from spanbert_tf.console import DataConsole
from spanbert_tf.data.records import Records, TaskManifest
from spanbert_tf.errors import BadInputError
from spanbert_tf.files.kinds import ANY_TASK, info_file, refuse_other_records
from spanbert_tf.models.keras_hub_presets import is_task_preset
from spanbert_tf.serving.exporting import ServedModule
from spanbert_tf.tasks.raw_inputs import TEXT_ALONE
from spanbert_tf.tasks.table import load_task, task_names

Predictions = Sequence[Any]  # a type of the task's own, in the order of the records


@dataclasses.dataclass(frozen=True)
class Task:
    """What the commands need to know of a fine-tuning task.

    `directory` below is the path of a directory of records, or `Records` that are open: commands
    open each once, so that its files are compared with their checksums once.

    Attributes:
        name: `"question_answering"`; records are described by `NAME_info.json`.
        main_metric: the score by which `--grid` and `keep_best` choose; higher is better.
        model_class: class of the presets; a `keras_hub.models.Task` that offers `objectives`,
            `objective_sums` and `target_counts` (`models.objective.Objectives`).
        config_class: class of its configurations.
        info_class: class of the description of its records, which has an attribute for each key of
            the configuration's section `data`.
        build: `(backbone, tokenizer, info, config)` → the model with its preprocessor.
        dataset: `(directory, batch_size=…, training=…, seed=…, first_batch=…)` → batches of
            `(x, y)` or `(x, y, sample_weight)`: endless and shuffled for training.
        predict: `(model, directory, batch_size=…, after_batch=…)` → predictions in the order of
            the records.
        score: `(model, directory, predictions)` → the official metrics, in percent.
        write: `(model, directory, predictions, output)`: writes the official files into a
            directory.
        written_files: patterns of their names, the first of which is always there.
        served: `(model, top_k)` → what an export computes.
        fields: `(model)` → names of the fields that a raw input must have; where that is `text`
            alone, a string is one, too.
        from_raw: `(model, top_k=…)` → a function `(inputs, batch_size=…)` of raw inputs, dicts of
            the task's natural fields, that returns what the `transformers` pipeline of the task
            does; it is called again and again.
        answers: `(model, directory, predictions)` → what is predicted for each item, empty where it
            is nothing; a training run says so where all are the same.
        calibrate: `(model, directory, predictions)`: sets what the model chooses on development
            data, such as a threshold.
        baseline: `(directory)` → predictions without a model, to see what a score is worth; they
            are scored and reported with `None` as the model.
        check_model: `(model, info, directory, preset)`; raises `MismatchError` where records were
            written for another model, beyond what all tasks check.
        report: `(title, model, directory, predictions)` → a page of HTML.
        print_details: `(model, directory, predictions, console)`: prints what `evaluate` shows
            beside the scores, such as a table of the classes.
        inspect: `(directory, console, num_examples)`: prints counts and some records; by default
            the rows and their labels.
    """

    name: str
    main_metric: str
    model_class: type[keras_hub.models.Task]
    config_class: type[FinetuningConfig]
    info_class: type[TaskManifest]
    build: Callable[..., keras_hub.models.Task]
    dataset: Callable[..., tf.data.Dataset]
    predict: Callable[..., Predictions]
    score: Callable[[keras_hub.models.Task, str, Predictions], dict[str, float]]
    write: Callable[[keras_hub.models.Task, str, Predictions, str], None]
    written_files: tuple[str, ...]
    served: Callable[[keras_hub.models.Task, int], ServedModule]
    from_raw: Callable[..., Callable[..., list]]
    # What not every task has, or has another of.
    fields: Callable[[keras_hub.models.Task], tuple[str, ...]] = lambda model: TEXT_ALONE
    answers: Callable[[keras_hub.models.Task, str, Predictions], Sequence[str]] | None = None
    calibrate: Callable[[keras_hub.models.Task, str, Predictions], None] | None = None
    baseline: Callable[[str], Predictions] | None = None
    check_model: Callable[[keras_hub.models.Task, TaskManifest, str, str], None] | None = None
    report: Callable[[str, keras_hub.models.Task, str, Predictions], str] | None = None
    print_details: (
        Callable[[keras_hub.models.Task | None, str, Predictions, DataConsole], None] | None
    ) = None
    inspect: Callable[[str, DataConsole, int], None] | None = None

    def records(self, directory: str | os.PathLike | Records) -> Records:
        """Opens records of the task, unless they are open.

        Raises:
            BadInputError: a file is missing, damaged or not what the description says.
        """
        return Records.of(directory, self.info_class)


def holds_task_records(directory: str) -> bool:
    """Whether a directory holds records of a task."""
    return _records_task(directory) is not None


def task_of_records(directory: str) -> Task:
    """The task that records were written for, by the name of their description.

    Raises:
        BadInputError: the directory holds no records of a task.
    """
    name = _records_task(directory)
    if name is not None:
        return load_task(name)
    refuse_other_records(directory, ANY_TASK)
    raise BadInputError(
        f"{directory}: holds no records of a task; write them with `spanbert-tf prepare`, "
        "for example `prepare squad`"
    )


def open_records(directory: str | os.PathLike | Records) -> Records:
    """Opens the records of any task, unless they are open.

    Raises:
        BadInputError: the directory holds no records of a task, or they are damaged.
    """
    return task_of_records(directory).records(directory)


def task_of_preset(preset: str) -> Task | None:
    """The task whose model a preset holds; `None` where it is another model.

    Raises:
        BadInputError: there is no preset of that name.
    """
    for name in task_names():
        task = load_task(name)
        if is_task_preset(preset, task.model_class):
            return task
    return None


def _records_task(directory: str) -> str | None:
    """The name of the task whose description lies in a directory."""
    for name in task_names():
        if os.path.isfile(os.path.join(directory, info_file(name))):
            return name
    return None
