"""The plan of batches of similar length against one in plain Python, row by row."""

import hypothesis
import numpy as np
import pytest
from bucket_oracle import planned
from hypothesis import strategies as st

from spanbert_tf.data.buckets import FILLER, Buckets, constant_tokens, row_multiple


@st.composite
def epochs(draw):
    num_buckets = draw(st.integers(1, 5))
    widths = sorted(draw(st.sets(st.integers(1, 60), min_size=num_buckets, max_size=num_buckets)))
    sizes = draw(st.lists(st.integers(1, 7), min_size=num_buckets, max_size=num_buckets))
    num_rows = draw(st.integers(0, 90))
    lengths = draw(st.lists(st.integers(1, widths[-1]), min_size=num_rows, max_size=num_rows))
    return Buckets(np.array(widths, "int32"), np.array(sizes)), lengths


def batches_of(buckets, rows, numbers):
    ends = np.cumsum(buckets.sizes[numbers])
    batches = []
    for number, part in zip(numbers.tolist(), np.split(rows, ends)[:-1], strict=True):
        real = part[part != FILLER].tolist()
        assert part.tolist() == real + [FILLER] * (len(part) - len(real))
        batches.append((number, real))
    return batches


@hypothesis.settings(max_examples=150)
@hypothesis.given(epochs(), st.integers(1, 40))
def test_rows_that_come_in_chunks_make_the_batches_of_rows_that_come_one_by_one(epoch, chunk_size):
    buckets, lengths = epoch
    expected = planned(buckets, lengths)
    assert buckets.num_batches(np.bincount(lengths, minlength=1)) == len(expected)
    assert sorted(row for _, rows in expected for row in rows) == list(range(len(lengths)))
    found, waiting = [], np.array([], int)
    for first in range(0, max(len(lengths), 1), chunk_size):
        come = np.arange(first, min(first + chunk_size, len(lengths)))
        waiting = np.concatenate([waiting, come])
        numbers = buckets.of_lengths(np.array(lengths, int)[waiting])
        filled = buckets.fill(numbers, is_end=first + chunk_size >= len(lengths))
        rows = np.where(filled.rows == FILLER, FILLER, np.append(waiting, 0)[filled.rows])
        found += batches_of(buckets, rows, filled.buckets)
        waiting = waiting[filled.rest]
        assert len(waiting) < sum(buckets.sizes)
    assert found == expected
    assert not len(waiting)


@hypothesis.settings(max_examples=60)
@hypothesis.given(st.integers(1, 300), st.integers(0, 2**32), st.sampled_from([64, 100, 512]))
def test_batches_have_a_constant_number_of_positions(batch_size, seed, sequence_length):
    random = np.random.default_rng(seed)
    lengths = random.integers(3, random.integers(4, sequence_length + 1), 50)
    num_rows = np.bincount(lengths)
    buckets = constant_tokens(num_rows, batch_size=batch_size, sequence_length=sequence_length)
    assert 1 <= len(buckets.widths) <= 8
    multiple = row_multiple(batch_size)
    assert batch_size % multiple == 0
    for width, size in zip(buckets.widths.tolist(), buckets.sizes.tolist(), strict=True):
        assert batch_size <= size and size % multiple == 0
        assert size * width <= batch_size * sequence_length < (size + multiple) * width


@pytest.mark.parametrize(
    ("batch_size", "multiple"),
    [(1, 1), (2, 1), (4, 1), (6, 1), (8, 2), (16, 4), (24, 4), (32, 8), (100, 4), (256, 64)],
)
def test_rows_are_multiples_of_what_devices_usually_share(batch_size, multiple):
    assert row_multiple(batch_size) == multiple
