"""What was measured of an encoder before and after a training, and whether the training helped."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import rich.table

from spanbert_tf.training.checkpoints import Best


class Measure(NamedTuple):
    """What was measured of both encoders.

    Attributes:
        name: what it is.
        before: its value for the encoder as it was; `None`: it has none.
        after: its value for the new encoder.
        mode: whether less or more is better; `None` where that is not so simple.
        num_digits: digits after the point that are shown.
    """

    name: str
    before: float | None
    after: float
    mode: Literal["min", "max"] | None
    num_digits: int = 3

    def shown(self, value: float | None) -> str:
        """Returns a value as the table shows it."""
        return "-" if value is None else f"{value:.{self.num_digits}f}"


def describe_help(measures: Sequence[Measure]) -> str:
    """Says in words whether the new encoder is better."""
    parts = []
    outcomes = set()
    for measure in measures:
        if measure.mode is None or measure.before is None:
            continue
        is_better = Best(measure.name, measure.mode).is_better(measure.after, measure.before)
        word = "worse"
        if is_better:
            word = "better"
        elif measure.after == measure.before:
            word = "the same"
        outcomes.add(word)
        shown = [measure.shown(value) for value in (measure.before, measure.after)]
        parts.append(f"{measure.name} is {word} ({shown[0]} before, {shown[1]} after)")
    if not parts:
        return "Whether it helped was not measured; give --task-data."
    verdict = "It helped in part"
    if outcomes == {"better"}:
        verdict = "It helped"
    elif "better" not in outcomes:
        verdict = "It did not help"
    return f"{verdict}: {'; '.join(parts)}."


def as_table(measures: Sequence[Measure]) -> rich.table.Table:
    """Makes a table of measures for the terminal."""
    table = rich.table.Table("", "before", "after", title="The same held-out text, the same data")
    for measure in measures:
        table.add_row(*_cells(measure))
    return table


def as_markdown(measures: Sequence[Measure]) -> str:
    """Returns the same table in Markdown."""
    lines = ["| | before | after |", "| --- | --- | --- |"]
    lines += [f"| {' | '.join(_cells(measure))} |" for measure in measures]
    return "\n".join(lines)


def _cells(measure: Measure) -> tuple[str, str, str]:
    return measure.name, measure.shown(measure.before), measure.shown(measure.after)
