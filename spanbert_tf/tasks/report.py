"""What the reports of all tasks share: the page that shows each record, and tables of classes.

`page.html` has what all pages share. A task's own template extends it, and fills in the blocks
`style`, `summary` and `record`. A `Table` is printed on the terminal and stands in the page.
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
_NAMED_CHARACTERS = 70  # of all heads of a matrix; longer names have numbers in their place
SHOWN_CONFUSIONS = 20
_MARKED_TEXTS = """{% from "parts.html" import marked %}{% include "marks.html" %}
{% for parts in texts %}
<p>{{ marked(parts) }}</p>
{% endfor %}"""
_ERRORS, _RIGHT = "errors", "right"  # filters of every page
_AVERAGES = ("micro", "macro", "weighted")  # those of scikit-learn and seqeval


class Table(NamedTuple):
    """A table as text, for the terminal and for the page.

    Attributes:
        title: what it shows.
        columns: heads of the columns.
        rows: their cells.
        totals: rows that sum up the others.
        num_names: how many of the first columns hold names; the others hold numbers.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    totals: Sequence[Sequence[str]] = ()
    num_names: int = 1


def print_table(console: DataConsole, table: Table) -> None:
    """Prints a table; a line stands over the rows that sum up the others."""
    shown = rich.table.Table(title=table.title)
    for number, name in enumerate(table.columns):
        shown.add_column(name, justify="left" if number < table.num_names else "right")
    for number, row in enumerate(table.rows, start=1):
        shown.add_row(*row, end_section=number == len(table.rows))
    for row in table.totals:
        shown.add_row(*row)
    console.print(shown)


def render_page(
    template: str,
    title: str,
    records: Iterable[Mapping],
    filters: Mapping[str, str],
    *,
    unit: str,
    by: str,
    tables: Sequence[Table] = (),
    **values: object,
) -> str:
    """The page as HTML that needs nothing else; the worst errors first.

    Args:
        template: path of the task's template, which begins with `{% extends "page.html" %}`. What
            it fills in is escaped.
        title: title of the page.
        records: what the template's block `record` shows as `record`, in the order of the file.
            Each has `error`, how wrong it is, 0 for right, and `kinds`, the names of the filters
            that show it. The block has `record.place`, too: "text 3 of 20".
        filters: name → what a filter is called; the number of its records is added. Every page has
            filters for the records with errors and for the others.
        unit: what a record is called, in the singular.
        by: whose predictions these are, `"model"` or `"baseline"`.
        tables: of the classes, and of what is confused.
        **values: of the template's block `summary`.
    """
    folder, name = os.path.split(os.path.abspath(template))
    filters = {_ERRORS: "with errors", _RIGHT: "all right"} | dict(filters)
    records = list(records)
    shown = []
    for number, record in enumerate(records, start=1):
        place = f"{unit} {number:,} of {len(records):,}"
        kinds = [_ERRORS if record["error"] else _RIGHT, *record["kinds"]]
        shown.append({**record, "place": place, "kinds": kinds})
    shown.sort(key=lambda record: -record["error"])
    counts = {kind: sum(kind in record["kinds"] for record in shown) for kind in filters}
    return (
        _environment(folder)
        .get_template(name)
        .render(
            generator=markupsafe.Markup(GENERATOR),
            title=title,
            records=shown,
            filters=filters,
            counts=counts,
            unit=unit,
            by=by,
            tables=tables,
            **values,
        )
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


def marked_html(texts: Iterable[Sequence[tuple[str, str | None, str]]]) -> markupsafe.Markup:
    """Texts in parts (`marked_parts`) as HTML with the marks of the reports, for a notebook."""
    template = _environment().from_string(_MARKED_TEXTS)
    return markupsafe.Markup(template.render(texts=texts))


def _environment(*folders: str) -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader([*folders, os.path.dirname(os.path.abspath(__file__))]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )


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
    """How well a class is predicted, in percent; or an average over classes.

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


class ClassScores(NamedTuple):
    """The scores of each class; and their averages, micro, macro and weighted by the support."""

    classes: list[ClassScore]
    averages: list[ClassScore]


def average_name(kind: str, without: str | None = None) -> str:
    """What an average is called: "macro avg", as scikit-learn and seqeval have it."""
    return f"{kind} avg" + (f" without {without}" if without else "")


def class_scores(
    gold: Sequence[str],
    predicted: Sequence[str],
    labels: Sequence[str],
    without: str | None = None,
) -> ClassScores:
    """The scores of each class, and their averages over the classes that gold or predicted hold.

    Args:
        gold: the right label of each record.
        predicted: the model's.
        labels: all classes, in the order of the table.
        without: a class that averages leave out, such as that of no relation.
    """
    import sklearn.metrics  # takes a second, and so where it counts

    def computed(names: Sequence[str], average: str | None) -> tuple:
        return sklearn.metrics.precision_recall_fscore_support(
            gold, predicted, labels=list(names), average=average, zero_division=0
        )

    *shares, support = (column.tolist() for column in computed(labels, None))
    percents = ([100 * value for value in column] for column in shares)
    # Of classes that some of the labels lack, scikit-learn's counts are floats.
    classes = list(map(ClassScore, labels, *percents, map(int, support)))
    found = set(gold) | set(predicted)
    averaged = [label for label in labels if label in found and label != without]
    num_averaged = sum(score.support for score in classes if score.name in averaged)
    averages = []
    for kind in _AVERAGES if averaged else ():
        *shares, _ = computed(averaged, kind)
        percents = (100 * float(share) for share in shares)
        averages.append(ClassScore(average_name(kind, without), *percents, num_averaged))
    return ClassScores(classes, averages)


def class_table(title: str, scores: ClassScores) -> Table:
    """A row for each class, and the averages."""
    rows, totals = ([_cells(score) for score in part] for part in scores)
    return Table(title, ("", "precision", "recall", "F1", "support"), rows, totals)


def _cells(score: ClassScore) -> list[str]:
    shares = [f"{value:.2f}" for value in score[1:-1]]
    return [score.name, *shares, f"{score.support:,}"]


def confusion_table(
    gold: Sequence[str],
    predicted: Sequence[str],
    labels: Sequence[str],
    columns: Sequence[str] | None = None,
) -> Table:
    """The confusion matrix; of many classes, the most frequent confusions.

    Args:
        gold: the right label of each record.
        predicted: the model's.
        labels: all classes, in the order of the matrix.
        columns: what can be predicted, where that is not `labels`.
    """
    counts = collections.Counter(zip(gold, predicted, strict=True))
    if len(labels) > _MATRIX_CLASSES:
        wrong = collections.Counter({pair: n for pair, n in counts.items() if pair[0] != pair[1]})
        rows = [(*pair, f"{count:,}") for pair, count in wrong.most_common(SHOWN_CONFUSIONS)]
        heads = ("gold", "predicted", "count")
        return Table("most frequent confusions", heads, rows, num_names=2)
    columns = labels if columns is None else columns
    numbers = {label: str(number) for number, label in enumerate(labels, start=1)}
    if sum(map(len, columns)) <= _NAMED_CHARACTERS:
        numbers = {}
    rows = []
    for label in labels:
        name = f"{numbers[label]} {label}" if numbers else label
        rows.append((name, *(f"{counts[label, other]:,}" for other in columns)))
    heads = (numbers.get(name, name) for name in columns)
    return Table("confusion matrix", ("gold \\ predicted", *heads), rows)
