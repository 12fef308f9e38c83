"""The configuration of a run whose model has the shape of the preset that it continues."""

import os
from collections.abc import Sequence
from typing import Any

from spanbert_tf.config.pretraining import ModelConfig, PretrainingConfig
from spanbert_tf.config.run import CONFIG_FILE
from spanbert_tf.config.settings import Setting, build_config, load_settings, read_settings
from spanbert_tf.errors import BadInputError, ConfigurationError
from spanbert_tf.files.kinds import PRESET_CONFIG, hugging_face_model
from spanbert_tf.files.preset import PresetFiles

_SWITCH = "model.from_preset"
_ENCODER_KEYS = [f"model.{name}" for name in ModelConfig().encoder_options()]
_HEAD_KEYS = ["objectives.span_position_dim", "masking.max_span_targets"]
_ENCODER = "SpanBertBackbone"
_LAYER = -1_000  # below every file: what a file or `--set` says lies over it


def load_run_config(
    name_or_path: str, overrides: Sequence[str] = (), *, preset: str | None, run: str
) -> PretrainingConfig:
    """Loads the configuration of a run; `model.from_preset` gives it the shape of that preset.

    A run that has begun keeps its shape; the preset is not read again.

    Args:
        name_or_path: as for `load_config`.
        overrides: as for `load_config`.
        preset: the run's `--initial-preset`, if it has one.
        run: directory of the run; it need not exist.

    Raises:
        ConfigurationError: as `load_config`; or the shape comes from a preset and none is given.
        BadInputError: the preset cannot be read, or is of another class.
    """
    settings = load_settings("pretrain", name_or_path, overrides)
    switch = settings.get(_SWITCH)
    if switch is not None and switch.value is True:
        settings = _shape(preset, run, switch.place) | settings
    return build_config(PretrainingConfig, settings, name_or_path)


def _shape(preset: str | None, run: str, place: str) -> dict[str, Setting]:
    """Returns the settings that a run has from what it continues."""
    begun = os.path.join(run, CONFIG_FILE)
    if os.path.exists(begun):
        found = read_settings(begun, _LAYER)
        return {key: found[key] for key in (*_ENCODER_KEYS, *_HEAD_KEYS) if key in found}
    if preset is None:
        raise ConfigurationError(
            f"{place}: {_SWITCH} takes the model's shape from a preset; give it as "
            "--initial-preset, or set the keys of model and model.from_preset=false"
        )
    return {key: Setting(value, preset, _LAYER) for key, value in shape_values(preset).items()}


def shape_values(preset: str | os.PathLike | PresetFiles) -> dict[str, Any]:
    """Returns the values of the keys that describe a preset's model: its encoder and its heads.

    Raises:
        BadInputError: the preset cannot be read, or is of another class.
    """
    preset = PresetFiles.of(preset)
    return _encoder_values(preset) | _head_values(preset)


def _encoder_values(preset: PresetFiles) -> dict[str, Any]:
    description = preset.description(PRESET_CONFIG)
    if found := hugging_face_model(description, "DIR"):  # not on this machine, such as hf://
        raise BadInputError(f"{preset}: is {found.what}; download it to DIR: {found.advice}")
    class_name = preset.class_name(PRESET_CONFIG)
    arguments = preset.arguments(PRESET_CONFIG)
    if class_name != _ENCODER:
        raise BadInputError(
            f"{preset}: no preset of a {_ENCODER} but of a {class_name}; "
            "convert it with `spanbert-tf convert --from keras`"
        )
    names = {key: key.removeprefix("model.") for key in _ENCODER_KEYS}
    return {key: arguments[name] for key, name in names.items() if name in arguments}


def _head_values(preset: PresetFiles) -> dict[str, int]:
    """Returns the sizes of the preset's span boundary head; empty if it has none."""
    options = preset.head_options
    if not options["span_boundary"]:
        return {}
    return {key: options[key.split(".")[1]] for key in _HEAD_KEYS}
