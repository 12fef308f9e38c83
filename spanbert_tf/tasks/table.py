"""The table of tasks. Importing this module does not import TensorFlow.

Another package adds a task with an entry point of the group `spanbert_tf.tasks`. The name of the
entry point is the task's name, and its value is a class that derives from
`spanbert_tf.tasks.task.Task`.
"""

import importlib.metadata
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from spanbert_tf.errors import ConfigurationError
from spanbert_tf.lazy import load

if TYPE_CHECKING:
    from spanbert_tf.config.finetuning import FinetuningConfig

ENTRY_POINTS = "spanbert_tf.tasks"


class TaskEntry(NamedTuple):
    """A row of the table. The folder of the task has the task's name.

    Attributes:
        class_name: name of the class in the folder's `task`. `records`, which does not need
            TensorFlow, defines the configuration class: this name with `Config` appended.
        commands: names of the `prepare` commands in the folder's `prepare`; the function of the
            command `squad` is `prepare_squad`.
    """

    class_name: str
    commands: tuple[str, ...]


TASKS = {
    "coreference": TaskEntry("Coreference", ("coreference",)),
    "named_entities": TaskEntry("NamedEntities", ("named_entities",)),
    "question_answering": TaskEntry("QuestionAnswering", ("squad", "mrqa")),
    "relation_extraction": TaskEntry("RelationExtraction", ("tacred", "semeval2010")),
    "text_classification": TaskEntry("TextClassification", ("classification", "glue")),
}


def task_names() -> list[str]:
    """Returns the names of all tasks. Tasks of other packages come last."""
    return list(TASKS | _entry_points())


def load_task(name: str) -> Any:
    """Imports the task with this name and returns an instance of its class, a `Task`.

    Raises:
        ConfigurationError: no task has this name, or its package cannot be imported.
    """
    if name in TASKS:
        return load(_place(name, "task", TASKS[name].class_name))()
    point = _entry_points().get(name)
    if point:
        try:
            return point.load()()
        except (ImportError, AttributeError) as error:
            raise ConfigurationError(
                f"task {name}: {point.value} cannot be loaded ({error}); mend or remove its package"
            ) from error
    raise ConfigurationError(f"task: {name!r} is not one of {', '.join(task_names())}")


def load_task_config(name_or_path: str, overrides: Sequence[str] = ()) -> "FinetuningConfig":
    """Loads, overrides and checks the configuration of any task; see `load_finetuning_config`.

    Raises:
        ConfigurationError: a file, a key, a type or a value is wrong.
    """
    from spanbert_tf.config.finetuning import load_finetuning_config

    return load_finetuning_config(name_or_path, overrides, task_names(), task_config_class)


def task_config_class(name: str) -> "type[FinetuningConfig]":
    """Returns the configuration class of a task. A task of another package is imported for it."""
    if name in TASKS:
        return load(_place(name, "records", f"{TASKS[name].class_name}Config"))
    return load_task(name).config_class


def prepare_commands() -> dict[str, str]:
    """Returns the `prepare` commands of this package's tasks: name → `"module:function"`."""
    functions = {}
    for name, entry in TASKS.items():
        for command in entry.commands:
            functions[command] = _place(name, "prepare", f"prepare_{command}")
    return functions


def commands_of_task(name: str) -> tuple[str, ...]:
    """Returns the names of the `prepare` commands that write the records of a task.

    A task of another package is expected to have one command, named like the task.
    """
    if name in TASKS:
        return TASKS[name].commands
    return (name,)


def _place(task: str, module: str, attribute: str) -> str:
    """Returns the place of an attribute in a task's folder, as `lazy.load` takes it."""
    return f"spanbert_tf.tasks.{task}.{module}:{attribute}"


def _entry_points() -> dict[str, importlib.metadata.EntryPoint]:
    """Returns the entry points of other packages' tasks by the names of the tasks, sorted."""
    points = importlib.metadata.entry_points(group=ENTRY_POINTS)
    return {point.name: point for point in sorted(points, key=lambda point: point.name)}
