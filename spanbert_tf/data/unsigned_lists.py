"""Lists of unsigned integers, as records hold them: little-endian bytes."""

import tensorflow as tf

# TensorFlow decodes no uint32. Ids and offsets are far below 2³¹.
_DECODED_AS = {"uint32": "int32"}


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
