"""From a file, its bases and overrides to a checked configuration, for both kinds."""

import dataclasses
import difflib
import os
import typing
from collections.abc import Sequence
from typing import Any, TypeVar

from spanbert_tf.config.foreign_names import meant_key
from spanbert_tf.config.shipped import find_config
from spanbert_tf.config.yaml_files import Setting, parse_override, read_settings
from spanbert_tf.errors import ConfigurationError
from spanbert_tf.validation import InvalidValueError, Section

Config = TypeVar("Config", bound=Section)


def load_settings(kind: str, name_or_path: str, overrides: Sequence[str]) -> dict[str, Setting]:
    """The settings of a file over its bases', and overrides over both.

    Args:
        kind: `"pretrain"` or `"finetune"`.
        name_or_path: a shipped name, or the path of a YAML file.
        overrides: texts `section.key=value`, the values in YAML.

    Raises:
        ConfigurationError: a file cannot be found or read, or an override has no `=`.
    """
    path = find_config(kind, name_or_path, os.getcwd(), "--config")
    return _with_bases(kind, path, ()) | dict(parse_override(text) for text in overrides)


def _with_bases(kind: str, path: str, descendants: tuple[str, ...]) -> dict[str, Setting]:
    if path in descendants:
        raise ConfigurationError(f"{path}: is its own base; change `base`")
    settings = read_settings(path, layer=-len(descendants))
    base = settings.pop("base", None)
    if base is None:
        return settings
    if not isinstance(base.value, str):
        raise ConfigurationError(f"{base.place}: base must be a name or a path")
    base_path = find_config(kind, base.value, os.path.dirname(path), base.place)
    return _with_bases(kind, base_path, (*descendants, path)) | settings


def flat_values(config: Section) -> dict[str, Any]:
    """The values of a configuration, keyed `section.key`."""
    values = {}
    for key in _flat_keys(type(config)):
        value: Any = config
        for name in key.split("."):
            value = getattr(value, name)
        values[key] = value
    return values


def build_config(config_class: type[Config], settings: dict[str, Setting], source: str) -> Config:
    """Makes a configuration from flat settings; the rest has its defaults.

    Args:
        config_class: what to make.
        settings: keyed `section.key`.
        source: the place of values that are not set, for errors.

    Raises:
        ConfigurationError: a key is unknown (the message names the nearest one), a value has the
            wrong type or is out of range, or two do not fit together.
    """
    known = _flat_keys(config_class)
    for key, setting in settings.items():
        if key not in known:
            raise ConfigurationError(f"{setting.place}: {_unknown_key(key, known)}")
    return _build(config_class, settings, source, "")


def _build(section_class: type, settings: dict[str, Setting], source: str, prefix: str) -> Any:
    values = {}
    for name, inner in _fields(section_class).items():
        key = prefix + name
        if inner:
            values[name] = _build(inner, settings, source, f"{key}.")
        elif key in settings:
            values[name] = settings[key].value
    try:
        return section_class(**values)
    except InvalidValueError as error:
        keys = [prefix + key for key in error.keys]
        # Of several values that conflict, the topmost one was written last.
        written = [settings[key] for key in keys if key in settings]
        place = max(written, key=lambda setting: setting.layer).place if written else source
        raise ConfigurationError(f"{place}: {keys[0]}{error.problem}") from error


def _fields(section_class: type) -> dict[str, type | None]:
    """The fields of a section, with their class where they are sections."""
    hints = typing.get_type_hints(section_class)
    return {
        field.name: hints[field.name] if dataclasses.is_dataclass(hints[field.name]) else None
        for field in dataclasses.fields(section_class)
    }


def _flat_keys(section_class: type, prefix: str = "") -> list[str]:
    keys = []
    for name, inner in _fields(section_class).items():
        keys += _flat_keys(inner, f"{prefix}{name}.") if inner else [prefix + name]
    return keys


def _unknown_key(key: str, known: list[str]) -> str:
    if any(name.startswith(f"{key}.") for name in known):
        return f"{key} is a section; write its keys below it"
    # A key in the wrong section is found by its last part, one that is called otherwise elsewhere
    # by a table, and a misspelt one by its letters.
    same_name = [name for name in known if name.rpartition(".")[2] == key.rpartition(".")[2]]
    nearest = same_name[:1] or [meant_key(key, known)]
    if nearest == [None]:
        nearest = difflib.get_close_matches(key, known, n=1, cutoff=0.0)
    return f"unknown key {key}; the nearest is {nearest[0]}"
