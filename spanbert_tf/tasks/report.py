"""What the reports of all tasks share: the page that shows each record, and tables of classes.

`page.html` has what all pages share. A task's own template extends it, and fills in the blocks
`style`, `summary` and `record`. Tables on the terminal have precision, recall and F1 of each class,
and what is confused.
"""

import collections
import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import jinja2
import markupsafe
import rich.table

from spanbert_tf.console import DataConsole

# Tells a report from any other page.
GENERATOR = '<meta name="generator" content="spanbert-tf evaluate">'
_HEAD_BYTES = 1024
_MATRIX_CLASSES = 20  # more do not fit on a screen
_NAMED_COLUMNS = 6  # more classes have numbers in their place
SHOWN_CONFUSIONS = 20


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


class ClassScore(NamedTuple):
    """How well a class is predicted, in percent.

    Attributes:
        name: name of the class.
        precision: right ones of those predicted; 0 where none is.
        recall: right ones of those that there are; 0 where there is none.
        f1: their harmonic mean.
        support: how many there are.
    """

    name: str
    precision: float
    recall: float
    f1: float
    support: int


def class_scores(
    gold: Sequence[str], predicted: Sequence[str], labels: Sequence[str]
) -> list[ClassScore]:
    """The scores of each class.

    Args:
        gold: the right label of each record.
        predicted: the model's.
        labels: all classes, in the order of the table.
    """
    import sklearn.metrics  # takes a second, and so where it counts

    columns = sklearn.metrics.precision_recall_fscore_support(
        gold, predicted, labels=list(labels), zero_division=0
    )
    *shares, support = (column.tolist() for column in columns)
    percents = ([100 * value for value in column] for column in shares)
    # Of classes that some of the labels lack, scikit-learn's counts are floats.
    return list(map(ClassScore, labels, *percents, map(int, support)))


def print_class_scores(console: DataConsole, scores: Iterable[ClassScore]) -> None:
    """Prints a line for each class."""
    table = rich.table.Table("class")
    for name in ("precision", "recall", "F1", "support"):
        table.add_column(name, justify="right")
    for score in scores:
        shown = (f"{value:.2f}" for value in score[1:-1])
        table.add_row(score.name, *shown, f"{score.support:,}")
    console.print(table)


def print_confusions(
    console: DataConsole,
    gold: Sequence[str],
    predicted: Sequence[str],
    labels: Sequence[str],
) -> None:
    """Prints the confusion matrix; of many classes, the most frequent confusions.

    Args:
        console: where to print.
        gold: the right label of each record.
        predicted: the model's.
        labels: all classes, in the order of the matrix.
    """
    counts = collections.Counter(zip(gold, predicted, strict=True))
    if len(labels) > _MATRIX_CLASSES:
        console.print(_frequent_confusions(counts))
    else:
        console.print(_confusion_matrix(counts, labels))


def _confusion_matrix(counts: collections.Counter, labels: Sequence[str]) -> rich.table.Table:
    table = rich.table.Table("gold \\ predicted", title="confusion matrix")
    is_named = len(labels) <= _NAMED_COLUMNS
    for number, label in enumerate(labels, start=1):
        table.add_column(label if is_named else str(number), justify="right")
    for number, label in enumerate(labels, start=1):
        name = label if is_named else f"{number} {label}"
        row = (f"{counts[label, other]:,}" for other in labels)
        table.add_row(name, *row)
    return table


def _frequent_confusions(counts: collections.Counter) -> rich.table.Table:
    table = rich.table.Table("gold", "predicted", title="most frequent confusions")
    table.add_column("records", justify="right")
    wrong = collections.Counter({pair: n for pair, n in counts.items() if pair[0] != pair[1]})
    for (label, other), count in wrong.most_common(SHOWN_CONFUSIONS):
        table.add_row(label, other, f"{count:,}")
    return table
