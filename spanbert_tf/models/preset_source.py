"""`from_preset` says what it was given, where that is no preset, in the words of the commands."""

import json
import sys
from collections.abc import Iterator

from keras_hub.src.utils import preset_utils

from spanbert_tf.errors import BadInputError
from spanbert_tf.files.kinds import refuse_no_preset

_DESCRIPTIONS = (
    preset_utils.CONFIG_FILE,
    preset_utils.TOKENIZER_CONFIG_FILE,
    preset_utils.TASK_CONFIG_FILE,
    preset_utils.PREPROCESSOR_CONFIG_FILE,
)
_PACKAGES = ("builtins", "keras", "keras_hub", "keras_nlp", "spanbert_tf")


def refuse_other_modules(preset: str) -> None:
    """Refuses a preset whose descriptions name a module that loading it might import.

    Keras imports what a description names as a part of `keras_cv`, which `python -c`, `python -m`
    and notebooks look for in the working directory first.

    Args:
        preset: what `from_preset` takes.

    Raises:
        BadInputError: a module is named that is none of Keras', KerasHub's or this project's, and
            that the user has not imported.
    """
    for name in _DESCRIPTIONS:
        try:
            if not preset_utils.check_file_exists(preset, name):
                continue
            with open(preset_utils.get_file(preset, name), "rb") as file:
                description = json.load(file)
        except (ValueError, OSError, RecursionError):  # which loading it reports
            continue
        for module in _modules(description):
            if module.partition(".")[0] not in _PACKAGES and module not in sys.modules:
                raise BadInputError(
                    f"{preset}: {name} names the module {module!r}, which is not one of "
                    f"{', '.join(_PACKAGES[1:])}; import it yourself first if you trust it"
                )


def _modules(description: object) -> Iterator[str]:
    """The modules that a description names, at any depth."""
    left = [description]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            module = value.get("module")
            if isinstance(module, str) and module:
                yield module
            left += value.values()
        elif isinstance(value, list):
            left += value


class LoadsPresets:
    """Base of backbone, tokenizer, tasks and preprocessors; name it before KerasHub's class."""

    @classmethod
    def from_preset(cls, preset: str, *args: object, **kwargs: object) -> object:
        """Loads a preset.

        Args:
            preset: directory, or another name that KerasHub knows.
            *args: as KerasHub's class takes them.
            **kwargs: as well.

        Raises:
            BadInputError: what lies there is something else, such as a model of Hugging Face, or
                names a module that loading it might import, see `refuse_other_modules`.
        """
        refuse_no_preset(preset)
        refuse_other_modules(preset)
        return super().from_preset(preset, *args, **kwargs)
