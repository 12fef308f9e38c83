"""The plan of batches of rows of similar length, for pre-training and for all tasks.

Rows come in a random order. There is a bucket for each width, and a row joins the bucket of the
smallest width that holds it. When a bucket has as many rows as a batch of its width, they are the
next batch. The rows that are left in the buckets at the end of an epoch make the last batches: the
longest first, padded to the longest, and the last batch is filled up with `FILLER`.

So each row of an epoch is in one batch, batches keep the random order, and their number depends
only on how many rows each width has, which is the same in all epochs. Buckets hold less than a
batch of each width, so rows may come in chunks, and nobody has to know all of them at once.

N rows, W widths, M batches, L the length of the longest row.
"""

import dataclasses
from typing import NamedTuple

import numpy as np

MOST_CONSTANT = 8  # widths of pre-training, since XLA compiles a step for each
WIDTH_MULTIPLE = 8  # matrix products of 16-bit numbers are fastest so
FILLER = -1  # in place of a row's number


class Filled(NamedTuple):
    """Batches that were filled with rows.

    Attributes:
        rows: int64 [sum of the batches' sizes], numbers of rows, batch after batch; `FILLER` only
            after the other rows of a batch.
        buckets: int64 [M], the index of each batch's width.
        rest: int64, numbers of the rows that stay in the buckets, ascending.
    """

    rows: np.ndarray
    buckets: np.ndarray
    rest: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Buckets:
    """The widths of batches.

    Attributes:
        widths: int32 [W], in positions, ascending.
        sizes: int64 [W], number of rows of a batch of each width.
    """

    widths: np.ndarray
    sizes: np.ndarray

    def of_lengths(self, lengths: np.ndarray) -> np.ndarray:
        """Returns the numbers of the buckets of rows of these lengths, int64 [N]."""
        of_all = np.searchsorted(self.widths, np.arange(self.widths[-1] + 1))
        return of_all[lengths]  # looked up, as a search for each row takes 50 times as long

    def num_batches(self, num_rows: np.ndarray) -> int:
        """Returns the number of batches of an epoch.

        Args:
            num_rows: int64 [L + 1], the number of rows of each length.
        """
        counts = np.zeros(len(self.widths), "int64")
        lengths = np.flatnonzero(num_rows)
        np.add.at(counts, self.of_lengths(lengths), num_rows[lengths])
        left = np.repeat(np.arange(len(self.widths)), counts % self.sizes)
        return int(np.sum(counts // self.sizes)) + len(self._last_batches(left))

    def fill(self, buckets: np.ndarray, *, is_end: bool) -> Filled:
        """Fills batches.

        Args:
            buckets: int64 [N], the bucket of each row, in the order of the rows. The rows of an
                earlier `rest` come first.
            is_end: whether the epoch ends with these rows, so that none is left.
        """
        order = np.argsort(buckets, kind="stable")  # bucket after bucket
        counts = np.bincount(buckets, minlength=len(self.widths))
        num_full = counts // self.sizes
        places = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
        is_full = places < np.repeat(num_full * self.sizes, counts)
        full_buckets = np.repeat(np.arange(len(self.widths)), num_full)  # [M]
        sizes = self.sizes[full_buckets]
        rows = order[is_full]
        rest = np.sort(order[~is_full])
        last_rows = rows[np.cumsum(sizes) - 1]  # [M], the rows that filled them
        rows = rows[np.argsort(np.repeat(last_rows, sizes), kind="stable")]
        full_buckets = full_buckets[np.argsort(last_rows)]
        if not is_end:
            return Filled(rows, full_buckets, rest)
        last = self._last_batches(buckets[rest])
        last_rows = [np.where(places == FILLER, FILLER, rest[places]) for _, places in last]
        last_buckets = np.array([bucket for bucket, _ in last], "int64")
        return Filled(
            np.concatenate([rows, *last_rows]),
            np.concatenate([full_buckets, last_buckets]),
            rest[:0],
        )

    def _last_batches(self, buckets: np.ndarray) -> list[tuple[int, np.ndarray]]:
        """Returns bucket and places of the rows that are left, the longest rows first."""
        order = np.argsort(-buckets, kind="stable")
        batches = []
        first = 0
        while first < len(order):
            bucket = int(buckets[order[first]])
            size = int(self.sizes[bucket])
            places = order[first : first + size]
            batches.append(
                (bucket, np.pad(places, (0, size - len(places)), constant_values=FILLER))
            )
            first += size
        return batches


def constant_tokens(num_rows: np.ndarray, *, batch_size: int, sequence_length: int) -> Buckets:
    """Makes the buckets of batches that all have about as many positions.

    A batch of width `sequence_length` has `batch_size` rows. A narrower batch has as many rows as
    fit into the same number of positions, rounded down to a multiple of `row_multiple`.

    Args:
        num_rows: int64 [L + 1], the number of rows of each length in tokens, special tokens
            included.
        batch_size: rows of a batch of the largest width.
        sequence_length: the largest width.
    """
    widths = batch_widths(num_rows, sequence_length, MOST_CONSTANT)
    multiple = row_multiple(batch_size)
    sizes = batch_size * sequence_length // widths.astype("int64") // multiple * multiple
    return Buckets(widths, sizes)


def row_multiple(batch_size: int) -> int:
    """Returns the power of two that the rows of all batches of constant tokens are multiples of.

    It divides `batch_size`, and is at most a quarter of it, so that little is lost by rounding. It
    does not depend on the devices of a run, so neither do the batches.
    """
    multiple = batch_size & -batch_size  # the largest power of two that divides it
    while multiple > 1 and 4 * multiple > batch_size:
        multiple //= 2
    return multiple


def batch_widths(num_rows: np.ndarray, max_length: int, most: int) -> np.ndarray:
    """Chooses the widths that rows are padded to with the fewest positions in all.

    They are multiples of `WIDTH_MULTIPLE`, or `max_length`. The choice is exact, by dynamic
    programming over the histogram of lengths.

    Args:
        num_rows: int64 [L + 1], the number of rows of each length in tokens.
        max_length: the largest width; no row is longer.
        most: largest number of widths.

    Returns:
        int32 [W], ascending.
    """
    lengths = np.flatnonzero(num_rows)
    rounded = np.minimum(-(-lengths // WIDTH_MULTIPLE) * WIDTH_MULTIPLE, max_length)
    candidates, first = np.unique(rounded, return_index=True)  # [C] each
    counts = np.add.reduceat(num_rows[lengths], first)
    shorter = np.concatenate([[0], np.cumsum(counts)])  # [C + 1] rows below each candidate
    # positions[i, j]: positions of the rows from candidate i on, all padded to candidate j.
    positions = (candidates * (shorter[np.newaxis, 1:] - shorter[:, np.newaxis])).astype(float)
    positions[np.tril_indices_from(positions, k=-1)] = np.inf
    fewest = np.full(len(candidates) + 1, np.inf)  # of the rows below each candidate
    fewest[0] = 0
    choices = []
    for _ in range(min(most, len(candidates))):
        sums = fewest[:, np.newaxis] + positions  # [C + 1, C]
        choices.append(sums.argmin(axis=0))
        fewest = np.concatenate([[0], sums.min(axis=0)])
    widths = []
    end = len(candidates)
    for choice in reversed(choices):
        if end:
            widths.append(candidates[end - 1])
            end = choice[end - 1]
    return np.array(widths[::-1], "int32")
