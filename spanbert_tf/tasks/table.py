"""The table of tasks: where each is found. Nothing here needs TensorFlow.

A package outside of this one adds a task by an entry point of the group `spanbert_tf.tasks`, whose
name is the task's and whose value is a class that derives from `spanbert_tf.tasks.task.Task`.
"""

import importlib.metadata
from collections.abc import Sequence
from typing import Any

from spanbert_tf.config.finetuning import FinetuningConfig, load_finetuning_config
from spanbert_tf.errors import ConfigurationError
from spanbert_tf.lazy import load

ENTRY_POINTS = "spanbert_tf.tasks"
# Name → its folder and the class of the folder's `task`; with `Config` at its end, that of a
# configuration is in the folder's `records`, which needs no TensorFlow.
TASKS = {
    "coreference": "spanbert_tf.tasks.coreference:Coreference",
    "named_entities": "spanbert_tf.tasks.named_entities:NamedEntities",
    "question_answering": "spanbert_tf.tasks.question_answering:QuestionAnswering",
    "relation_extraction": "spanbert_tf.tasks.relation_extraction:RelationExtraction",
    "text_classification": "spanbert_tf.tasks.text_classification:TextClassification",
}


def task_names() -> list[str]:
    """The names of all tasks, those of other packages behind this one's."""
    return list(TASKS | _entry_points())


def load_task(name: str) -> Any:
    """The `Task` of a name, imported now.

    Raises:
        ConfigurationError: no task has that name.
    """
    if name in TASKS:
        return load(_place(name, "task"))()
    if point := _entry_points().get(name):
        try:
            return point.load()()
        except (ImportError, AttributeError) as error:
            raise ConfigurationError(
                f"task {name}: {point.value} cannot be loaded ({error}); mend or remove its package"
            ) from error
    raise ConfigurationError(f"task: {name!r} is not one of {', '.join(task_names())}")


def load_task_config(name_or_path: str, overrides: Sequence[str] = ()) -> FinetuningConfig:
    """Loads, overrides and checks the configuration of any task, see `load_finetuning_config`.

    Raises:
        ConfigurationError: a file, a key, a type or a value is wrong.
    """
    return load_finetuning_config(name_or_path, overrides, task_names(), task_config_class)


def task_config_class(name: str) -> type[FinetuningConfig]:
    """The configuration class of a task; that of another package comes with the task itself."""
    if name in TASKS:
        return load(_place(name, "records") + "Config")
    return load_task(name).config_class


def _place(name: str, module: str) -> str:
    folder, _, class_name = TASKS[name].partition(":")
    return f"{folder}.{module}:{class_name}"


def _entry_points() -> dict[str, importlib.metadata.EntryPoint]:
    points = importlib.metadata.entry_points(group=ENTRY_POINTS)
    return {point.name: point for point in sorted(points, key=lambda point: point.name)}
