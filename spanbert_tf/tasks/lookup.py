"""Finds the task of records and of presets."""

import os
from typing import Any

import tensorflow as tf

from spanbert_tf.data.records import Records
from spanbert_tf.errors import BadInputError
from spanbert_tf.files.kinds import ANY_TASK, info_file, refuse_other_records
from spanbert_tf.presets.preset import Preset
from spanbert_tf.tasks.table import TASKS, load_task, task_names
from spanbert_tf.tasks.task import Task


def records_task_name(directory: str | os.PathLike) -> str | None:
    """Returns the task whose manifest is in a directory; `None` if there is no manifest."""
    for name in task_names():
        if os.path.isfile(os.path.join(directory, info_file(name))):
            return name
    return None


def task_of_records(directory: str | os.PathLike) -> Task:
    """Returns the task that records were written for, by the name of their manifest.

    Raises:
        BadInputError: the directory does not hold records of a task.
    """
    name = records_task_name(directory)
    if name is not None:
        return load_task(name)
    refuse_other_records(os.fspath(directory), ANY_TASK)
    raise BadInputError(
        f"{directory}: holds no records of a task; write them with `spanbert-tf prepare`, "
        "for example `prepare squad`"
    )


def open_records(directory: str | os.PathLike | Records, task: Task | None = None) -> Records:
    """Opens records, unless they are open.

    Args:
        directory: directory of the records, or the records.
        task: the task that reads them; by default the one that they were written for.

    Raises:
        BadInputError: the directory does not hold records of a task, or they are damaged.
        MismatchError: the records are open, and are not records of this task.
    """
    if task is None:
        if isinstance(directory, Records):
            return directory
        task = task_of_records(directory)
    return Records.of(directory, task.manifest_class)


def task_dataset(directory: str | os.PathLike | Records, **options: Any) -> tf.data.Dataset:
    """Reads the records of any task in batches, for `fit` and `predict` of its model.

    Args:
        directory: directory that a `prepare` command wrote, or records.
        **options: `batch_size`, `training`, `seed` and `first_batch`, as for `packed_batches`.

    Returns:
        A data set of `(x, y)`; for training, of `(x, y, sample_weight)`. See `packed_batches`.

    Raises:
        BadInputError: the directory or one of its files is missing, damaged or unusable, or there
            is no row to train on.
    """
    records = open_records(directory)
    return load_task(records.manifest.task).dataset(records, **options)


def task_of_preset(
    preset: str | os.PathLike | Preset, records_task: str | None = None
) -> Task | None:
    """Returns the task whose model a preset contains; `None` if it contains another model.

    Several tasks can share a class of models. The task of the records comes first, then the tasks
    of this package, then the tasks of other packages.

    Args:
        preset: the preset, or its name.
        records_task: name of the task of the records that the model is to read, if there are any.

    Raises:
        BadInputError: there is no such preset, or two tasks of other packages share its class.
    """
    preset = Preset.of(preset)
    if records_task is not None and _is_model_of(preset, records_task):
        return load_task(records_task)
    for name in TASKS:
        if _is_model_of(preset, name):
            return load_task(name)
    others = [name for name in task_names() if name not in TASKS and _is_model_of(preset, name)]
    if len(others) > 1:
        raise BadInputError(
            f"{preset}: its model is of a class that the tasks {' and '.join(others)} share; give "
            "one of them a class of its own, or remove its package"
        )
    return load_task(others[0]) if others else None


def _is_model_of(preset: Preset, task: str) -> bool:
    return preset.holds(load_task(task).model_class)
