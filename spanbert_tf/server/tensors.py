"""Converts the JSON of requests to arrays, and arrays to JSON.

Dimensions: N rows of a request.
"""

import base64
import binascii
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from spanbert_tf.server.batching import Arrays
from spanbert_tf.server.errors import RequestError

_BASE64 = "b64"
_LENGTH_BYTES = 4
_BINARY_SUFFIX = "_bytes"  # outputs with such names are binary for TF Serving


def parse_body(body: bytes | bytearray) -> dict[str, Any]:
    """Parses the body of a request, which must be an object.

    Raises:
        RequestError: it is no JSON, nested too deeply, or holds NaN or an infinity.
    """
    try:
        content = json.loads(body, parse_constant=_refuse_constant, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise RequestError(400, "the body is no JSON that can be read") from error
    if not isinstance(content, dict):
        raise RequestError(400, "the body is no JSON object")
    return content


def binary_values(dtype: tf.DType, data: bytes) -> list:
    """Reads the values of a binary tensor of the Open Inference Protocol.

    Numbers have the lowest byte first. Each string has its length before it, in four bytes.

    Raises:
        ValueError: the bytes are none of these.
    """
    if dtype != tf.string:
        return np.frombuffer(data, np.dtype(dtype.as_numpy_dtype).newbyteorder("<")).tolist()
    values = []
    start = 0
    while start < len(data):
        size = int.from_bytes(data[start : start + _LENGTH_BYTES], "little")
        start += _LENGTH_BYTES
        values.append(data[start : start + size])
        start += size
    if start != len(data):
        raise ValueError("the last string is not whole")
    return values


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _finite(text: str) -> float:
    """Reads a number; Python would make an infinity of one that is too large."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is too large")
    return value


def typed(content: Mapping[str, Any], key: str, kind: type, default: Any = None) -> Any:
    """Returns the value of a key, or the default if it is missing or null.

    Raises:
        RequestError: the value is of another type.
    """
    value = content.get(key)
    if value is None:
        return default
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise RequestError(400, f"{key!r} is not of type {kind.__name__}")
    return value


def input_array(name: str, value: Any, spec: tf.TensorSpec) -> np.ndarray:
    """Converts nested lists to an array of a spec's rank and type.

    Args:
        name: name of the input, for errors.
        value: nested lists.
        spec: spec of the input.

    Raises:
        RequestError: the lists are of another depth, of different lengths, or hold other values.
    """
    level = [value]
    shape: list[int] = []
    for expected in spec.shape.as_list():
        if not all(isinstance(item, list) for item in level):
            raise RequestError(400, f"input {name!r} has not the rank {spec.shape.rank}")
        lengths = {len(item) for item in level}
        if len(lengths) > 1:
            raise RequestError(400, f"input {name!r} has lists of different lengths")
        length = lengths.pop() if lengths else expected or 0
        if expected not in (None, length):
            raise RequestError(400, f"input {name!r} has {length} numbers in place of {expected}")
        shape.append(length)
        level = [inner for item in level for inner in item]
    leaves = [_leaf(name, item, spec.dtype) for item in level]
    return np.array(leaves, spec.dtype.as_numpy_dtype).reshape(shape)


def _leaf(name: str, value: Any, dtype: tf.DType) -> Any:
    """Returns a value for an array of a type; strings are bytes."""
    if dtype == tf.string:
        if isinstance(value, bytes):  # not of JSON
            return value
        if isinstance(value, str):
            return value.encode("utf-8", "replace")  # halves of surrogate pairs
        if isinstance(value, dict) and value.keys() == {_BASE64}:
            return _decoded(name, value[_BASE64])
    elif isinstance(value, bool):
        if dtype == tf.bool:
            return value
    elif isinstance(value, int) and dtype.is_integer:
        if dtype.min <= value <= dtype.max:
            return value
    elif isinstance(value, int | float) and dtype.is_floating and _is_finite(value):
        return value
    raise RequestError(400, f"input {name!r} holds a value that is no {dtype.name}")


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond floats
        return False


def _decoded(name: str, value: Any) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (TypeError, ValueError, binascii.Error) as error:
        raise RequestError(400, f"input {name!r} holds a {_BASE64!r} that is no base64") from error


def check_names(given: Sequence[str] | set[str], specs: Mapping[str, tf.TensorSpec]) -> None:
    """Checks that a request has each input of a signature, and no other.

    Raises:
        RequestError: one is missing, or is not an input.
    """
    missing = [name for name in specs if name not in given]
    unknown = [name for name in given if name not in specs]
    if missing or unknown:
        wanted = ", ".join(specs)
        raise RequestError(400, f"the inputs of the signature are {wanted}, each once")


def check_sizes(arrays: Arrays) -> None:
    """Checks that all inputs, arrays [N, …], have the same number of rows.

    Raises:
        RequestError: they have not.
    """
    if len({len(values) for values in arrays.values()}) != 1:
        raise RequestError(400, "the inputs have different numbers of rows")


def output_values(name: str, values: np.ndarray) -> list:
    """Converts an output to nested lists. Strings are text, or base64 as TF Serving has it."""
    if values.dtype != object:
        return values.tolist()
    if name.endswith(_BINARY_SUFFIX):
        return np.vectorize(_as_base64, otypes=[object])(values).tolist()
    return np.vectorize(_as_text, otypes=[object])(values).tolist()


def _as_base64(value: bytes) -> dict[str, str]:
    return {_BASE64: base64.b64encode(value).decode()}


def _as_text(value: bytes) -> str:
    return value.decode("utf-8", "replace")
