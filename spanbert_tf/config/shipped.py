"""The shipped configurations as the command `configs` shows them."""

import itertools
import os
import re
import shutil
import textwrap
from collections.abc import Callable

from spanbert_tf.config.finetuning import FinetuningConfig
from spanbert_tf.config.pretraining import load_config
from spanbert_tf.config.settings import shipped_directory, shipped_names
from spanbert_tf.errors import ConfigurationError

_KINDS = ("pretrain", "finetune")  # and the commands that take them


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


def resolved_text(name: str, load_finetuning: Callable[[str], FinetuningConfig]) -> str:
    """The opening comment and all values of a shipped configuration, as YAML.

    Args:
        name: name of the configuration.
        load_finetuning: loads one of fine-tuning, whose classes are the tasks'.

    Raises:
        ConfigurationError: no configuration has that name.
    """
    for kind, load in (("pretrain", load_config), ("finetune", load_finetuning)):
        if name in shipped_names(kind):
            return "\n".join(_opening_comment(kind, name)) + "\n" + load(name).to_yaml()
    names = ", ".join(name for kind in _KINDS for name in shipped_names(kind))
    raise ConfigurationError(f"--show {name}: is not one of {names}")


def _opening_comment(kind: str, name: str) -> list[str]:
    path = os.path.join(shipped_directory(kind), f"{name}.yaml")
    with open(path, encoding="utf-8") as file:
        return list(itertools.takewhile(lambda line: line.startswith("#"), file.read().split("\n")))


def _first_sentence(kind: str, name: str) -> str:
    lines = [line.removeprefix("#").strip() for line in _opening_comment(kind, name)]
    paragraph = " ".join(itertools.takewhile(bool, lines))
    without_sources = re.sub(r" \([^()]*(arXiv|appendix)[^()]*\)", "", paragraph)
    return re.split(r"(?<=\.) (?=[A-Z])", without_sources)[0]
