"""The page of HTML that shows each record of a task, with filters and a search.

`page.html` has what all pages share. A task's own template extends it, and fills in the blocks
`style`, `summary` and `record`.
"""

import collections
import itertools
import os
from collections.abc import Iterable, Mapping, Sequence

import jinja2
import markupsafe

# Tells a report from any other page.
GENERATOR = '<meta name="generator" content="spanbert-tf evaluate">'
_HEAD_BYTES = 1024


def render_page(
    template: str,
    title: str,
    records: Sequence[Mapping],
    filters: Mapping[str, str],
    *,
    unit: str,
    by: str,
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
        unit: what the records are called, in the plural.
        by: whose predictions these are, `"model"` or `"baseline"`.
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
        unit=unit,
        by=by,
        **values,
    )


def predictor_of(model: object | None) -> str:
    """What predictions are called: the model's, or the baseline's, which has no model."""
    return "baseline" if model is None else "model"


def marked_parts(
    text: str,
    golds: Iterable[Sequence],
    chosen: Iterable[Sequence],
    notes: tuple[str, str, str],
) -> list[tuple[str, str | None, str]]:
    """A text in parts, each with the kind and the note of its mark.

    The kind is `gold` or `model` where places of one sort alone are, `both` where a place is of
    both sorts, borders and names alike, `overlap` where different ones are, and `None` elsewhere.
    The note names the places that begin there.

    Args:
        text: text of the record.
        golds: first character of each marked place, the one after its last, and its name, if any.
        chosen: by the model, as `golds`.
        notes: what is said of a place of `golds`, of `chosen` and of both.
    """
    of_gold, of_model = (set(map(tuple, places)) for places in (golds, chosen))
    kinds = dict.fromkeys(of_gold, "gold") | dict.fromkeys(of_model, "model")
    kinds |= dict.fromkeys(of_gold & of_model, "both")
    changes = {border: collections.Counter() for border in (0, len(text))}  # of open places
    names = collections.defaultdict(list)
    note_of = dict(zip(("gold", "model", "both"), notes, strict=True))
    for place in sorted(kinds, key=lambda place: (*place[:2], kinds[place])):
        start, end, *name = place
        if start < end:
            names[start].append(" ".join([*map(str, filter(None, name)), note_of[kinds[place]]]))
            changes.setdefault(start, collections.Counter())[kinds[place]] += 1
            changes.setdefault(end, collections.Counter())[kinds[place]] -= 1
    parts, num_open = [], collections.Counter()
    for start, end in itertools.pairwise(sorted(changes)):
        num_open.update(changes[start])
        open_kinds = {kind for kind, count in num_open.items() if count}
        parts.append((text[start:end], _kind_of_part(open_kinds), ", ".join(names[start])))
    return parts


def _kind_of_part(kinds: set[str]) -> str | None:
    if "both" in kinds:
        return "both"
    return "overlap" if len(kinds) > 1 else next(iter(kinds), None)


def is_report(path: str) -> bool:
    """Whether a file is a page that `evaluate --report` wrote."""
    try:
        with open(path, "rb") as file:
            return GENERATOR.encode() in file.read(_HEAD_BYTES)
    except OSError:
        return False
