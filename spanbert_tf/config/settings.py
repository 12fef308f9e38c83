"""Loads configurations from YAML files, their bases and `--set`, and writes them.

Settings are kept flat, `{"training.steps": Setting(1000, "my.yaml: line 7")}`. So a file can
override the values of its base, and an error can name the line of a value.
"""

import dataclasses
import difflib
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel

from spanbert_tf.config.foreign_names import meant_key
from spanbert_tf.config.run import INPUTS_FILE
from spanbert_tf.errors import ConfigurationError
from spanbert_tf.files.contents import regular_size
from spanbert_tf.validation import Section, validated

KINDS = ("pretrain", "finetune")  # of configurations, and the commands that take them
_FLOAT_WITHOUT_POINT = re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$")
# Keys that name another machine → the value that names this one. A file may come from anyone, so
# only `--set` gives them another value.
_ADDRESSES = {"training.tpu": "local"}
# The key that names code to run. Only `--set` and the file that was asked for may name some; a base
# or the file of a run may come from anyone.
_CODE = "training.callbacks"
# A configuration has a few kilobytes and two or three levels; its numbers have a few digits.
_MAX_BYTES = 1 << 20
_MAX_DEPTH = 32
_MAX_NUMBER = 100
# PyYAML's own constructors raise ValueError for a date of month 13 and the like, AttributeError for
# `!!timestamp x`, IndexError for `!!int ''` and KeyError for `!!bool x`.
_NO_VALUE = (yaml.YAMLError, ValueError, AttributeError, LookupError, RecursionError)


@dataclasses.dataclass(frozen=True)
class Setting:
    """A value, and the place where it was written.

    Attributes:
        value: as YAML has it.
        place: for errors: `"my.yaml: line 7"` or `"--set training.steps=5"`.
        layer: settings of higher layers override those of lower ones: 0 for the given file, -1 for
            its base and so on, 1 for an override.
    """

    value: Any
    place: str
    layer: int = 0


class _Loader(yaml.SafeLoader):
    """YAML 1.1 as PyYAML reads it, but 1e-4 is a number (YAML 1.2), not text.

    It refuses aliases, since a few hundred bytes of them can be gigabytes of values. It also
    refuses deep nesting, and numbers with so many digits that they take longer to read than the
    file.
    """

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: object) -> yaml.Node:
        """Reads the next node and what is in it."""
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            raise _refusal("anchors (&) and aliases (*) are not read; write the values out", event)
        if self._depth == _MAX_DEPTH:
            raise _refusal(f"is nested deeper than {_MAX_DEPTH} levels", event)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        is_text = not isinstance(node, yaml.ScalarNode) or node.tag == "tag:yaml.org,2002:str"
        if not is_text and len(node.value) > _MAX_NUMBER:
            raise _refusal(f"a number or date of {len(node.value):,} characters", event)
        return node


def _refusal(problem: str, event: yaml.Event) -> yaml.YAMLError:
    return yaml.composer.ComposerError(None, None, problem, event.start_mark)


class _Dumper(yaml.SafeDumper):
    """Writes what `_Loader` reads: the text 1e-4 is quoted."""


for _class in (_Loader, _Dumper):
    _class.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT_WITHOUT_POINT, "-+.0123456789")


def read_settings(path: str, layer: int) -> dict[str, Setting]:
    """Reads a YAML file of nested mappings as flat settings, keyed `section.key`.

    Args:
        path: path of the file.
        layer: the layer that its settings belong to.

    Raises:
        ConfigurationError: the file is missing, not UTF-8, not YAML, not a mapping, or has a key
            twice.
    """
    try:
        regular_size(path)  # of somebody else's run it may be a pipe
        with open(path, encoding="utf-8") as file:
            text = file.read(_MAX_BYTES + 1)
        if len(text) > _MAX_BYTES:
            raise ConfigurationError(
                f"{path}: is larger than {_MAX_BYTES >> 20} MiB, which no configuration is; name "
                "another file"
            )
        loader = _Loader(text)
        root = loader.get_single_node()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: cannot be read as UTF-8 text ({error})") from error
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}: " if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigurationError(f"{path}: {line}not YAML: {problem}") from error
    if not isinstance(root, yaml.MappingNode):
        raise ConfigurationError(f"{path}: holds no mapping; write lines like `training:`")
    settings: dict[str, Setting] = {}
    _Reader(loader, path, layer, settings).flatten(root, "")
    return settings


@dataclasses.dataclass(frozen=True)
class _Reader:
    loader: _Loader
    path: str
    layer: int
    settings: dict[str, Setting]

    def flatten(self, node: yaml.MappingNode, prefix: str) -> None:
        """Adds what a mapping holds."""
        seen = set()
        for key_node, value_node in node.value:
            place = f"{self.path}: line {key_node.start_mark.line + 1}"
            if not isinstance(key_node, yaml.ScalarNode):
                raise ConfigurationError(f"{place}: a key must be text, like `training`")
            key = f"{prefix}{key_node.value}"
            # PyYAML would silently take the last one; `settings` has what was written dotted.
            if key in seen or key in self.settings:
                raise ConfigurationError(f"{place}: {key} is set twice; remove one of them")
            seen.add(key)
            if not isinstance(value_node, yaml.MappingNode):
                self.settings[key] = Setting(self._value(value_node, place), place, self.layer)
            else:
                self.flatten(value_node, f"{key}.")

    def _value(self, node: yaml.Node, place: str) -> Any:
        try:
            return self.loader.construct_object(node, deep=True)
        except _NO_VALUE as error:
            problem = " ".join(str(getattr(error, "problem", None) or error).split())
            raise ConfigurationError(f"{place}: not YAML: {problem}; quote it") from error


def parse_override(text: str) -> tuple[str, Setting]:
    """Parses one `key=value` of `--set`; the value is read as YAML."""
    key, equals, value = text.partition("=")
    place = f"--set {' '.join(text.splitlines())}"
    if not equals or not key.strip():
        raise ConfigurationError(f"{place}: write KEY=VALUE, for example training.steps=1000")
    try:
        return key.strip(), Setting(yaml.load(value, _Loader), place, layer=1)
    except _NO_VALUE as error:
        raise ConfigurationError(f"{place}: the value is not YAML; quote it") from error


def shipped_directory(kind: str) -> str:
    """Returns the directory of the shipped configurations, `"pretrain"` or `"finetune"`."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    installed = os.path.join(package, "configs", kind)  # in a wheel
    if os.path.isdir(installed):
        return installed
    return os.path.join(os.path.dirname(package), "configs", kind)  # in a clone


def shipped_names(kind: str) -> list[str]:
    """Lists the names of the shipped configurations of a kind."""
    return sorted(
        name.removesuffix(".yaml")
        for name in os.listdir(shipped_directory(kind))
        if name.endswith(".yaml")
    )


def kind_of(name_or_path: str, option: str = "--config") -> str:
    """Returns the kind of a configuration, `pretrain` or `finetune`: the latter names a task.

    Raises:
        ConfigurationError: it is neither a shipped name nor a file, or it or a base cannot be read.
    """
    for kind in KINDS:
        if name_or_path in shipped_names(kind):
            return kind
    if not os.path.isfile(name_or_path):
        shipped = list(itertools.chain.from_iterable(map(shipped_names, KINDS)))
        raise ConfigurationError(
            f"{option}: {name_or_path} is neither a file nor a shipped configuration"
            f"{_nearest(name_or_path, shipped)}; "
            "`spanbert-tf configs` lists them"
        )
    # A base may be of either kind, until it is known which: one that is misspelt is none of both.
    path = find_config(KINDS, name_or_path, "", option)
    return "finetune" if "task" in _with_bases(KINDS, path, ()) else "pretrain"


def load_settings(kind: str, name_or_path: str, overrides: Sequence[str]) -> dict[str, Setting]:
    """Loads settings: those of a file of a kind (see `shipped_directory`), its bases, overrides."""
    path = find_config((kind,), name_or_path, "", "--config")
    return _with_bases((kind,), path, ()) | dict(parse_override(text) for text in overrides)


def _with_bases(
    kinds: Sequence[str], path: str, descendants: tuple[str, ...]
) -> dict[str, Setting]:
    place = os.path.realpath(path)  # the same file is written in many ways
    if place in descendants:
        raise ConfigurationError(f"{path}: is its own base; change `base`")
    settings = read_settings(path, layer=-len(descendants))
    base = settings.pop("base", None)
    if base is None:
        return settings
    if not isinstance(base.value, str):
        raise ConfigurationError(f"{base.place}: base must be a name or a path")
    base_path = find_config(kinds, base.value, os.path.dirname(path), base.place)
    return _with_bases(kinds, base_path, (*descendants, place)) | settings


def find_config(kinds: Sequence[str], name_or_path: str, directory: str, place: str) -> str:
    """Finds a shipped configuration of some kinds, or a file seen from a directory.

    `""` is the working directory. Its name is not looked up, since it may have been removed.
    """
    names = {name: kind for kind in kinds for name in shipped_names(kind)}
    if kind := names.get(name_or_path):
        return os.path.join(shipped_directory(kind), f"{name_or_path}.yaml")
    path = os.path.join(directory, name_or_path)  # a link before `..` leads elsewhere than it says
    if not os.path.isfile(path):
        raise ConfigurationError(
            f"{place}: {name_or_path} is neither a file nor one of {', '.join(names)}"
            f"{_nearest(name_or_path, names)}"
        )
    return path


def _nearest(name: str, names: Iterable[str]) -> str:
    """Returns a clause with the nearest of some names; empty if none is near."""
    plain = os.path.splitext(os.path.basename(name))[0]
    nearest = difflib.get_close_matches(plain.lower(), names, n=1)
    return f"; the nearest is {nearest[0]}" if nearest else ""


class Configuration(Section):
    """A whole configuration, as a file holds it."""

    def to_yaml(self) -> str:
        """Writes YAML that is read as the same configuration, without machines and code."""
        values = self.model_dump()
        for key, this_machine in _ADDRESSES.items():
            section, _, name = key.partition(".")
            values[section][name] = this_machine
        section, _, name = _CODE.partition(".")
        values[section][name] = []
        return yaml.dump(values, Dumper=_Dumper, sort_keys=False)


_Config = TypeVar("_Config", bound=Configuration)


def build_config(kind: type[_Config], settings: dict[str, Setting], source: str) -> _Config:
    """Makes a configuration of flat settings; `source` is named where a default is wrong."""
    _check_addresses(settings)
    _check_code(settings, source)
    known = list(known_keys(kind))
    values: dict[str, Any] = {}
    for key, setting in settings.items():
        if key not in known:
            raise ConfigurationError(f"{setting.place}: {_unknown_key(key, known)}")
        *sections, name = key.split(".")
        inner = values
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[name] = setting.value

    def place(keys: Sequence[str]) -> str:
        # Of several values that conflict, the topmost one was written last.
        written = [settings[key] for key in keys if key in settings]
        return max(written, key=lambda setting: setting.layer).place if written else source

    return validated(kind, values, place=lambda keys: f"{place(keys)}: ")


def _check_addresses(settings: dict[str, Setting]) -> None:
    """Raises `ConfigurationError` where a file names another machine."""
    for key, this_machine in _ADDRESSES.items():
        setting = settings.get(key)
        if setting is None or setting.layer > 0:
            continue
        if isinstance(setting.value, str) and setting.value != this_machine:
            raise ConfigurationError(
                f"{setting.place}: {key} names another machine, which no file may; remove the "
                f"line, and where you trust that machine, give it as --set {key}=NAME"
            )


def _check_code(settings: dict[str, Setting], source: str) -> None:
    """Raises `ConfigurationError` where a base, or the file of a run, names code to run."""
    setting = settings.get(_CODE)
    if setting is None or setting.value == []:
        return
    is_of_run = os.path.exists(os.path.join(os.path.dirname(source), INPUTS_FILE))
    if setting.layer < 0 or (setting.layer == 0 and is_of_run):
        raise ConfigurationError(
            f"{setting.place}: {_CODE} names code to run, which neither a base nor the file of a "
            f"run may; where you trust it, give it as --set {_CODE}=[PACKAGE.MODULE:CLASS]"
        )


def known_keys(kind: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Lists the keys of a configuration, those in sections as `section.key`."""
    for name, field in kind.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from known_keys(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def flat_values(config: Section) -> dict[str, Any]:
    """Returns the values of a configuration, keyed `section.key`."""
    values = {}
    for key in known_keys(type(config)):
        value: Any = config
        for name in key.split("."):
            value = getattr(value, name)
        values[key] = value
    return values


def _unknown_key(key: str, known: list[str]) -> str:
    if any(name.startswith(f"{key}.") for name in known):
        return f"{key} is a section; write its keys below it"
    # A key in the wrong section is found by its last part, one that is called otherwise elsewhere
    # by a table, and a misspelt one by its letters.
    same_name = [name for name in known if name.rpartition(".")[2] == key.rpartition(".")[2]]
    if same_name:
        nearest = same_name[0]
    else:
        nearest = meant_key(key, known) or difflib.get_close_matches(key, known, 1, cutoff=0.0)[0]
    return f"unknown key {key}; the nearest is {nearest}"
