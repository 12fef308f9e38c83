"""How time and memory grow with the input: preparation, input pipeline, masker.

    python -m benchmarks.growth --input 'corpus/*.gz' --vocabulary vocab.txt [--plot growth.svg]

Seconds of processor time for a megabyte of text from 5 to 60 MB, of `prepare pretraining` with one
process and of the pipeline from records to masked batches; and for a million positions in rows of
128 to 2,048. Each in a process of its own, which has warmed up with a little text. Goals: flat
within 15 %, memory too.
"""

import concurrent.futures
import contextlib
import io
import itertools
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from typing import NamedTuple

import click

from benchmarks.data_preparation import read_documents, write_corpus
from benchmarks.machine import describe_machine
from benchmarks.process_memory import peak_above

_MEGABYTES, _LENGTHS = (5, 15, 30, 60), (128, 256, 512, 1024, 2048)
_TINY_BYTES = 100_000
_MASKED_POSITIONS = 40_000_000  # for each length
_BATCH_POSITIONS = 65_536
_GOAL = 0.15


class Cost(NamedTuple):
    """Seconds of processor time for a unit of input, and GiB at the peak."""

    seconds: float
    gibibytes: float


@click.command()
@click.option("--input", "pattern", required=True, metavar="GLOB")
@click.option("--vocabulary", required=True, type=click.Path(exists=True))
@click.option("--plot", type=click.Path(), help="Draws the curves.")
def main(pattern: str, vocabulary: str, plot: str | None) -> None:
    print(describe_machine())
    curves: dict[str, dict[int, Cost]] = {"prepare": {}, "pipeline": {}, "masker": {}}
    with tempfile.TemporaryDirectory() as directory:
        documents = list(read_documents(pattern))
        tiny = write_corpus(documents, _TINY_BYTES, os.path.join(directory, "tiny"))
        for size in _MEGABYTES:
            text = write_corpus(documents, size * 10**6, os.path.join(directory, f"text{size}"))
            records = os.path.join(directory, f"records{size}")
            curves["prepare"][size] = _alone(_prepare, text, tiny, vocabulary, records, size)
            curves["pipeline"][size] = _alone(_read_epoch, records, size)
        text = os.path.join(directory, f"text{_MEGABYTES[1]}", "*")
        for length in _LENGTHS:
            records = os.path.join(directory, f"rows{length}")
            _alone(_write, text, vocabulary, records, length)
            curves["masker"][length] = _alone(_read_positions, records, length)
    for name, curve in curves.items():
        _show(name, curve)
    if plot:
        _draw(curves, plot)


def _alone(function: Callable, *arguments: object) -> Cost:
    """Calls a function in a process of its own, on one core."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context, initializer=_bind) as pool:
        return pool.submit(function, *arguments).result()


def _bind() -> None:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"


def _write(pattern: str, vocabulary: str, records: str, length: int = 512) -> None:
    from data_prep.beam.writing import write_pretraining_records

    with contextlib.redirect_stdout(io.StringIO()):
        write_pretraining_records(
            pattern, vocabulary=vocabulary, output=records, sequence_length=length
        )


def _prepare(pattern: str, tiny: str, vocabulary: str, records: str, megabytes: int) -> Cost:
    with tempfile.TemporaryDirectory() as directory:
        _write(tiny, vocabulary, os.path.join(directory, "records"))
    return _cost(lambda: _write(pattern, vocabulary, records), megabytes)


def _read_epoch(records: str, megabytes: int) -> Cost:
    from spanbert_tf.data import pretraining_dataset
    from spanbert_tf.data.manifest import PretrainingManifest

    batch_size = _BATCH_POSITIONS // 512
    num_batches = PretrainingManifest.load(records).num_records("train") // batch_size
    batches = iter(pretraining_dataset(records, batch_size=batch_size))
    next(batches)  # traces
    return _cost(lambda: list(map(len, itertools.islice(batches, num_batches - 1))), megabytes)


def _read_positions(records: str, length: int) -> Cost:
    """Reads and masks so many positions, of rows of a length; a unit is a million."""
    from spanbert_tf.data import pretraining_dataset

    batches = iter(pretraining_dataset(records, batch_size=_BATCH_POSITIONS // length))
    next(batches)  # traces
    num_batches = _MASKED_POSITIONS // _BATCH_POSITIONS
    return _cost(lambda: list(map(len, itertools.islice(batches, num_batches))), 40)


def _cost(call: Callable[[], object], units: int) -> Cost:
    start = time.process_time()
    gibibytes = peak_above(call)
    return Cost((time.process_time() - start) / units, gibibytes)


def _show(name: str, curve: dict[int, Cost]) -> None:
    unit, of = ("million positions", "positions") if name == "masker" else ("MB", "MB")
    for size, cost in curve.items():
        print(
            f"{name}, {size:,} {of}: {cost.seconds:.4f} s a {unit}, {cost.gibibytes:.2f} GiB more "
            "at the peak"
        )
    seconds = [cost.seconds for cost in curve.values()]
    print(f"  from best to worst {max(seconds) / min(seconds) - 1:.0%} (goal: {_GOAL:.0%})")


def _draw(curves: dict[str, dict[int, Cost]], path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.2))
    for name, curve in curves.items():
        place = axes[int(name == "masker")]
        place.plot(list(curve), [cost.seconds for cost in curve.values()], marker="o", label=name)
    for place, label, unit in ((axes[0], "MB of text", "MB"), (axes[1], "positions", "million")):
        place.set_xlabel(label)
        place.set_ylabel(f"seconds a {unit}")
        place.set_ylim(0, 1.1 * place.dataLim.y1)
        place.legend()
    figure.tight_layout()
    figure.savefig(path)


if __name__ == "__main__":
    main()
