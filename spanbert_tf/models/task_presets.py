"""From which task a preset was saved: heads must never be random without a word."""

from keras_hub.src.utils import preset_utils

from spanbert_tf.errors import BadInputError


def is_task_preset(preset: str, kind: type) -> bool:
    """Whether a preset holds the weights of a task of exactly this class.

    Args:
        preset: what `from_preset` takes.
        kind: class of the task.

    Raises:
        BadInputError: there is no preset of that name.
    """
    try:
        if not preset_utils.check_file_exists(preset, preset_utils.TASK_CONFIG_FILE):
            return False
    except ValueError as error:  # no directory, and no name that KerasHub knows
        reason = str(error).splitlines()[0]
        raise BadInputError(f"{preset}: no preset ({reason})") from error
    task = preset_utils.load_json(preset, preset_utils.TASK_CONFIG_FILE)
    has_weights = preset_utils.check_file_exists(preset, preset_utils.TASK_WEIGHTS_FILE)
    return has_weights and task.get("class_name") == kind.__name__


def check_task_preset(preset: str, kind: type) -> None:
    """Raises `BadInputError` unless a preset holds the head of a task.

    KerasHub gives a task that is loaded from another task's preset a random head, silently.

    Args:
        preset: what `from_preset` takes.
        kind: class of the task.
    """
    if not is_task_preset(preset, kind):
        raise BadInputError(
            f"{preset}: has no trained head ({preset_utils.TASK_WEIGHTS_FILE} of a "
            f"{kind.__name__}); use the preset of such a model"
        )
