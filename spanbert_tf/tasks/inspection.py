"""`spanbert-tf inspect` on records of any kind, and what the inspections of all tasks share."""

import functools
from collections.abc import Sequence

import numpy as np

from spanbert_tf.console import DataConsole
from spanbert_tf.data.records import TaskManifest
from spanbert_tf.errors import ConfigurationError
from spanbert_tf.tasks.task import Task, holds_task_records, task_of_records


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
    """Prints what a set of records holds; for pre-training, how a configuration masks it, too.

    Args:
        data: directory of the records.
        config: shipped name or file of the configuration whose masking to show.
        overrides: texts `section.key=value`.
        png: where to write the histogram of span lengths as a picture, if anywhere.
        num_examples: rows or masked examples to print.
        overwrite: whether an earlier picture may be replaced.
        console: where to print; standard output by default.

    Raises:
        SpanBertError: the records or the configuration cannot be used.
    """
    console = console or DataConsole()
    if not holds_task_records(data):
        from spanbert_tf.pretraining import inspection  # nothing of a task needs it

        inspection.inspect_records(
            data,
            config,
            overrides,
            console,
            png=png,
            num_examples=num_examples,
            overwrite=overwrite,
        )
    elif png or overrides:
        raise ConfigurationError(
            f"{data}: holds records of a task, which no masks are drawn for; leave out --png and "
            "--set"
        )
    else:
        task = task_of_records(data)
        inspect = task.inspect or functools.partial(inspect_rows, task)
        inspect(task.records(data), console, num_examples)


def inspect_rows(task: Task, data: str, console: DataConsole, num_examples: int) -> None:
    """Prints what a set of records holds, and some rows as the model reads them.

    Args:
        task: task of the records.
        data: directory of the records.
        console: where to print.
        num_examples: rows to print, the longest first.

    Raises:
        BadInputError: a file of the records is missing or damaged.
    """
    records = task.records(data)
    info = records.info
    console.print(
        f"{data}: {task.name.replace('_', ' ')} in rows of up to {info.sequence_length}, "
        f"{info.casing.describe()}, vocabulary of {info.vocabulary_size:,}"
        + ", with SegaBERT's positions"
        * info.segment_aware,
    )
    print_counts(info, console)
    if not num_examples:
        return
    vocabulary = records.vocabulary
    rows = task.dataset(records, batch_size=1, training=False)
    for x, labels in rows.take(num_examples).as_numpy_iterator():
        console.print()
        console.print(f"{' '.join(pieces_of_row(x, vocabulary))}")
        shown = labels if isinstance(labels, dict) else {"label": labels}
        for name, values in shown.items():
            console.print(f"  {name}: {values[0].tolist()}")


def print_counts(info: TaskManifest, console: DataConsole) -> None:
    """Prints how many there are of each kind, a line each."""
    for name, count in info.counts.items():
        console.print(f"  {name.replace('_', ' ')}: {count:,}")


def pieces_of_row(x: dict[str, np.ndarray], vocabulary: Sequence[str]) -> list[str]:
    """The word pieces of the first row of a batch, without padding.

    Args:
        x: `token_ids` and `padding_mask`, int [B, S].
        vocabulary: entries in order of their ids.
    """
    length = int(x["padding_mask"][0].sum())
    return [vocabulary[token] for token in x["token_ids"][0, :length]]
