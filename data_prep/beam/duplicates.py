"""Finds the duplicates of all input files in bounded memory.

1. `write_hashes` hashes the documents or paragraphs of a part of the input and writes the hashes to
   a file, in sorted runs that fit into memory.
2. `find_duplicates` reads the hashes of one range of values from all these runs. It writes which
   texts have the same hash as an earlier one, in the order of files.
3. `read_duplicates` collects the duplicates of a part from the results of all ranges.
"""

import heapq
import itertools
import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

import numpy as np

from data_prep.beam.job import SPILL, Job, Show
from data_prep.beam.progress import Totals
from data_prep.text.cutting import FilePart, read_part
from data_prep.text.duplicates import Unit, hash_units

RUN = 2**16  # hashes that are sorted at once; as tuples they take 30 MB
# Hashes of a range, about, if all texts differ. They take 110 MB, and three times as many are the
# most that is compared at once.
RANGE = 2**20
READ = 2**12  # duplicates of each range that a part has in memory at once
# The hash as two numbers, and the index of the text in its part of the input.
_HASHED = np.dtype([("high", "<u8"), ("low", "<u8"), ("index", "<u8")])
_TEXT = np.dtype([*_HASHED.descr, ("part", "<u8")])
_DUPLICATE = np.dtype([("part", "<u8"), ("index", "<u8")])
_HASH = np.dtype([("high", ">u8"), ("low", ">u8")])


def write_hashes(job: Job, show: Show, part_number: int, part: FilePart, unit: Unit) -> int:
    """Writes the hashes of the documents or paragraphs of a part of the input.

    Args:
        job: the job.
        show: called with the progress since its last call.
        part_number: index of the part among all parts.
        part: the part.
        unit: whether documents or paragraphs are hashed.

    Returns:
        The number of hashes.

    Raises:
        BadInputError: the file cannot be read or used.
        OSError: the hashes cannot be written.
    """
    reader = read_part(part, job.options.document_separator, job.options.text_columns)
    found = hash_units(reader, unit)
    num_hashes = 0
    shown = 0
    with job.whole_file(_hashes_path(job, part_number)) as path, open(path, "wb") as output:
        while some := list(itertools.islice(found, RUN)):
            output.write(_sorted_run(some).tobytes())
            num_hashes += len(some)
            show(Totals(hashed_bytes=reader.position - shown))
            shown = reader.position
    return num_hashes


def _sorted_run(hashed: list[tuple[int, bytes]]) -> np.ndarray:
    indices, hashes = zip(*hashed, strict=True)
    pairs = np.frombuffer(b"".join(hashes), _HASH)
    run = np.empty(len(hashed), _HASHED)
    run["high"] = pairs["high"]
    run["low"] = pairs["low"]
    run["index"] = indices
    return run[np.argsort(run["high"], kind="stable")]


def count_ranges(num_hashes: int) -> int:
    """Returns the number of ranges into which all hashes are divided."""
    return max(1, -(-num_hashes // RANGE))


def find_duplicates(job: Job, show: Show, number: int, num_ranges: int, num_parts: int) -> int:
    """Writes the texts whose hash is in a range and equals that of an earlier text.

    Args:
        job: the job.
        show: is not called.
        number: index of the range.
        num_ranges: number of ranges.
        num_parts: number of parts of the input.

    Returns:
        The number of duplicates.

    Raises:
        OSError: a file cannot be read or written.
    """
    firsts = np.empty(0, _TEXT)
    num_duplicates = 0
    with job.whole_file(_duplicates_path(job, number)) as path, open(path, "wb") as output:
        for texts in _read_texts(job, number, num_ranges, num_parts):
            firsts, duplicates = _compare(firsts, texts)
            output.write(duplicates.tobytes())
            num_duplicates += len(duplicates)
    return num_duplicates


def _read_texts(
    job: Job, number: int, num_ranges: int, num_parts: int
) -> Iterator[list[np.ndarray]]:
    """Yields the texts whose hash is in a range in arrays, some at a time, in the order of files.

    Of a paragraph that is everywhere, one range has all copies, so they are not read at once.
    """
    read = []
    num_read = 0
    for part_number in range(num_parts):
        for run in _read_range(_hashes_path(job, part_number), number, num_ranges):
            texts = np.empty(len(run), _TEXT)
            texts["part"] = part_number
            for name in _HASHED.fields or ():
                texts[name] = run[name]
            read.append(texts)
            num_read += len(texts)
            if num_read >= 2 * RANGE:
                yield read
                read = []
                num_read = 0
    yield read


def _compare(firsts: np.ndarray, texts: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Finds duplicates among some texts.

    Args:
        firsts: the first text of each hash among all texts before them.
        texts: the texts.

    Returns:
        The first text of each hash up to here, and the duplicates in the order of files.
    """
    found = np.concatenate([firsts, *texts])
    found = found[np.lexsort([found["index"], found["part"], found["low"], found["high"]])]
    is_duplicate = np.zeros(len(found), bool)
    is_duplicate[1:] = (found["high"][1:] == found["high"][:-1]) & (
        found["low"][1:] == found["low"][:-1]
    )
    duplicates = np.empty(int(is_duplicate.sum()), _DUPLICATE)
    for name in _DUPLICATE.fields or ():
        duplicates[name] = found[name][is_duplicate]
    order = np.lexsort([duplicates["index"], duplicates["part"]])
    return found[~is_duplicate], duplicates[order]


def _read_range(path: str, number: int, num_ranges: int) -> Iterator[np.ndarray]:
    """Yields the part of each sorted run that is in a range of the hashes."""
    num_hashes = os.path.getsize(path) // _HASHED.itemsize
    first = 2**64 * number // num_ranges
    last = 2**64 * (number + 1) // num_ranges - 1
    with open(path, "rb", buffering=0) as file:

        def high(index: int) -> int:
            file.seek(index * _HASHED.itemsize)
            return int.from_bytes(file.read(8), "little")

        for start in range(0, num_hashes, RUN):
            run = range(start, min(start + RUN, num_hashes))
            begin = start + bisect_left(run, first, key=high)
            end = start + bisect_right(run, last, key=high)
            yield np.fromfile(path, _HASHED, end - begin, offset=begin * _HASHED.itemsize)


def read_duplicates(job: Job, part_number: int, num_ranges: int) -> tuple[int, Iterator[int]]:
    """Returns the number of duplicates in a part of the input, and their indices, ascending."""
    num_duplicates = 0
    ranges = []
    for number in range(num_ranges):
        path = _duplicates_path(job, number)
        if not os.path.getsize(path):
            continue
        parts = np.memmap(path, _DUPLICATE, mode="r")["part"]
        begin = bisect_left(parts, part_number, key=int)
        end = bisect_right(parts, part_number, key=int)
        num_duplicates += end - begin
        ranges.append(_read_indices(path, begin, end))
    return num_duplicates, heapq.merge(*ranges)


def _read_indices(path: str, begin: int, end: int) -> Iterator[int]:
    """Yields the indices of the duplicates from `begin` to `end` of a file."""
    for start in range(begin, end, READ):
        num_read = min(READ, end - start)
        offset = start * _DUPLICATE.itemsize
        yield from np.fromfile(path, _DUPLICATE, num_read, offset=offset)["index"].tolist()


def _hashes_path(job: Job, part_number: int) -> str:
    return os.path.join(job.directory, SPILL, f"{part_number}.hashes")


def _duplicates_path(job: Job, number: int) -> str:
    return os.path.join(job.directory, SPILL, f"{number}.duplicates")
