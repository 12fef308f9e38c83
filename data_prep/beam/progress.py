"""Shows the progress of preparation, summed over all processes."""

import contextlib
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple

from spanbert_tf.terminal import describe_share, terminal_bar

_SECONDS_BETWEEN_UPDATES = 0.2  # of a bar
_SECONDS_BETWEEN_LINES = 10


class Totals(NamedTuple):
    """Amounts of work that are done.

    Attributes:
        documents: number of documents.
        text_bytes: bytes of text, after decompression.
        input_bytes: bytes of the input files, before decompression.
        shards: number of shards.
        hashed_bytes: bytes of the input files that were read to find duplicates.
    """

    documents: int = 0
    text_bytes: int = 0
    input_bytes: int = 0
    shards: int = 0
    hashed_bytes: int = 0

    def plus(self, other: "Totals") -> "Totals":
        """Returns the sums."""
        return Totals(*(a + b for a, b in zip(self, other, strict=True)))

    def minus(self, other: "Totals") -> "Totals":
        """Returns the differences."""
        return Totals(*(a - b for a, b in zip(self, other, strict=True)))


class Progress(contextlib.AbstractContextManager):
    """Shows a bar on a terminal; otherwise prints a line to stderr every ten seconds.

    Args:
        input_bytes: bytes of all input files.
        num_shards: number of shards to write.
    """

    def __init__(self, input_bytes: int, num_shards: int) -> None:
        self._input_bytes = input_bytes
        self._num_shards = num_shards
        self._totals = Totals()
        self._start = time.monotonic()
        self._shown = self._start
        self._bar = terminal_bar(input_bytes, stays=True)
        self._update: Callable[[int, str], None] | None = None

    def __enter__(self) -> "Progress":
        self._update = self._bar.__enter__()
        self._show()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._show()
        self._bar.__exit__(kind, error, trace)

    def add(self, more: Totals) -> None:
        """Adds to the totals and shows them if enough time has passed."""
        now = time.monotonic()
        if not self._totals.text_bytes:  # do not count the time of imports and of loading spaCy
            self._start = now
            self._shown = now
        self._totals = self._totals.plus(more)
        pause = _SECONDS_BETWEEN_UPDATES
        if self._update is None:
            pause = _SECONDS_BETWEEN_LINES
        if now >= self._shown + pause:
            self._shown = now
            self._show()
            if self._update is None:
                print(f"preparing: {self._describe()}", file=sys.stderr, flush=True)

    def _show(self) -> None:
        if self._update is not None:
            self._update(self._totals.input_bytes, self._describe())

    def _describe(self) -> str:
        totals = self._totals
        if not totals.text_bytes and totals.hashed_bytes:
            return f"looking for duplicates in {totals.hashed_bytes / 1e6:,.1f} MB"
        if not totals.text_bytes:
            return "starting"
        megabytes = totals.text_bytes / 1e6
        seconds = max(time.monotonic() - self._start, 1e-3)
        rate = megabytes / seconds
        text = f"{totals.documents:,} documents, {megabytes:,.1f} MB of text, {rate:.2g} MB/s"
        if totals.shards:
            return f"{text}, {totals.shards:,} of {self._num_shards:,} shards"
        # Writing the shards takes much less time than reading the text, so it is not counted.
        if self._input_bytes:
            return f"{text}, {describe_share(totals.input_bytes, self._input_bytes, seconds)}"
        return text
