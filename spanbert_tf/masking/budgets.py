"""How many tokens of a block are masked: ceil(rate · length), in integer arithmetic.

B rows, S positions, G blocks a row.
"""

import math
from fractions import Fraction

import tensorflow as tf

from spanbert_tf.errors import ConfigurationError
from spanbert_tf.masking.options import MaskingOptions
from spanbert_tf.masking.spans import Blocks

_LARGEST = 2**63 - 1


def block_budgets(blocks: Blocks, options: MaskingOptions) -> tf.Tensor:
    """The tokens to mask in each block at the last rate of `options`; int64 [B, G]."""
    # A table of all lengths: TensorFlow's float32 would round some of them up.
    longest = blocks.token_ids.shape[1]
    table = [options.budget(length) for length in range(longest + 1)]
    return tf.gather(tf.constant(table, tf.int64), blocks.lengths)


def scheduled_budgets(
    blocks: Blocks, options: MaskingOptions, step: tf.Tensor, num_steps: int
) -> tf.Tensor:
    """The tokens to mask in each block at the rate of a step; int64 [B, G].

    The rate of step t of N is first + (last - first) · t / (N - 1) (Ankner et al., 2023). Later
    steps have the last rate.

    Args:
        blocks: the packed rows.
        options: has the first and the last rate.
        step: int64 [], from 0.
        num_steps: N.

    Raises:
        ConfigurationError: the rates have so many decimals that the products need more than 64
            bits.
    """
    intervals = max(num_steps - 1, 1)
    denominator = math.lcm(*(rate.denominator for rate in options.exact_rates)) * intervals
    longest = blocks.token_ids.shape[1]
    if longest * denominator > _LARGEST:
        raise ConfigurationError(
            f"masking.rate: {options.rate} has too many decimals for {num_steps:,} steps; round it"
        )
    first, last = options.exact_rates
    at_first = _numerator(first, denominator)
    change = _numerator((last - first) / intervals, denominator)  # from one step to the next
    numerator = at_first + change * tf.minimum(step, intervals)
    lengths = tf.cast(blocks.lengths, tf.int64)
    return -(-lengths * numerator // denominator)


def _numerator(share: Fraction, denominator: int) -> int:
    """The numerator of a fraction with a denominator that its own one divides."""
    return int(share * denominator)
