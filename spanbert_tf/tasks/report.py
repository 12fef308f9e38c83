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
from spanbert_tf.files.text_files import without_surrogates
from spanbert_tf.text.languages import DEFAULT_LANGUAGE

# Marks a page as a report.
GENERATOR = '<meta name="generator" content="spanbert-tf evaluate">'
_HEAD_BYTES = 1024
_MATRIX_CLASSES = 20  # largest number of classes of a matrix; more do not fit on a screen
_NAMED_CHARACTERS = 70  # the heads of a matrix are numbers if the names are longer in total
SHOWN_CONFUSIONS = 20
_MARKED_TEXTS = """{% from "parts.html" import marked %}{% include "marks.html" %}
{% for parts in texts %}
<p dir="auto">{{ marked(parts) }}</p>
{% endfor %}"""
_MARKED_PARTS = """{% from "parts.html" import marked %}{{ marked(parts) }}"""
_ANSWERS = """{% include "marks.html" %}
{% for view in views %}
{% for text in view.texts %}
<p dir="auto" style="white-space: pre-wrap">{{ text }}</p>
{% endfor %}
{% if view.shares %}
<table>
{% for name, share in view.shares %}
<tr><td dir="auto">{{ name }}</td>
<td><meter value="{{ share }}"></meter> {{ "%.4f"|format(share) }}</td></tr>
{% endfor %}
</table>
{% endif %}
{% endfor %}"""
# Attributes of an element of a template that shows a text of a record: `<p {{ written }}>`.
_WRITTEN = 'dir="auto" lang="{}"'
# Filters of every page.
_ERRORS = "errors"
_RIGHT = "right"
_AVERAGES = ("micro", "macro", "weighted")  # as in scikit-learn and seqeval
# A part of a text, the kind of its mark or `None`, and the note of its mark.
MarkedPart = tuple[str, str | None, str]


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


class Report(NamedTuple):
    """What a task shows of its records in a page.

    Attributes:
        template: path of the task's template, which begins with `{% extends "page.html" %}`. All
            values are escaped.
        unit: what a record is called, in the singular.
        records: the values that the template's block `record` shows as `record`, in the order of
            the file. Each has `error`, a number that is 0 where nothing is wrong, and `kinds`, the
            names of the filters that show it. `record.place` is added, such as "text 3 of 20".
        filters: name → title of a filter; the number of its records is added. Every page has
            filters for the records with errors and for the others.
        values: values for the template's block `summary`.

    Elements that show texts of records have the attributes `{{ written }}`: direction and language.
    """

    template: str
    unit: str
    records: Iterable[Mapping]
    filters: Mapping[str, str]
    values: Mapping[str, object]


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
    report: Report,
    title: str,
    *,
    by: str,
    tables: Sequence[Table],
    language: str = DEFAULT_LANGUAGE,
) -> str:
    """Renders a page as one file of HTML, with the worst errors first.

    Texts of the records are shown from right to left where their first letter is written so, and
    in the letter forms of their language, which differ between Chinese and Japanese.

    Args:
        report: what the task shows.
        title: title of the page.
        by: who made the predictions, `"model"` or `"baseline"`.
        tables: tables of the classes and of confusions.
        language: code of the language of the records.
    """
    folder, name = os.path.split(os.path.abspath(report.template))
    filters = {_ERRORS: "with errors", _RIGHT: "all right", **report.filters}
    records = list(report.records)
    shown = []
    for number, record in enumerate(records, start=1):
        place = f"{report.unit} {number:,} of {len(records):,}"
        kinds = [_ERRORS if record["error"] else _RIGHT, *record["kinds"]]
        shown.append({**record, "place": place, "kinds": kinds})
    shown.sort(key=lambda record: -record["error"])
    counts: collections.Counter[str] = collections.Counter()
    for record in shown:
        counts.update(set(record["kinds"]))  # a record counts once for each kind
    return (
        _environment(folder)
        .get_template(name)
        .render(
            generator=markupsafe.Markup(GENERATOR),
            title=title,
            records=shown,
            filters=filters,
            counts=counts,
            unit=report.unit,
            by=by,
            tables=tables,
            written=markupsafe.Markup(_WRITTEN.format(language)),
            **report.values,
        )
    )


def marked_parts(
    text: str,
    golds: Iterable[Sequence],
    chosen: Iterable[Sequence],
    notes: tuple[str, str, str],
) -> list[MarkedPart]:
    """Splits a text into parts, each with the kind and the note of its mark.

    The kind is `gold` or `model` if the part is only in places of that sort, `both` if a place with
    the same borders and the same name is of both sorts, `overlap` if it is in different places, and
    `None` if it is in no place. The note names the places that begin at the part.

    Args:
        text: text of the record.
        golds: first character of each gold place, the character after its last, and a name, if any.
        chosen: the places that the model chose, as `golds`.
        notes: notes for a place of `golds`, of `chosen` and of both; they may be empty.
    """
    gold_places = {tuple(place) for place in golds}
    model_places = {tuple(place) for place in chosen}
    kinds = dict.fromkeys(gold_places, "gold") | dict.fromkeys(model_places, "model")
    kinds |= dict.fromkeys(gold_places & model_places, "both")
    note_of = dict(zip(("gold", "model", "both"), notes, strict=True))
    # Index of a character → how the number of open places of each kind changes there.
    changes: dict[int, collections.Counter[str]] = {
        0: collections.Counter(),
        len(text): collections.Counter(),
    }
    names: dict[int, list[str]] = collections.defaultdict(list)  # of the places that begin there
    for place in sorted(kinds, key=lambda place: (*place[:2], kinds[place])):
        start, end, *name = place
        kind = kinds[place]
        if start < end:
            words = [str(word) for word in name if word]
            names[start].append(" ".join([*words, note_of[kind]]).rstrip())
            changes.setdefault(start, collections.Counter())[kind] += 1
            changes.setdefault(end, collections.Counter())[kind] -= 1
    parts: list[MarkedPart] = []
    num_open: collections.Counter[str] = collections.Counter()
    for start, end in itertools.pairwise(sorted(changes)):
        num_open.update(changes[start])
        open_kinds = {kind for kind, count in num_open.items() if count}
        parts.append((text[start:end], _kind_of_part(open_kinds), ", ".join(names[start])))
    return parts


def marked_html(texts: Iterable[Sequence[MarkedPart]]) -> markupsafe.Markup:
    """Renders the parts of texts (`marked_parts`) as HTML with the marks of reports."""
    template = _environment().from_string(_MARKED_TEXTS)
    return markupsafe.Markup(template.render(texts=texts))


def marked_places(text: str, places: Sequence[Sequence]) -> markupsafe.Markup:
    """Renders a text with its places (as for `marked_parts`), without the style of the marks."""
    parts = marked_parts(without_surrogates(text), places, places, ("", "", ""))
    template = _environment().from_string(_MARKED_PARTS)
    return markupsafe.Markup(template.render(parts=parts))


def render_answers(views: Iterable) -> markupsafe.Markup:
    """Renders what is shown of answers (`shown_answers.View`), with the marks of reports."""
    template = _environment().from_string(_ANSWERS)
    return markupsafe.Markup(template.render(views=views))


def _environment(*folders: str) -> jinja2.Environment:
    """Returns the environment of templates in some folders and in the folder of this module."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader([*folders, os.path.dirname(os.path.abspath(__file__))]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )


def _kind_of_part(kinds: set[str]) -> str | None:
    """Returns the kind of a part's mark; `kinds` are those of the places that the part is in."""
    if "both" in kinds:
        return "both"
    if len(kinds) > 1:
        return "overlap"
    return next(iter(kinds), None)


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
    """The scores of each class, and their micro, macro and weighted averages."""

    classes: list[ClassScore]
    averages: list[ClassScore]


def average_name(kind: str, without: str | None = None) -> str:
    """Returns the name of an average, such as "macro avg", as scikit-learn and seqeval do."""
    if without:
        return f"{kind} avg without {without}"
    return f"{kind} avg"


def class_scores(
    gold: Sequence[str],
    predicted: Sequence[str],
    labels: Sequence[str],
    without: str | None = None,
) -> ClassScores:
    """Computes the scores of each class, and averages over the classes that occur.

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

    def in_percent(name: str, scores: Sequence[float], support: int) -> ClassScore:
        precision, recall, f1 = [100 * float(score) for score in scores]
        return ClassScore(name, precision, recall, f1, support)

    *columns, supports = computed(labels, None)
    classes = []
    for index, label in enumerate(labels):
        scores = [column[index] for column in columns]
        # scikit-learn's counts are floats if a class does not occur.
        classes.append(in_percent(label, scores, int(supports[index])))
    found = set(gold) | set(predicted)
    averaged = [label for label in labels if label in found and label != without]
    num_averaged = sum(score.support for score in classes if score.name in averaged)
    averages = []
    for kind in _AVERAGES if averaged else ():
        *scores, _ = computed(averaged, kind)
        averages.append(in_percent(average_name(kind, without), scores, num_averaged))
    return ClassScores(classes, averages)


def class_table(title: str, scores: ClassScores) -> Table:
    """Makes the table of scores: a row for each class, and the averages."""
    rows = [_cells(score) for score in scores.classes]
    totals = [_cells(score) for score in scores.averages]
    return Table(title, ("", "precision", "recall", "F1", "support"), rows, totals)


def _cells(score: ClassScore) -> list[str]:
    """Formats the scores of a class as the cells of a row."""
    percents = [f"{value:.2f}" for value in (score.precision, score.recall, score.f1)]
    return [score.name, *percents, f"{score.support:,}"]


def confusion_table(
    gold: Sequence[str],
    predicted: Sequence[str],
    labels: Sequence[str],
    columns: Sequence[str] | None = None,
) -> Table:
    """Makes the confusion matrix; for many classes, a table of the most frequent confusions.

    Args:
        gold: the gold label of each record.
        predicted: the predicted label of each record.
        labels: all classes, in the order of the matrix.
        columns: the classes that can be predicted, if they are not `labels`.
    """
    counts = collections.Counter(zip(gold, predicted, strict=True))
    if len(labels) > _MATRIX_CLASSES:
        confused: collections.Counter[tuple[str, str]] = collections.Counter()
        for pair, count in counts.items():
            if pair[0] != pair[1]:
                confused[pair] = count
        most_frequent = [
            (*pair, f"{count:,}") for pair, count in confused.most_common(SHOWN_CONFUSIONS)
        ]
        columns = ("gold", "predicted", "count")
        return Table("most frequent confusions", columns, most_frequent, num_names=2)
    columns = labels if columns is None else columns
    numbers = {label: str(number) for number, label in enumerate(labels, start=1)}
    if sum(map(len, columns)) <= _NAMED_CHARACTERS:
        numbers = {}
    rows = []
    for label in labels:
        name = f"{numbers[label]} {label}" if numbers else label
        rows.append([name, *[f"{counts[label, other]:,}" for other in columns]])
    heads = [numbers.get(name, name) for name in columns]
    return Table("confusion matrix", ("gold \\ predicted", *heads), rows)
