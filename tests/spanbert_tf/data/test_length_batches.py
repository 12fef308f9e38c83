"""Batches of rows of similar length: what is in them, whichever the lengths, and in which order."""

import itertools

import hypothesis
import numpy as np
import pytest
import scipy.stats
from hypothesis import strategies as st

from spanbert_tf.data.batches import MAX_WIDTHS, LengthBatches, even_width
from spanbert_tf.data.buckets import FILLER, WIDTH_MULTIPLE, batch_widths

MAX_LENGTH = 203  # no multiple of 8
lists_of_lengths = st.lists(st.integers(1, MAX_LENGTH), min_size=1, max_size=300)


def made_up_lengths(count, seed=0):
    return np.random.default_rng(seed).gamma(4.0, 45.0, count).astype(int).clip(20, 512)


@hypothesis.settings(max_examples=60)
@hypothesis.given(lists_of_lengths, st.integers(1, 40), st.integers(), st.integers(0, 2**40))
def test_each_row_is_in_one_batch_of_an_epoch(lengths, batch_size, seed, epoch):
    batches = LengthBatches(np.array(lengths), batch_size=batch_size, max_length=MAX_LENGTH)
    for plan in (batches.epoch(seed, epoch), batches.longest_first()):
        num_batches = (len(lengths) + batch_size - 1) // batch_size
        assert batches.num_batches == num_batches
        assert plan.rows.shape == (num_batches, batch_size)
        seen, unfilled = [], 0
        for rows, width in zip(plan.rows.tolist(), plan.widths.tolist(), strict=True):
            real = [row for row in rows if row != FILLER]
            assert rows == real + [FILLER] * (batch_size - len(real))
            unfilled += len(real) < batch_size
            seen += real
            longest = max(lengths[row] for row in real)
            assert width == min(w for w in batches.widths if w >= longest) <= MAX_LENGTH
        assert sorted(seen) == list(range(len(lengths)))
        assert unfilled <= 1
        assert len(set(plan.widths.tolist())) <= MAX_WIDTHS


@hypothesis.settings(max_examples=40)
@hypothesis.given(st.lists(st.integers(1, 75), min_size=1, max_size=60), st.integers(1, 4))
def test_widths_are_the_best_ones(lengths, max_widths):
    """Against all sets of multiples of 8, and 75, the longest that is allowed."""
    allowed = [*range(8, 75, 8), 75]

    def positions(widths):
        return sum(min(width for width in widths if width >= length) for length in lengths)

    best = min(
        positions(widths)
        for count in range(1, max_widths + 1)
        for widths in itertools.combinations(allowed, count)
        if widths[-1] >= max(lengths)
    )
    widths = batch_widths(np.bincount(lengths), 75, max_widths).tolist()
    assert widths == sorted(set(widths))
    assert set(widths) <= set(allowed)
    assert len(widths) <= max_widths
    assert positions(widths) == best


@pytest.mark.parametrize("count", [3_001, 20_000])
@pytest.mark.parametrize("is_sorted", [False, True])
def test_order_has_nothing_of_the_file(count, is_sorted):
    """Also where the rows of the file become longer and longer."""
    lengths = made_up_lengths(count)
    if is_sorted:
        lengths = np.sort(lengths)
    batches = LengthBatches(lengths, batch_size=16, max_length=512)
    orders = []
    for seed, epoch in ((0, 0), (0, 1), (0, 2), (1, 0)):
        rows = batches.epoch(seed, epoch).rows.ravel()
        orders.append(rows[rows != FILLER])
        correlation = scipy.stats.spearmanr(np.arange(count), orders[-1]).statistic
        # Of 3,001 independent pairs the standard deviation is 0.018. In a sorted file the 188
        # batches are what is independent, as their rows are neighbours: 0.073.
        assert abs(correlation) < (0.25 if is_sorted else 0.08)
        # Rows side by side in the file are as far apart as any two: a third of the epoch.
        places = np.argsort(orders[-1])
        assert np.abs(np.diff(places)).mean() == pytest.approx(count / 3, rel=0.15)
    for first, second in itertools.combinations(orders, 2):
        assert abs(scipy.stats.spearmanr(first, second).statistic) < 0.25


def test_seeds_of_numpy_are_those_of_python():
    batches = LengthBatches(made_up_lengths(99), batch_size=7, max_length=512)
    for seed in (0, -3):
        expected, found = batches.epoch(seed, 2), batches.epoch(np.int64(seed), 2)
        np.testing.assert_array_equal(found.rows, expected.rows)


def test_batches_have_other_rows_in_each_epoch():
    batches = LengthBatches(made_up_lengths(5_000), batch_size=8, max_length=512)
    companions = [
        {frozenset(rows) for rows in batches.epoch(0, epoch).rows.tolist()} for epoch in range(3)
    ]
    for first, second in itertools.combinations(companions, 2):
        assert not first & second


@pytest.mark.parametrize("batch_size", [8, 32])
def test_padding_is_a_quarter_of_that_of_random_batches(batch_size):
    lengths = made_up_lengths(6_400)
    batches = LengthBatches(lengths, batch_size=batch_size, max_length=512)
    random = np.random.default_rng(0).permutation(6_400).reshape(-1, batch_size)
    positions = batch_size * lengths[random].max(axis=1).sum()
    padding_of_random = 1 - lengths.sum() / positions
    for plan in (batches.epoch(0, 0), batches.longest_first()):
        padding = 1 - lengths.sum() / (batch_size * plan.widths.sum())
        assert padding < padding_of_random / 4


def test_long_and_short_batches_are_mixed():
    batches = LengthBatches(made_up_lengths(6_400), batch_size=8, max_length=512)
    widths = batches.epoch(3, 1).widths
    assert abs(scipy.stats.spearmanr(np.arange(len(widths)), widths).statistic) < 0.15
    assert abs(scipy.stats.spearmanr(widths[:-1], widths[1:]).statistic) < 0.15


def test_longest_come_first():
    lengths = made_up_lengths(101)
    plan = LengthBatches(lengths, batch_size=8, max_length=512).longest_first()
    expected = sorted(lengths.tolist(), reverse=True)
    for number, rows in enumerate(plan.rows):
        rows = rows[rows != FILLER]
        assert rows.tolist() == sorted(rows)
        assert sorted(lengths[rows], reverse=True) == expected[8 * number : 8 * number + 8]


@hypothesis.settings(max_examples=40)
@hypothesis.given(lists_of_lengths, st.integers(1, 9), st.integers(1, 900))
def test_batches_keep_to_a_limit_of_positions(lengths, batch_size, max_positions):
    lengths = np.array(lengths)
    batches = LengthBatches(lengths, batch_size=batch_size, max_length=MAX_LENGTH)
    plan = batches.longest_first(max_positions)
    rows = [row[row != FILLER] for row in plan.rows]
    assert sorted(np.concatenate(rows).tolist()) == list(range(len(lengths)))
    for row, width in zip(rows, plan.widths.tolist(), strict=True):
        assert lengths[row].max() <= width
        assert len(row) == 1 or len(row) * width <= max_positions
    unlimited = batches.longest_first(10**9).rows
    assert unlimited.tolist() == batches.longest_first().rows.tolist()


def test_order_of_earlier_versions():
    """A run that was begun by another version goes on with the rows that are left."""
    batches = LengthBatches(np.arange(1, 14), batch_size=5, max_length=512)
    expected = [[9, 3, 2, FILLER, FILLER], [12, 0, 5, 7, 1], [10, 8, 11, 6, 4]]
    assert batches.epoch(7, 2).rows.tolist() == expected


@pytest.mark.parametrize("num_batches", [127, 128])
def test_small_data_sets_are_not_sorted_by_length(num_batches):
    """Their batches have the lengths of random rows; those of larger ones are much alike."""
    lengths = made_up_lengths(8 * num_batches)
    rows = LengthBatches(lengths, batch_size=8, max_length=512).epoch(0, 0).rows
    random = np.random.default_rng(0).permutation(rows.size).reshape(rows.shape)
    within, within_random = (lengths[r].std(axis=1).mean() for r in (rows, random))
    if num_batches < 128:
        assert within == pytest.approx(within_random, rel=0.1)
    else:
        assert within < within_random / 4


@pytest.mark.parametrize(("lengths", "batch_size"), [([], 1), ([3], 0), ([3, 9], 2)])
def test_impossible_batches(lengths, batch_size):
    with pytest.raises(ValueError, match="rows in batches"):
        LengthBatches(np.array(lengths, int), batch_size=batch_size, max_length=8)


@pytest.mark.parametrize("max_length", [5, 8, 100, 128, 384, 512])
def test_widths_of_unknown_lengths_are_few_and_hold_the_longest_row(max_length):
    widths = [int(even_width(longest, max_length)) for longest in range(1, max_length + 1)]
    assert len(set(widths)) <= MAX_WIDTHS
    assert all(width >= longest for longest, width in enumerate(widths, 1))
    assert all(width % WIDTH_MULTIPLE == 0 or width == max_length for width in widths)
    assert widths[-1] == max_length
