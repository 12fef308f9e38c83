"""The shipped configurations as the command `configs` shows them."""

import itertools
import re
import shutil
import textwrap
from collections.abc import Callable, Sequence

from spanbert_tf.config.finetuning import FinetuningConfig
from spanbert_tf.config.pretraining import load_config
from spanbert_tf.config.settings import KINDS, find_config, kind_of, shipped_names

_MIN_ROOM = 20  # for words beside a name; a narrower terminal breaks the line


def shipped_table() -> str:
    """Lists the shipped configurations, one a line, each with its opening comment's beginning."""
    width = shutil.get_terminal_size((100, 24)).columns
    names = {kind: shipped_names(kind) for kind in KINDS}
    indent = max(len(name) for of_kind in names.values() for name in of_kind) + 4
    room = max(width - indent, _MIN_ROOM)
    lines = []
    for kind in KINDS:
        lines += [f"spanbert-tf {kind} --config NAME:"]
        for name in names[kind]:
            text = textwrap.shorten(_first_sentence(kind, name), room, placeholder=" …")
            lines.append(f"  {name:<{indent - 2}}{text}")
    return "\n".join(lines) + "\n"


def resolved_text(
    name_or_path: str,
    load_finetuning: Callable[[str, Sequence[str]], FinetuningConfig],
    overrides: Sequence[str] = (),
) -> str:
    """Returns the opening comment and all values of a configuration, as YAML.

    Args:
        name_or_path: name of a shipped configuration, or path of another one.
        load_finetuning: loads one of fine-tuning, whose classes are the tasks'.
        overrides: `KEY=VALUE` each.

    Raises:
        ConfigurationError: there is none, or something in it makes no sense.
    """
    kind = kind_of(name_or_path, "--show")
    load = load_finetuning if kind == "finetune" else load_config
    text = load(name_or_path, overrides).to_yaml()
    return "\n".join([*_opening_comment(kind, name_or_path), text])


def _opening_comment(kind: str, name_or_path: str) -> list[str]:
    with open(find_config((kind,), name_or_path, "", "--show"), encoding="utf-8") as file:
        return list(itertools.takewhile(lambda line: line.startswith("#"), file.read().split("\n")))


def _first_sentence(kind: str, name: str) -> str:
    lines = [line.removeprefix("#").strip() for line in _opening_comment(kind, name)]
    paragraph = " ".join(itertools.takewhile(bool, lines))
    without_sources = re.sub(r" \([^()]*(arXiv|appendix)[^()]*\)", "", paragraph)
    return re.split(r"(?<=\.) (?=[A-Z])", without_sources)[0]
