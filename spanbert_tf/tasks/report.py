"""Reports of all tasks: pages that show each record, and tables of classes.

`page.html` is the base template. The template of a task extends it and fills in the blocks `style`,
`summary` and `record`. A `Table` is printed on the terminal and shown in the page.
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

# Marks a page as a report.
GENERATOR = '<meta name="generator" content="spanbert-tf evaluate">'
_HEAD_BYTES = 1024
_MATRIX_CLASSES = 20  # largest number of classes of a matrix; more do not fit on a screen
_NAMED_CHARACTERS = 70  # the heads of a matrix are numbers if the names are longer in total
SHOWN_CONFUSIONS = 20
_MARKED_TEXTS = """{% from "parts.html" import marked %}{% include "marks.html" %}
{% for parts in texts %}
<p>{{ marked(parts) }}</p>
{% endfor %}"""
_ERRORS, _RIGHT = "errors", "right"  # filters of every page
_AVERAGES = ("micro", "macro", "weighted")  # those of scikit-learn and seqeval


class Table(NamedTuple):
    """A table of texts, for the terminal and the page.

    Attributes:
        title: title of the table.
        columns: heads of the columns.
        rows: cells of the rows.
        totals: rows that summarize the others.
        num_names: number of columns, from the first, that hold names. The others hold numbers.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    totals: Sequence[Sequence[str]] = ()
    num_names: int = 1


def print_table(console: DataConsole, table: Table) -> None:
    """Prints a table, with a line above the rows that summarize the others."""
    shown = rich.table.Table(title=table.title)
    for index, name in enumerate(table.columns):
        shown.add_column(name, justify="left" if index < table.num_names else "right")
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
    """Renders a page as one file of HTML, with the worst errors first.

    Args:
        template: path of the task's template, which begins with `{% extends "page.html" %}`. All
            values are escaped.
        title: title of the page.
        records: the values that the template's block `record` shows as `record`, in the order of
            the file. Each has `error`, a number that is 0 where nothing is wrong, and `kinds`, the
            names of the filters that show it. `record.place` is added, such as "text 3 of 20".
        filters: name → title of a filter; the number of its records is added. Every page has
            filters for the records with errors and for the others.
        unit: what a record is called, in the singular.
        by: who made the predictions, `"model"` or `"baseline"`.
        tables: tables of the classes and of confusions.
        **values: values for the template's block `summary`.
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
    """Splits a text into parts, each with the kind and the note of its mark.

    The kind is `gold` or `model` where only places of one sort are, `both` where a place with the
    same borders and name is of both sorts, `overlap` where different places are, and `None`
    elsewhere. The note names the places that begin at the part.

    Args:
        text: text of the record.
        golds: first character of each gold place, the character after its last, and a name, if any.
        chosen: the places that the model chose, as `golds`.
        notes: notes for a place of `golds`, of `chosen` and of both.
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
    """Renders texts in parts (`marked_parts`) as HTML with the marks of reports, for notebooks."""
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
    """The scores of a class, or an average over classes, in percent.

    Attributes:
        name: name of the class.
        precision: share of the predictions of the class that are right; 0 without predictions.
        recall: share of the gold items of the class that are predicted; 0 without gold items.
        f1: harmonic mean of precision and recall.
        support: number of gold items.
    """

    name: str
    precision: float
    recall: float
    f1: float
    support: int


class ClassScores(NamedTuple):
    """The scores of each class; and their micro, macro and weighted averages."""

    classes: list[ClassScore]
    averages: list[ClassScore]


def average_name(kind: str, without: str | None = None) -> str:
    """The name of an average, such as "macro avg", as in scikit-learn and seqeval."""
    if without:
        return f"{kind} avg without {without}"
    return f"{kind} avg"


def class_scores(
    gold: Sequence[str],
    predicted: Sequence[str],
    labels: Sequence[str],
    without: str | None = None,
) -> ClassScores:
    """The scores of each class, and averages over the classes that occur.

    Args:
        gold: the gold label of each record.
        predicted: the predicted label of each record.
        labels: all classes, in the order of the table.
        without: a class that averages leave out, such as the class for no relation.
    """
    import sklearn.metrics  # the import takes a second

    def computed(names: Sequence[str], average: str | None) -> tuple:
        return sklearn.metrics.precision_recall_fscore_support(
            gold, predicted, labels=list(names), average=average, zero_division=0
        )

    *shares, support = (column.tolist() for column in computed(labels, None))
    percents = ([100 * value for value in column] for column in shares)
    # scikit-learn's counts are floats if a class does not occur.
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
    """The table of scores: a row for each class, and the averages."""
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
    """The confusion matrix; for many classes, the most frequent confusions.

    Args:
        gold: the gold label of each record.
        predicted: the predicted label of each record.
        labels: all classes, in the order of the matrix.
        columns: the classes that can be predicted, if they are not `labels`.
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
