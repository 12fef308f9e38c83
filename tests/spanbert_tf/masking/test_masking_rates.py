"""A masking rate that changes from step to step: exact in each; held-out records have the last."""

from fractions import Fraction

import numpy as np
import pytest
import record_files
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from spanbert_tf.data import pretraining_dataset
from spanbert_tf.errors import ConfigurationError
from spanbert_tf.masking import MaskingOptions
from spanbert_tf.masking.budgets import block_budgets, scheduled_budgets
from spanbert_tf.masking.spans import Blocks

LENGTH = 40
SCHEDULE_STEPS = 9
RATES = [0.4, 0.1]
CENTS = st.integers(1, 99)


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    rows = record_files.random_records(30, LENGTH)
    directory = tmp_path_factory.mktemp("records")
    return record_files.write_records(directory, rows[:24], rows[24:], sequence_length=LENGTH)


def blocks_of(lengths, num_positions):
    rows = tf.zeros([len(lengths), num_positions], tf.int32)
    values = tf.constant(lengths)[:, tf.newaxis]
    fields = dict.fromkeys(Blocks._fields, values)
    return Blocks(**{**fields, "token_ids": rows, "lengths": values})


def expected_budget(length, first, last, step, schedule_steps):
    share = Fraction(min(step, schedule_steps - 1), max(schedule_steps - 1, 1))
    rate = Fraction(first, 100) * (1 - share) + Fraction(last, 100) * share
    return -(-length * rate.numerator // rate.denominator)


@settings(deadline=None)
@given(CENTS, CENTS, st.integers(1, 2_400_000), st.data())
def test_budgets_are_exact_at_every_step(first, last, schedule_steps, data):
    step = data.draw(st.integers(0, schedule_steps + 3))
    lengths = data.draw(st.lists(st.integers(0, 510), min_size=1, max_size=5))
    options = MaskingOptions(rate=[first / 100, last / 100])
    blocks = blocks_of(lengths, 512)
    found = scheduled_budgets(blocks, options, tf.constant(step, tf.int64), schedule_steps)
    # With one step there is nothing between the first rate and the last.
    expected = [expected_budget(length, first, last, step, schedule_steps) for length in lengths]
    assert found.numpy()[:, 0].tolist() == expected
    assert max(expected) <= options.num_slots(512)
    at_last = block_budgets(blocks, options).numpy()[:, 0].tolist()
    assert at_last == [-(-length * last // 100) for length in lengths]


def batches_of(records, num_batches, first_batch=0, rate=RATES, **options):
    data = pretraining_dataset(
        records,
        batch_size=4,
        masking={"rate": rate},
        seed=3,
        first_batch=first_batch,
        schedule_steps=SCHEDULE_STEPS,
        **options,
    )
    return list(data.take(num_batches).as_numpy_iterator())


def test_each_batch_is_masked_at_its_own_rate_also_after_a_stop(records):
    batches = batches_of(records, SCHEDULE_STEPS + 2)  # goes on behind the end of an epoch, too
    for step, batch in enumerate(batches):
        lengths = batch["padding_mask"].sum(axis=1) - 2  # without [CLS] and [SEP]
        expected = [
            expected_budget(int(length), 40, 10, step, SCHEDULE_STEPS) for length in lengths
        ]
        assert batch["mask_weights"].sum(axis=1).tolist() == expected
    resumed = batches_of(records, 3, first_batch=5)
    for before, after in zip(batches[5:8], resumed, strict=True):
        for name, values in before.items():
            np.testing.assert_array_equal(after[name], values, err_msg=name)


def test_held_out_records_have_the_last_rate(records):
    """So that they compare with those of a run at this rate."""
    data = [
        pretraining_dataset(records, batch_size=6, masking={"rate": rate}, split="validation")
        for rate in (RATES, RATES[-1])
    ]
    scheduled, constant = (next(each.as_numpy_iterator()) for each in data)
    for name in ("token_ids", "padding_mask"):
        np.testing.assert_array_equal(scheduled[name], constant[name])
    assert scheduled["mask_weights"].sum() == constant["mask_weights"].sum()


def test_two_equal_rates_are_one(records):
    for scheduled, constant in zip(
        batches_of(records, 3, rate=[0.2, 0.2]), batches_of(records, 3, rate=0.2), strict=True
    ):
        for name, values in constant.items():
            np.testing.assert_array_equal(scheduled[name], values, err_msg=name)


def test_a_schedule_needs_its_length(records):
    message = r"masking.rate: \[0.4, 0.1\] changes .* schedule_steps"
    with pytest.raises(ConfigurationError, match=message):
        pretraining_dataset(records, batch_size=4, masking={"rate": RATES})


@pytest.mark.parametrize(
    ("rate", "message"),
    [
        ([0.3], r"masking.rate: \[0.3\] must have at least 2 items"),
        ([0.3, 0.2, 0.1], "must have at most 2 items"),
        ([0.3, 1.5], "masking.rate: 1.5 must be less than 1"),
        ("0.3", "masking.rate: '0.3' must be a valid number"),
        ([0.3, "a"], "masking.rate: 'a' must be a valid number"),
    ],
)
def test_rates_that_cannot_be_used_are_refused(rate, message):
    with pytest.raises(ConfigurationError, match=message):
        MaskingOptions.of({"rate": rate})


def test_rates_with_too_many_decimals_are_refused():
    options = MaskingOptions(rate=[0.123456789012345, 0.15])
    with pytest.raises(ConfigurationError, match="too many decimals for 2,400,000 steps"):
        scheduled_budgets(blocks_of([5], 512), options, tf.constant(0, tf.int64), 2_400_000)
