"""Reads YAML files key by key, and checks every key and type against a configuration class.

Settings are kept flat, `{"training.steps": Setting(1000, "my.yaml: line 7")}`, so that files can
be laid over one another and an error can name the line that a value came from.
"""

import dataclasses
import difflib
import math
import re
import types
import typing
from typing import Any

import yaml
from official.modeling.hyperparams import base_config

from spanbert_tf.errors import ConfigurationError


@dataclasses.dataclass(frozen=True)
class Setting:
    """A value and the place it was written, for errors: `"my.yaml: line 7"` or `"--set"`."""

    value: Any
    place: str


class _Loader(yaml.SafeLoader):
    """YAML 1.1 as PyYAML reads it, but 1e-4 is a number (YAML 1.2), not text."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), "-+.0123456789"
)


def read_settings(path: str) -> dict[str, Setting]:
    """Reads a YAML file of nested mappings as flat settings, keyed `section.key`.

    Raises:
        ConfigurationError: the file is missing, not UTF-8, not YAML, not a mapping, or has a key
            twice.
    """
    try:
        with open(path, encoding="utf-8") as file:
            loader = _Loader(file.read())
        root = loader.get_single_node()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: cannot be read as UTF-8 text ({error})") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}: " if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigurationError(f"{path}: {line}not YAML: {problem}") from error
    if not isinstance(root, yaml.MappingNode):
        raise ConfigurationError(f"{path}: holds no mapping; write lines like `training:`")
    settings: dict[str, Setting] = {}
    _flatten(loader, root, "", path, settings)
    return settings


def _flatten(
    loader: _Loader, node: yaml.MappingNode, prefix: str, path: str, settings: dict[str, Setting]
) -> None:
    seen = set()
    for key_node, value_node in node.value:
        key = f"{prefix}{key_node.value}"
        place = f"{path}: line {key_node.start_mark.line + 1}"
        if key in seen:  # PyYAML would silently take the last one
            raise ConfigurationError(f"{place}: {key} is set twice; remove one of them")
        seen.add(key)
        if isinstance(value_node, yaml.MappingNode):
            _flatten(loader, value_node, f"{key}.", path, settings)
        else:
            settings[key] = Setting(loader.construct_object(value_node, deep=True), place)


def parse_override(text: str) -> tuple[str, Setting]:
    """Parses one `key=value` of `--set`; the value is read as YAML.

    Raises:
        ConfigurationError: there is no `=`, or the value is not YAML.
    """
    key, equals, value = text.partition("=")
    place = f"--set {text}"
    if not equals or not key.strip():
        raise ConfigurationError(f"{place}: write KEY=VALUE, for example training.steps=1000")
    try:
        return key.strip(), Setting(yaml.load(value, _Loader), place)
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{place}: the value is not YAML; quote it") from error


def field_types(config_class: type, prefix: str = "") -> dict[str, Any]:
    """The flat keys of a configuration class and their annotations."""
    found = {}
    hints = typing.get_type_hints(config_class)
    for field in dataclasses.fields(config_class):
        annotation, key = hints[field.name], prefix + field.name
        if isinstance(annotation, type) and issubclass(annotation, base_config.Config):
            found |= field_types(annotation, f"{key}.")
        else:
            found[key] = annotation
    return found


def flat_values(config: base_config.Config) -> dict[str, Any]:
    """The values of a configuration, keyed as `field_types` of its class."""
    values = {}
    for key in field_types(type(config)):
        value = config
        for name in key.split("."):
            value = getattr(value, name)
        values[key] = value
    return values


def build_config(config_class: type, settings: dict[str, Setting]) -> base_config.Config:
    """Makes a configuration from its defaults and flat settings.

    Raises:
        ConfigurationError: a key is unknown (the message names the nearest one), or a value has
            the wrong type. Whole numbers pass for numbers; nothing else is converted, since
            `hyperparams` would take a text for a number.
    """
    known = field_types(config_class)
    nested: dict[str, Any] = {}
    for key, setting in settings.items():
        if key not in known:
            raise ConfigurationError(f"{setting.place}: {_unknown_key(key, list(known))}")
        section = nested
        *sections, name = key.split(".")
        for part in sections:
            section = section.setdefault(part, {})
        section[name] = _checked(setting, key, known[key])
    config = config_class()
    config.override(nested, is_strict=True)
    return config


def _unknown_key(key: str, known: list[str]) -> str:
    if any(name.startswith(f"{key}.") for name in known):
        return f"{key} is a section; write its keys below it"
    # A key in the wrong section is found by its last part, a misspelt one by the whole.
    same_name = [name for name in known if name.rpartition(".")[2] == key.rpartition(".")[2]]
    nearest = same_name or difflib.get_close_matches(key, known, n=1, cutoff=0.0)
    return f"unknown key {key}; the nearest is {nearest[0]}"


def _checked(setting: Setting, key: str, annotation: Any) -> Any:
    """The value, if it has the annotated type; whole numbers become floats where these belong."""
    value = setting.value
    for option in _options(annotation):
        if typing.get_origin(option) is typing.Literal:
            if isinstance(value, str) and value in typing.get_args(option):
                return value
        elif option is float:
            # A bool is an int in Python, and nan passes every range check: neither is a number.
            if type(value) in (int, float) and math.isfinite(value):
                return float(value)
        elif typing.get_origin(option) is list:
            if isinstance(value, list) and value:
                (item,) = typing.get_args(option)
                return [_checked(Setting(part, setting.place), key, item) for part in value]
        elif type(value) is option:
            return value
    wanted = " or ".join(_describe(option) for option in _options(annotation))
    raise ConfigurationError(f"{setting.place}: {key} must be {wanted}, not {value!r}")


def _options(annotation: Any) -> tuple[Any, ...]:
    """`int | None` as (int, NoneType); everything else as itself alone."""
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    return typing.get_args(annotation) if is_union else (annotation,)


def _describe(option: Any) -> str:
    if typing.get_origin(option) is typing.Literal:
        return " or ".join(typing.get_args(option))
    if typing.get_origin(option) is list:
        return f"a list, each of it {_describe(*typing.get_args(option))}"
    return {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: "text",
        types.NoneType: "null",
    }[option]
