"""Measures what a run achieves: its speed, padding, and the time that it waits for its input."""

import datetime
import time
from typing import NamedTuple

import keras

from spanbert_tf.models.work import Work
from spanbert_tf.training.chips import chip_named
from spanbert_tf.training.devices import Devices

_MILLISECONDS = 1_000  # of a second; workers agree on whole numbers


class Measured(NamedTuple):
    """Some steps of a run, as measured.

    Attributes:
        seconds: time that the steps took.
        seconds_waited: time in which they waited for their batches; the mean over all workers.
            `None` if it is not known.
        work: the work of all devices.
    """

    seconds: float
    seconds_waited: float | None
    work: Work

    def plus(self, other: "Measured") -> "Measured":
        """Adds up the measurements of different steps."""
        work = Work(*(one + two for one, two in zip(self.work, other.work, strict=True)))
        waited = None
        if self.seconds_waited is not None and other.seconds_waited is not None:
            waited = self.seconds_waited + other.seconds_waited
        return Measured(self.seconds + other.seconds, waited, work)


class Throughput:
    """Measures intervals of steps, without waiting for the device in between.

    Args:
        devices: devices of the run.
        precision: dtype policy of the run.
    """

    def __init__(self, devices: Devices, precision: str) -> None:
        self._devices = devices
        self._limit = _limit(devices, precision)
        self._began_at = 0.0
        # The first interval includes compilation, so it is no part of the sum.
        self._first: Measured | None = None
        self._sum: Measured | None = None

    def begin(self, model: keras.Model) -> None:
        """Starts an interval, in which the metrics of the model were reset."""
        model.seconds_waited = 0.0
        self._began_at = time.perf_counter()

    def measure(self, model: keras.Model) -> Measured:
        """Measures the interval so far, and waits for the device.

        If several workers share the run, all of them must call this after the same step.
        """
        work = model.work_done()
        seconds = time.perf_counter() - self._began_at
        waited = model.seconds_waited
        if waited is not None:
            waited = self._devices.agreed(round(_MILLISECONDS * waited)) / _MILLISECONDS
        return Measured(seconds, waited, work)

    def add(self, measured: Measured) -> None:
        """Adds a finished interval to the summary."""
        if self._first is None:
            self._first = measured
        elif self._sum is None:
            self._sum = measured
        else:
            self._sum = self._sum.plus(measured)

    def values(self, measured: Measured) -> dict[str, float]:
        """Returns the values of a line of the log; those that are not known are left out."""
        work = measured.work
        values = {"tokens_per_second": round(work.tokens / measured.seconds, 1)}
        if work.positions:
            values["padding_share"] = round(1 - work.tokens / work.positions, 6)
        if measured.seconds_waited is not None:
            values["input_wait_share"] = round(measured.seconds_waited / measured.seconds, 6)
        if work.operations:
            speed = work.operations / measured.seconds
            values["operations_per_second"] = float(f"{speed:.6g}")
            if self._limit is not None:
                values["limit_share"] = round(speed / self._limit, 6)
        return values

    def summary(self) -> str:
        """Describes all intervals in one line; empty if there is none."""
        if self._first is None:
            return ""
        found = self._sum or self._first
        values = self.values(found)
        parts = [f"{values['tokens_per_second']:,.0f} tokens/s without padding"]
        if "padding_share" in values:
            parts.append(f"{values['padding_share']:.1%} of the positions are padding")
        if "input_wait_share" in values:
            parts.append(f"{values['input_wait_share']:.1%} of the time waits for input")
        if "operations_per_second" in values:
            parts.append(f"{values['operations_per_second'] / 1e12:,.3g} T operations/s")
        if "limit_share" in values:
            parts.append(f"{values['limit_share']:.1%} of the limit of the devices")
        text = ", ".join(parts)
        if self._sum is not None:
            first = datetime.timedelta(seconds=round(self._first.seconds))
            text += f" (without the first line of the log, which took {first} with compilation)"
        return text


def _limit(devices: Devices, precision: str) -> float | None:
    """Returns the published operations a second of all devices; `None` if they are not known.

    The published figures are those of half precision.
    """
    if precision == "float32":
        return None
    chip = chip_named(devices.chip_kind())
    return chip.operations * devices.num_replicas if chip else None
