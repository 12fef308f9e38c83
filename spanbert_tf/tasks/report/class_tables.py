"""Tables of classes on the terminal: precision, recall and F1 of each, and what is confused."""

import collections
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import rich.table

from spanbert_tf.console import DataConsole

_MATRIX_CLASSES = 20  # more do not fit on a screen
_NAMED_COLUMNS = 6  # more classes have numbers in their place
_SHOWN_CONFUSIONS = 20


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
    for (label, other), count in wrong.most_common(_SHOWN_CONFUSIONS):
        table.add_row(label, other, f"{count:,}")
    return table
