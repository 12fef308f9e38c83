"""Parses serialized records of all kinds into tensors, and checks them.

Shapes: B records, S values of a list.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from spanbert_tf.data.examples import Stored

_NUMBERS = {
    "int64": tf.io.FixedLenFeature([], tf.int64),
    "float32": tf.io.FixedLenFeature([], tf.float32),
}
_LIST = tf.io.FixedLenFeature([], tf.string)
_DECODED_AS = {"uint32": "int32"}  # TensorFlow decodes no uint32; ids and offsets are far below


def parse_examples(
    serialized: tf.Tensor, features: Mapping[str, Stored], width: int | tf.Tensor | None
) -> dict[str, Any]:
    """Parses B records, and checks them against their description.

    Look-ups beyond a table raise an error on some devices and return 0 on others, so ranges are
    checked here. `example_fault` says which record is wrong.

    Args:
        serialized: string [B], `tf.train.Example`s.
        features: how they are stored.
        width: S, the width of lists; a longer list is an error. `None`: the length of the longest
            list.

    Returns:
        For a number: int64 or float32 [B]. For a list: its values [B, S], padded with 0, and its
        length, int64 [B].
    """
    kinds = {name: _NUMBERS.get(one.dtype, _LIST) for name, one in features.items()}
    raw = tf.io.parse_example(serialized, kinds)
    found = {
        name: _decode_list(raw[name], name, one.dtype, width) if one.is_list else raw[name]
        for name, one in features.items()
    }
    counts = {name: found[name][1] for name, one in features.items() if one.is_list}
    checks = []
    for name, one in features.items():
        values = found[name][0] if one.is_list else found[name]
        if one.dtype == "float32":
            checks.append(tf.debugging.assert_all_finite(values, f"{name} is not finite"))
        if one.like in counts:
            checks.append(tf.debugging.assert_equal(counts[name], counts[one.like], name))
        if one.adds_up_to is not None:
            total = tf.reduce_sum(tf.cast(values, tf.int64), axis=1)
            checks.append(tf.debugging.assert_equal(total, counts[one.adds_up_to], name))
        if isinstance(one.below, str):  # the padding of an empty list is 0
            checks += _range_checks(values, name, tf.maximum(counts[one.below], 1))
        elif one.below is not None:
            checks += _range_checks(values, name, one.below)
    with tf.control_dependencies(checks):
        return tf.nest.map_structure(tf.identity, found)


def _decode_list(
    raw: tf.Tensor, name: str, dtype: str, width: int | tf.Tensor | None
) -> tuple[tf.Tensor, tf.Tensor]:
    item_size = np.dtype(dtype).itemsize
    lengths = tf.strings.length(raw) // item_size  # [B]
    if width is None:
        width = tf.maximum(tf.reduce_max(lengths), 1)
    # decode_raw cuts and pads to its fixed length silently.
    message = f"{name} of a record is longer than the description of the records says"
    check = tf.debugging.assert_less_equal(lengths, width, message=message)
    with tf.control_dependencies([check]):
        values = decode_unsigned(raw, dtype, fixed_length=width * item_size)
    return values, tf.cast(lengths, tf.int64)  # [B, width], [B]


def _range_checks(values: tf.Tensor, name: str, below: int | tf.Tensor) -> list[tf.Operation]:
    """Checks that numbers, [B] or [B, S], are not negative and below one number, or [B] of them."""
    message = f"{name} of a record is out of its range"
    lists = values.shape.rank > 1
    largest = tf.cast(tf.reduce_max(values, axis=-1) if lists else values, tf.int64)
    checks = [tf.debugging.assert_less(largest, tf.cast(below, tf.int64), message=message)]
    if not values.dtype.is_unsigned:
        smallest = tf.reduce_min(values, axis=-1) if lists else values
        checks.append(tf.debugging.assert_non_negative(smallest, message=message))
    return checks


def decode_unsigned(
    raw: tf.Tensor, dtype: str, fixed_length: int | tf.Tensor | None = None
) -> tf.Tensor:
    """Decodes numbers from bytes.

    Args:
        raw: string [...].
        dtype: the type that they were written in: `"uint8"`, `"uint16"` or `"uint32"`.
        fixed_length: bytes of each list after cutting and padding with 0; without it, all lists
            must be equally long.

    Returns:
        A tensor [..., numbers] of that type, int32 in place of uint32.
    """
    out_type = tf.as_dtype(_DECODED_AS.get(dtype, dtype))
    return tf.io.decode_raw(raw, out_type, fixed_length=fixed_length)
