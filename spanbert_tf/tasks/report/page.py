"""The page of HTML that shows each record of a task, with filters and a search.

`page.html` has what all pages share. A task's own template extends it, and fills in the blocks
`style`, `summary` and `record`.
"""

import itertools
import operator
import os
from collections.abc import Mapping, Sequence

import jinja2
import markupsafe

# Tells a report from any other page.
GENERATOR = '<meta name="generator" content="spanbert-tf evaluate">'
_HEAD_BYTES = 1024
_MARKS = {(True, True): "both", (True, False): "gold", (False, True): "model"}


def render_page(
    template: str,
    title: str,
    records: Sequence[Mapping],
    filters: Mapping[str, str],
    **values: object,
) -> str:
    """The page as HTML that needs nothing else.

    Args:
        template: path of the task's template, which begins with `{% extends "page.html" %}`. What
            it fills in is escaped.
        title: title of the page.
        records: what the template's block `record` shows as `record`. Each has `kinds`, the names
            of the filters that show it.
        filters: name → what a filter is called; the number of its records is added.
        **values: of the template's block `summary`.
    """
    folder, name = os.path.split(os.path.abspath(template))
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([folder, os.path.dirname(os.path.abspath(__file__))]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    counts = {kind: sum(kind in record["kinds"] for record in records) for kind in filters}
    return environment.get_template(name).render(
        generator=markupsafe.Markup(GENERATOR),
        title=title,
        records=records,
        filters=filters,
        counts=counts,
        **values,
    )


def marked_parts(
    text: str, golds: Sequence[Sequence[int]], chosen: Sequence[Sequence[int]]
) -> list[tuple[str, str | None]]:
    """A text in parts, each with the kind of its mark: `gold`, `model`, `both` or `None`.

    Args:
        text: text of the record.
        golds: first character of each marked place, and the one after its last.
        chosen: by the model, as `golds`.
    """
    # How many more places of both kinds there are from each border on.
    changes = {border: [0, 0] for border in (0, len(text))}
    for kind, spans in enumerate((golds, chosen)):
        for start, end, *_ in spans:
            changes.setdefault(start, [0, 0])[kind] += 1
            changes.setdefault(end, [0, 0])[kind] -= 1
    parts, num_open = [], (0, 0)
    for start, end in itertools.pairwise(sorted(changes)):
        num_open = tuple(map(operator.add, num_open, changes[start]))
        parts.append((text[start:end], _MARKS.get(tuple(map(bool, num_open)))))
    return parts


def is_report(path: str) -> bool:
    """Whether a file is a page that `evaluate --report` wrote."""
    try:
        with open(path, "rb") as file:
            return GENERATOR.encode() in file.read(_HEAD_BYTES)
    except OSError:
        return False
