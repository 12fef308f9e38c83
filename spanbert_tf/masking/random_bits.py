"""Random numbers that depend only on (seed, epoch, record, purpose, counter).

TensorFlow's stateless generators take one seed for a whole tensor. Here each row of a batch has its
own key, so the masks of a row do not depend on the batch. The generator is splitmix64 (Steele, Lea
and Flood, 2014): the n-th number of a key is a mix of key + n · GOLDEN_GAMMA.

All numbers are uint64 tensors. Arithmetic wraps around, as the generator requires.

Shapes: B rows.
"""

import enum

import tensorflow as tf

GOLDEN_GAMMA = 0x9E3779B97F4A7C15  # 2^64 divided by the golden ratio, made odd
_FIRST_MULTIPLIER = 0xBF58476D1CE4E5B9
_SECOND_MULTIPLIER = 0x94D049BB133111EB
FRACTION_BITS = 32  # resolution of the fractions that choose anchors, lengths and replacements


class Purpose(enum.IntEnum):
    """What random numbers are for; each purpose has its own sequence of numbers of a row."""

    ANCHOR_AND_LENGTH = 0
    REPLACEMENT = 1
    RANDOM_TOKEN = 2
    ORDER = 3
    SEGMENTS = 4  # which segments of a document are trained
    ANNOTATED_SPAN = 5  # whether a draw takes one, and which


def row_keys(seed: int, epochs: tf.Tensor, record_ids: tf.Tensor) -> tf.Tensor:
    """Computes the key of the random numbers of each row.

    Args:
        seed: seed of the run.
        epochs: epoch of each row, int64 [B].
        record_ids: int64 [B].

    Returns:
        uint64 [B].
    """
    seed_key = _mix(_constant((int(seed) + 1) * GOLDEN_GAMMA))
    epoch_keys = _mix(seed_key + tf.cast(epochs, tf.uint64) * _constant(GOLDEN_GAMMA))  # [B]
    return _mix(epoch_keys + tf.cast(record_ids, tf.uint64) * _constant(GOLDEN_GAMMA))  # [B]


def random_bits(keys: tf.Tensor, purpose: Purpose, counters: tf.Tensor) -> tf.Tensor:
    """Draws 64 random bits for each counter of each row.

    Args:
        keys: uint64 [B], from `row_keys`.
        purpose: what the numbers are for.
        counters: integer [B, …] or [1, …], below 2^32.

    Returns:
        uint64 [B, …].
    """
    numbers = tf.cast(counters, tf.uint64) + _constant((int(purpose) << 32) + 1)
    keys = tf.reshape(keys, [-1] + [1] * (numbers.shape.rank - 1))  # [B, 1 …]
    return _mix(keys + numbers * _constant(GOLDEN_GAMMA))


def high_fraction(bits: tf.Tensor) -> tf.Tensor:
    """Returns the upper half of the bits, int64 in [0, 2^32), a fraction of 2^32."""
    return tf.cast(tf.bitwise.right_shift(bits, _constant(32)), tf.int64)


def low_fraction(bits: tf.Tensor) -> tf.Tensor:
    """Returns the lower half of the bits, int64 in [0, 2^32), independent of the upper half."""
    return tf.cast(tf.bitwise.bitwise_and(bits, _constant(2**32 - 1)), tf.int64)


def scale(fraction: tf.Tensor, limit: tf.Tensor) -> tf.Tensor:
    """Scales a fraction to an integer in [0, limit); `limit` is int64 and below 2^31."""
    return tf.bitwise.right_shift(fraction * limit, tf.constant(FRACTION_BITS, tf.int64))


def _mix(bits: tf.Tensor) -> tf.Tensor:
    bits = _shift_xor(bits, 30) * _constant(_FIRST_MULTIPLIER)
    bits = _shift_xor(bits, 27) * _constant(_SECOND_MULTIPLIER)
    return _shift_xor(bits, 31)


def _shift_xor(bits: tf.Tensor, shift: int) -> tf.Tensor:
    return tf.bitwise.bitwise_xor(bits, tf.bitwise.right_shift(bits, _constant(shift)))


def _constant(value: int) -> tf.Tensor:
    return tf.constant(value % 2**64, tf.uint64)
