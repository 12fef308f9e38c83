"""The shipped configurations: where they lie, and what each is for."""

import itertools
import os
import re
import shutil
import textwrap

from spanbert_tf.errors import ConfigurationError

_KINDS = ("pretrain", "finetune")  # and the commands that take them


def shipped_directory(kind: str) -> str:
    """The directory of the shipped configurations of a kind, `"pretrain"` or `"finetune"`."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    installed = os.path.join(package, "configs", kind)  # in a wheel
    if os.path.isdir(installed):
        return installed
    return os.path.join(os.path.dirname(package), "configs", kind)  # in a clone


def shipped_names(kind: str) -> list[str]:
    """Names of the shipped configurations of a kind."""
    return sorted(
        name.removesuffix(".yaml")
        for name in os.listdir(shipped_directory(kind))
        if name.endswith(".yaml")
    )


def shipped_table() -> str:
    """The shipped configurations, one a line, each with what its opening comment says first."""
    width = shutil.get_terminal_size((100, 24)).columns
    names = {kind: shipped_names(kind) for kind in _KINDS}
    indent = max(len(name) for of_kind in names.values() for name in of_kind) + 4
    lines = []
    for kind in _KINDS:
        lines += [f"spanbert-tf {kind} --config NAME:"]
        for name in names[kind]:
            text = textwrap.shorten(_first_sentence(kind, name), width - indent, placeholder=" …")
            lines.append(f"  {name:<{indent - 2}}{text}")
    return "\n".join(lines) + "\n"


def resolved_text(name: str) -> str:
    """The opening comment and all values of a shipped configuration, as YAML.

    Raises:
        ConfigurationError: no configuration has that name.
    """
    for kind, load in (("pretrain", _load_pretraining), ("finetune", _load_finetuning)):
        if name in shipped_names(kind):
            return "\n".join(_opening_comment(kind, name)) + "\n" + load(name)
    names = ", ".join(name for kind in _KINDS for name in shipped_names(kind))
    raise ConfigurationError(f"--show {name}: is not one of {names}")


def _load_pretraining(name: str) -> str:
    from spanbert_tf.config import load_config

    return load_config(name).to_yaml()


def _load_finetuning(name: str) -> str:
    from spanbert_tf.config import load_finetuning_config

    return load_finetuning_config(name).to_yaml()


def _opening_comment(kind: str, name: str) -> list[str]:
    path = os.path.join(shipped_directory(kind), f"{name}.yaml")
    with open(path, encoding="utf-8") as file:
        return list(itertools.takewhile(lambda line: line.startswith("#"), file.read().split("\n")))


def _first_sentence(kind: str, name: str) -> str:
    lines = [line.removeprefix("#").strip() for line in _opening_comment(kind, name)]
    paragraph = " ".join(itertools.takewhile(bool, lines))
    without_sources = re.sub(r" \([^()]*(arXiv|appendix)[^()]*\)", "", paragraph)
    return re.split(r"(?<=\.) (?=[A-Z])", without_sources)[0]


def find_config(kind: str, name_or_path: str, directory: str, place: str) -> str:
    """The path of a shipped configuration, or of a file seen from a directory.

    Args:
        kind: `"pretrain"` or `"finetune"`.
        name_or_path: what the user wrote.
        directory: where a relative path begins.
        place: where it was written, for errors.

    Raises:
        ConfigurationError: it is neither.
    """
    names = shipped_names(kind)
    if name_or_path in names:
        return os.path.join(shipped_directory(kind), f"{name_or_path}.yaml")
    path = os.path.normpath(os.path.join(directory, name_or_path))
    if not os.path.isfile(path):
        raise ConfigurationError(
            f"{place}: {name_or_path} is neither a file nor one of {', '.join(names)}"
        )
    return path
