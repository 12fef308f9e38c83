"""Features of a record: numbers, and lists of unsigned integers as little-endian bytes."""

from collections.abc import Mapping

import tensorflow as tf

# TensorFlow decodes no uint32. Ids and offsets are far below 2³¹.
_DECODED_AS = {"uint32": "int32"}


def serialize_features(numbers: Mapping[str, int | float], lists: Mapping[str, bytes]) -> bytes:
    """The bytes of a `tf.train.Example`.

    Args:
        numbers: features of one int64, or of one float32.
        lists: features of one bytes value.
    """
    # Filled in place: three times as fast as from messages made one by one.
    example = tf.train.Example()
    features = example.features.feature
    for name, value in numbers.items():
        if isinstance(value, float):
            features[name].float_list.value.append(value)
        else:
            features[name].int64_list.value.append(value)
    for name, raw in lists.items():
        features[name].bytes_list.value.append(raw)
    return example.SerializeToString(deterministic=True)


def decode_unsigned(
    raw: tf.Tensor, dtype: str, fixed_length: int | tf.Tensor | None = None
) -> tf.Tensor:
    """The numbers in bytes.

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
