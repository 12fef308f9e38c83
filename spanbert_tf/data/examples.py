"""Describes what a record holds, and finds and names damaged records by one rule.

A checksum shows that a file is what was written, but not that what was written is right. Graphs
read records in batches. If a record is wrong, they raise an error of TensorFlow that names neither
the file nor the record. Then this module reads the files again, record by record. Undamaged files
are not read twice.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from spanbert_tf.data.tfrecords import read_records
from spanbert_tf.errors import BadInputError

if TYPE_CHECKING:
    import tensorflow as tf

_KINDS = {"int64": "int64_list", "float32": "float_list"}
_ADVICE = "copy the file again or write the records again"


class NoExampleError(ValueError):
    """Raised for bytes that are no such record; says why, but not which record it is."""


class Stored(NamedTuple):
    """How a feature is stored in a record, which is a `tf.train.Example`.

    Attributes:
        dtype: `"int64"` or `"float32"` for one number; an unsigned type for a list of little-endian
            numbers in one bytes value.
        most: largest length of a list; the name of a feature stands for its length.
        like: name of a feature that has the same length.
        below: upper bound of the numbers, which are not negative; the name of a feature stands for
            its length, so that the numbers are positions in it.
        adds_up_to: name of the feature whose length is the sum of the numbers.
    """

    dtype: str
    most: int | str | None = None
    like: str | None = None
    below: int | str | None = None
    adds_up_to: str | None = None

    @property
    def is_list(self) -> bool:
        """Whether it is a list in one bytes value."""
        return self.dtype not in _KINDS


def read_example(serialized: bytes, features: Mapping[str, Stored]) -> dict[str, np.ndarray]:
    """Reads the numbers of each feature of a record.

    Raises:
        NoExampleError: it is no such record.
    """
    import tensorflow as tf
    from google.protobuf.message import DecodeError

    try:
        example = tf.train.Example.FromString(serialized)
    except DecodeError as error:
        raise NoExampleError("it is no tf.train.Example") from error
    return {name: _numbers(example, name, stored.dtype) for name, stored in features.items()}


def example_fault(
    serialized: bytes, features: Mapping[str, Stored], lengths: Mapping[str, int] | None = None
) -> str | None:
    """Returns what is wrong with a record, in words; `None` if nothing is.

    Args:
        serialized: the record.
        features: what it must hold.
        lengths: lengths of some features, from another file.
    """
    try:
        found = read_example(serialized, features)
    except NoExampleError as error:
        return str(error)
    counts = {name: len(numbers) for name, numbers in found.items()}
    for name, stored in features.items():
        if fault := _number_fault(name, counts, stored, lengths or {}):
            return fault
        if fault := _value_fault(name, found[name], counts, stored):
            return fault
    return None


def _numbers(example: "tf.train.Example", name: str, dtype: str) -> np.ndarray:
    """Returns the numbers of a feature; a `NoExampleError` says what is wrong with it."""
    if name not in example.features.feature:
        raise NoExampleError(f"it lacks {name}")
    feature = example.features.feature[name]
    wanted = _KINDS.get(dtype, "bytes_list")
    kind = feature.WhichOneof("kind")
    if kind != wanted:
        raise NoExampleError(f"{name} is stored as {kind or 'nothing'}, not as {wanted}")
    values = getattr(feature, kind).value
    if len(values) != 1:
        raise NoExampleError(f"{name} holds {len(values):,} values, not 1")
    if dtype in _KINDS:
        return np.array(values, dtype)
    stored_as = np.dtype(dtype).newbyteorder("<")
    if len(values[0]) % stored_as.itemsize:
        raise NoExampleError(
            f"{name} holds {len(values[0]):,} bytes, which are no numbers of {dtype}"
        )
    return np.frombuffer(values[0], stored_as)


def _number_fault(
    name: str, counts: Mapping[str, int], stored: Stored, lengths: Mapping[str, int]
) -> str | None:
    count = counts[name]
    most = counts[stored.most] if isinstance(stored.most, str) else stored.most
    if most is not None and count > most:
        return f"{name} holds {count:,} numbers, more than {most:,}"
    if stored.like is not None and count != counts[stored.like]:
        return f"{name} holds {count:,} numbers, and {stored.like} {counts[stored.like]:,}"
    if name in lengths and count != lengths[name]:
        return f"{name} holds {count:,} numbers, not the {lengths[name]:,} that were counted"
    return None


def _value_fault(
    name: str, numbers: np.ndarray, counts: Mapping[str, int], stored: Stored
) -> str | None:
    if stored.dtype == "float32":
        return None if np.isfinite(numbers).all() else f"{name} is {numbers[0]}"
    below = counts[stored.below] if isinstance(stored.below, str) else stored.below
    if stored.adds_up_to and numbers.sum() != counts[stored.adds_up_to]:
        return (
            f"{name} add up to {numbers.sum():,}, and {stored.adds_up_to} holds "
            f"{counts[stored.adds_up_to]:,} numbers"
        )
    if below is None:
        return None
    wrong = numbers[(numbers < 0) | (numbers >= below)]
    return (
        f"{name} holds {wrong[0]:,}, not a number from 0 to {below - 1:,}" if len(wrong) else None
    )


def find_damaged_record(
    path: str,
    features: Mapping[str, Stored],
    *,
    num_records: int,
    info_file: str,
    lengths: tuple[str, Sequence[int] | np.ndarray] | None = None,
) -> BadInputError | None:
    """Finds the first damaged record of a file: an error that names it, or `None`.

    Args:
        path: a TFRecord file.
        features: what each record must hold.
        num_records: how many there are.
        info_file: name of the description that says so.
        lengths: a feature, and how many numbers each record has of it, as another file says.
    """
    count = 0
    for record, fault in read_records(path):
        stated = {}
        if lengths is not None and count < len(lengths[1]):
            stated = {lengths[0]: int(lengths[1][count])}
        if fault := fault or example_fault(record, features, stated):
            return BadInputError(f"{path}: record {count} (from 0) is damaged ({fault}); {_ADVICE}")
        count += 1
    if count != num_records:
        return BadInputError(
            f"{path}: has {count} records, and {info_file} states {num_records}; {_ADVICE}"
        )
    return None


@contextlib.contextmanager
def named_damage(find: Callable[[], BadInputError | None]) -> Iterator[None]:
    """Replaces TensorFlow's errors about damaged records by errors that name the record.

    Args:
        find: looks for it; where it finds none, TensorFlow's error stands.
    """
    import tensorflow as tf

    damage = (
        tf.errors.DataLossError,
        tf.errors.FailedPreconditionError,  # a file has fewer records than the manifest states
        tf.errors.InvalidArgumentError,
        UnicodeDecodeError,  # TensorFlow's message has the record's bytes, which are no text
        NoExampleError,
    )
    try:
        yield
    except damage as error:
        if found := find():
            raise found from error
        raise
