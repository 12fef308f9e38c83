"""Which task a preset was saved from."""

import os
from typing import Any

from keras_hub.src.utils import preset_utils

from spanbert_tf.errors import BadInputError
from spanbert_tf.files.contents import refuse_special_files
from spanbert_tf.files.kinds import refuse_no_preset
from spanbert_tf.files.preset_files import describe_missing
from spanbert_tf.files.text_files import parse_json


def task_class(preset: str) -> str | None:
    """The name of the class of the task whose weights a preset holds; `None` without a task.

    Args:
        preset: what `from_preset` takes.

    Raises:
        BadInputError: there is no preset of that name, or its description is damaged.
    """
    task = _read(preset, preset_utils.TASK_CONFIG_FILE)
    if task is None or not preset_utils.check_file_exists(preset, preset_utils.TASK_WEIGHTS_FILE):
        return None
    return str(task.get("class_name"))


def reads_raw_inputs(preset: str) -> bool:
    """Whether a preset holds a task with its preprocessor.

    Args:
        preset: what `from_preset` takes.

    Raises:
        BadInputError: as `task_class`.
    """
    return task_config(preset).get("preprocessor") is not None


def task_config(preset: str) -> dict[str, Any]:
    """What a preset's task was configured with; empty where it holds no task.

    Args:
        preset: what `from_preset` takes.

    Raises:
        BadInputError: as `task_class`.
    """
    return _config(preset, preset_utils.TASK_CONFIG_FILE)


def is_task_preset(preset: str, kind: type) -> bool:
    """Whether a preset holds the weights of a task of exactly this class.

    Args:
        preset: what `from_preset` takes.
        kind: class of the task.

    Raises:
        BadInputError: as `task_class`.
    """
    return task_class(preset) == kind.__name__


def encoder_width(preset: str) -> int:
    """The `hidden_dim` of a preset's encoder; 0 where there is none, which loading it tells.

    Args:
        preset: what `from_preset` takes.

    Raises:
        BadInputError: there is no preset of that name, or its description is damaged.
    """
    width = _config(preset, preset_utils.CONFIG_FILE).get("hidden_dim")
    return width if isinstance(width, int) else 0


def _config(preset: str, name: str) -> dict[str, Any]:
    config = (_read(preset, name) or {}).get("config")
    return config if isinstance(config, dict) else {}


def _read(preset: str, name: str) -> dict[str, Any] | None:
    """A description in a preset: of its task, of its encoder; `None` where there is none."""
    if os.path.isdir(preset):
        refuse_special_files(preset)
    try:
        if not preset_utils.check_file_exists(preset, name):
            refuse_no_preset(preset)
            return None
    except (ValueError, OSError) as error:  # no directory, and no name that KerasHub can load
        refuse_no_preset(preset)
        raise BadInputError(describe_missing(preset, error)) from error
    with open(preset_utils.get_file(preset, name), "rb") as file:
        text = file.read()
    return parse_json(text, dict[str, Any], f"{preset}: {name} is damaged", "copy the preset again")
