"""`inspect`: shows the counts, the labels and some examples of records."""

import itertools
from collections.abc import Mapping, Sequence

from rich.table import Table

from spanbert_tf.console import DataConsole
from spanbert_tf.data.records import Records
from spanbert_tf.errors import ConfigurationError
from spanbert_tf.tasks.lookup import open_records, records_task_name, task_of_records
from spanbert_tf.tasks.task import Task


def inspect_records(
    data: str,
    config: str,
    overrides: Sequence[str] = (),
    *,
    png: str | None = None,
    num_examples: int = 3,
    overwrite: bool = False,
    console: DataConsole | None = None,
) -> None:
    """Shows the records of a task, or records for pre-training.

    Args:
        data: directory of the records.
        config: as for `pretraining.inspection.inspect_records`; not used for a task.
        overrides: as for `pretraining.inspection.inspect_records`.
        png: as for `pretraining.inspection.inspect_records`.
        num_examples: number of examples to show.
        overwrite: as for `pretraining.inspection.inspect_records`; not used for a task.
        console: console to print to; standard output by default.

    Raises:
        BadInputError: the records are damaged.
        ConfigurationError: an option does not apply to the records of a task.
    """
    console = console or DataConsole()
    if records_task_name(data) is None:
        from spanbert_tf.pretraining import inspection  # not needed for tasks

        inspection.inspect_records(
            data,
            config,
            overrides,
            console,
            png=png,
            num_examples=num_examples,
            overwrite=overwrite,
        )
        return
    if png or overrides:
        raise ConfigurationError(
            f"{data}: holds records of a task, for which no masks are drawn; leave out --png and "
            "--set"
        )
    records = open_records(data)
    with records.named_damage():
        print_records(task_of_records(data), records, console, num_examples)


def print_records(task: Task, records: Records, console: DataConsole, num_examples: int) -> None:
    """Prints counts, labels and some examples of a task's records."""
    console.print(f"{records}: {records.manifest.describe()}")
    for name, count in records.manifest.counts.items():
        console.print(f"  {name.replace('_', ' ')}: {count:,}")
    print_label_counts(console, task.label_counts(records), task.label_title)
    for lines in itertools.islice(task.examples(records), num_examples):
        console.print()
        for line in lines:
            console.print(line, highlight=False)


def print_label_counts(
    console: DataConsole, counts: Mapping[str, int], title: str = "label"
) -> None:
    """Prints the number and the share of each label; prints nothing if there are no labels."""
    total = sum(counts.values())
    if not total:
        return
    table = Table(title, "number", "share")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, number in counts.items():
        table.add_row(name, f"{number:,}", f"{number / total:.1%}")
    console.print(table)
