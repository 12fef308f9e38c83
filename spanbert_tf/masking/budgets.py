"""Computes the number of tokens to mask in a block, ceil(rate · length), in integer arithmetic.

Shapes: B rows, G blocks of a row.
"""

import math
from fractions import Fraction

import tensorflow as tf

from spanbert_tf.errors import ConfigurationError
from spanbert_tf.masking.options import MaskingOptions
from spanbert_tf.masking.spans import Blocks

_LARGEST = 2**63 - 1


def block_budgets(blocks: Blocks, options: MaskingOptions) -> tf.Tensor:
    """Counts the tokens to mask in each block at the last rate of `options`; int64 [B, G]."""
    # The table of all lengths is exact. In TensorFlow's float32, some would be rounded up.
    longest = blocks.token_ids.shape[1]
    table = [options.budget(length) for length in range(longest + 1)]
    return tf.gather(tf.constant(table, tf.int64), blocks.lengths)


def scheduled_budgets(
    blocks: Blocks, options: MaskingOptions, step: tf.Tensor, schedule_steps: int
) -> tf.Tensor:
    """Counts the tokens to mask in each block at the rate of a step; int64 [B, G].

    The rate of step t is first + (last - first) · t / (schedule_steps - 1) (Ankner et al., 2023).
    Later steps have the last rate.

    Args:
        blocks: the packed rows.
        options: options with the first and the last rate.
        step: the step, from 0, int64 [].
        schedule_steps: number of steps from the first rate to the last one.

    Raises:
        ConfigurationError: the rates have so many decimals that the products need more than 64
            bits.
    """
    intervals = max(schedule_steps - 1, 1)
    denominator = math.lcm(*(rate.denominator for rate in options.exact_rates)) * intervals
    longest = blocks.token_ids.shape[1]
    if longest * denominator > _LARGEST:
        raise ConfigurationError(
            f"masking.rate: {options.rate} has too many decimals for {schedule_steps:,} steps; "
            "round it"
        )
    first, last = options.exact_rates
    at_first = _numerator(first, denominator)
    change = _numerator((last - first) / intervals, denominator)  # from one step to the next
    numerator = at_first + change * tf.minimum(step, schedule_steps - 1)
    lengths = tf.cast(blocks.lengths, tf.int64)
    return -(-lengths * numerator // denominator)


def _numerator(share: Fraction, denominator: int) -> int:
    """Expands a fraction to a multiple of its denominator, and returns the numerator."""
    return int(share * denominator)
