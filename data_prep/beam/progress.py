"""Shows how far preparation has come: documents and megabytes of text, over all processes."""

import contextlib
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

from spanbert_tf.terminal import describe_share, terminal_bar

_SECONDS_BETWEEN_UPDATES = 0.2  # of a bar
_SECONDS_BETWEEN_LINES = 10


class Totals(NamedTuple):
    """What was done.

    Attributes:
        documents: number of documents.
        text_bytes: bytes of text after decompression.
        input_bytes: bytes of the input files, as they lie on disk.
        shards: number of shards.
    """

    documents: int = 0
    text_bytes: int = 0
    input_bytes: int = 0
    shards: int = 0

    def plus(self, other: "Totals") -> "Totals":
        """The sums."""
        return Totals(*(a + b for a, b in zip(self, other, strict=True)))

    def minus(self, other: "Totals") -> "Totals":
        """The differences."""
        return Totals(*(a - b for a, b in zip(self, other, strict=True)))


class Progress(contextlib.AbstractContextManager):
    """A bar on a terminal; elsewhere a line every ten seconds, on stderr.

    Args:
        input_bytes: bytes of all input files.
        num_shards: number of shards to write.
    """

    def __init__(self, input_bytes: int, num_shards: int) -> None:
        self._input_bytes = input_bytes
        self._num_shards = num_shards
        self._totals = Totals()
        self._start = self._shown = time.monotonic()
        self._bar = terminal_bar(input_bytes, stays=True)
        self._update: Callable[[int, str], None] | None = None

    def __enter__(self) -> "Progress":
        self._update = self._bar.__enter__()
        self._show()
        return self

    def __exit__(self, *error: object) -> None:
        self._show()
        self._bar.__exit__(*error)

    def add(self, more: Totals) -> None:
        """Adds to the totals, and shows them now and then."""
        now = time.monotonic()
        if not self._totals.text_bytes:  # before the first text, imports and models take time
            self._start = self._shown = now
        self._totals = self._totals.plus(more)
        pause = _SECONDS_BETWEEN_LINES if self._update is None else _SECONDS_BETWEEN_UPDATES
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
        if not totals.text_bytes:
            return "starting"
        megabytes = totals.text_bytes / 1e6
        seconds = max(time.monotonic() - self._start, 1e-3)
        rate = megabytes / seconds
        text = f"{totals.documents:,} documents, {megabytes:,.1f} MB of text, {rate:.2g} MB/s"
        if totals.shards:
            return f"{text}, {totals.shards:,} of {self._num_shards:,} shards"
        # Writing the shards takes little of the time that reading the text does.
        if self._input_bytes:
            return f"{text}, {describe_share(totals.input_bytes, self._input_bytes, seconds)}"
        return text
