"""Shows how far preparation has come: documents and megabytes of text, over all processes."""

import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from spanbert_tf.terminal import describe_share, terminal_bar

_SECONDS_BETWEEN_LOOKS = 0.2
_SECONDS_BETWEEN_LINES = 10
_LOOKS_BETWEEN_LINES = round(_SECONDS_BETWEEN_LINES / _SECONDS_BETWEEN_LOOKS)
_TOTALS = struct.Struct("<4Q")


class Totals(NamedTuple):
    """What was done: input in bytes as it lies on disk, text after decompression."""

    documents: int = 0
    text_bytes: int = 0
    input_bytes: int = 0
    shards: int = 0


class ProgressWriter:
    """A worker's side: keeps a file of a few bytes up to date."""

    def __init__(self, directory: str) -> None:
        self._totals = Totals()
        self._path = os.path.join(directory, f"{socket.gethostname()}-{os.getpid()}-{id(self)}")

    def add(self, more: Totals) -> None:
        """Adds to the totals; without effect if the directory cannot be reached."""
        self._totals = Totals(*map(sum, zip(self._totals, more, strict=True)))
        if os.path.isdir(os.path.dirname(self._path)):
            # Written over, never cut off, so that a look sees the old numbers or the new ones.
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o644)
            os.pwrite(descriptor, _TOTALS.pack(*self._totals), 0)
            os.close(descriptor)


class ProgressDisplay:
    """The parent's side: a bar on a terminal, a line now and then elsewhere (on stderr)."""

    def __init__(self, directory: str, input_bytes: int, num_shards: int) -> None:
        self._directory = Path(directory)
        self._input_bytes = input_bytes
        self._num_shards = num_shards
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._show, daemon=True)
        self._start = time.monotonic()  # until it is known when the first text was read

    def __enter__(self) -> "ProgressDisplay":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def totals(self) -> Totals:
        """The sum over all workers so far."""
        totals = Totals()
        for path in self._directory.glob("*"):
            content = path.read_bytes()
            if len(content) == _TOTALS.size:  # else it has just been created
                totals = Totals(*map(sum, zip(totals, _TOTALS.unpack(content), strict=True)))
        return totals

    def _describe(self, totals: Totals) -> str:
        if not totals.text_bytes:
            return "starting"
        megabytes, seconds = totals.text_bytes / 1e6, time.monotonic() - self._start
        rate = megabytes / seconds
        text = f"{totals.documents:,} documents, {megabytes:,.1f} MB of text, {rate:.2g} MB/s"
        if totals.shards:
            text += f", {totals.shards:,} of {self._num_shards:,} shards"
        # Writing a shard takes a little of the time that reading its text does.
        elif self._input_bytes:
            text += f", {describe_share(totals.input_bytes, self._input_bytes, seconds)}"
        return text

    def _show(self) -> None:
        with terminal_bar(self._input_bytes, stays=True) as update:
            for number, totals in enumerate(self._looks(), start=1):
                if update:
                    update(totals.input_bytes, self._describe(totals))
                elif number % _LOOKS_BETWEEN_LINES == 0:
                    print(f"preparing: {self._describe(totals)}", file=sys.stderr, flush=True)

    def _looks(self) -> Iterator[Totals]:
        """The totals now and then, and at the end."""
        is_last = False
        while not is_last:
            is_last = self._stop.wait(_SECONDS_BETWEEN_LOOKS)
            totals = self.totals()
            if not totals.text_bytes:
                self._start = time.monotonic()
            yield totals
