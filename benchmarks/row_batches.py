"""Batches of a task's rows as both sides of a benchmark see them, and how they are timed."""

import statistics
import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np


def rows_of(batches: Iterable[tuple[dict, dict]]) -> list[dict]:
    """Rows in the order of the file, without padding; what `transformers` reads of them."""
    rows = {}
    for x, y in batches:
        for place, number in enumerate(x["row_index"]):
            length = x["padding_mask"][place].sum()
            lists = ("token_ids", "segment_ids", "padding_mask")
            rows[number] = {name: x[name][place, :length] for name in lists}
            rows[number] |= {
                name: values[place, :length] if values.ndim > 1 else values[place]
                for name, values in y.items()
            }
    return [rows[number] for number in sorted(rows)]


def padded(
    rows: Sequence[dict], order: Iterable[int], batch_size: int, width: int | None = None
) -> list[dict]:
    """Batches of rows in an order, each padded to its longest row, or to a width."""
    order, batches = list(order), []
    for first in range(0, len(order), batch_size):
        chosen = [rows[number] for number in order[first : first + batch_size]]
        longest = width or max(len(row["token_ids"]) for row in chosen)
        batches.append(
            {
                name: np.array(
                    [np.pad(row[name], (0, (longest - len(row[name])))) for row in chosen]
                    if np.ndim(chosen[0][name])
                    else [row[name] for row in chosen]
                )
                for name in chosen[0]
            }
        )
    return batches


def spread_batches(batches: Sequence[dict], count: int) -> list[dict]:
    """So many batches, of all widths as they are in the epoch."""
    batches = sorted(batches, key=lambda batch: batch["token_ids"].shape[1])
    return [batches[int((place + 0.5) * len(batches) / count)] for place in range(count)]


def time_pass(step: Callable[[dict], object], batches: Sequence[dict]) -> float:
    for batch in (batches[0], batches[len(batches) // 2], batches[-1]):
        step(batch)
    start = time.perf_counter()
    for batch in batches:
        step(batch)
    return time.perf_counter() - start


def median_seconds(call: Callable[[], None], count: int) -> float:
    seconds = []
    for _ in range(count):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)
