"""Rows of texts and pairs against BERT's own loop, and SegaBERT's positions of them."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from spanbert_tf.data.text_rows import TextRowPacker
from spanbert_tf.text.vocabulary import SpecialTokenIds

SPECIAL = SpecialTokenIds(start=101, end=102, pad=7)
TOKENS = st.lists(st.integers(200, 210), max_size=12)


def trimmed(first, second, room):
    """`_truncate_seq_pair` of BERT's and SpanBERT's code."""
    first, second = list(first), list(second)
    while len(first) + len(second) > room:
        (first if len(first) > len(second) else second).pop()
    return first, second


def filled(first, second, room):
    return first[:room], second[: max(room - len(first), 0)]


@settings(max_examples=60)
@given(st.lists(st.tuples(TOKENS, TOKENS), min_size=1, max_size=4), st.integers(3, 20))
@pytest.mark.parametrize(("truncate", "cut"), [("round_robin", trimmed), ("waterfall", filled)])
def test_pairs_are_cut_as_by_the_original(truncate, cut, pairs, length):
    pack = TextRowPacker(SPECIAL, length, truncate)
    columns = (tf.ragged.constant(list(column), tf.int32) for column in zip(*pairs, strict=True))
    columns = [column if column.shape.rank == 2 else _empty(len(pairs)) for column in columns]
    rows = pack(*columns)
    features = {name: value.numpy() for name, value in rows.features(segment_aware=True).items()}
    for number, pair in enumerate(pairs):
        first, second = cut(*pair, length - 3)
        expected = [101, *first, 102, *second, 102]
        segments = [0] * (len(first) + 2) + [1] * (len(second) + 1)
        tokens = [0, *range(len(first) + 1), *range(len(second) + 1)]
        size = int(rows.lengths[number])
        assert features["token_ids"][number, :size].tolist() == expected
        assert features["segment_ids"][number, :size].tolist() == segments
        assert features["paragraph_indices"][number, :size].tolist() == segments
        assert features["token_indices"][number, :size].tolist() == tokens
        assert bool(rows.is_cut[number]) == (first + second != list(pair[0]) + list(pair[1]))
        assert set(features["token_ids"][number, size:]) <= {SPECIAL.pad}
        for name in set(features) - {"token_ids"}:
            assert not features[name][number, size:].any()
    assert not features["sentence_indices"].any()
    assert features["padding_mask"].sum(axis=1).tolist() == rows.lengths.numpy().tolist()


def test_texts_alone_have_one_segment():
    texts = tf.ragged.constant([[1, 2, 3, 4, 5], [], [6]], tf.int32)
    rows = TextRowPacker(SPECIAL, 5)(texts, pads_to_limit=True)
    expected = [[101, 1, 2, 3, 102], [101, 102, 7, 7, 7], [101, 6, 102, 7, 7]]
    assert rows.token_ids.numpy().tolist() == expected
    assert rows.is_cut.numpy().tolist() == [True, False, False]
    features = rows.features(segment_aware=True)
    assert not np.any(features["segment_ids"]) and not np.any(features["paragraph_indices"])
    assert features["token_indices"].numpy().tolist() == [
        [0, 0, 1, 2, 3],
        [0, 0, 0, 0, 0],
        [0, 0, 1, 0, 0],
    ]


@pytest.mark.parametrize("arguments", [(2,), (16, "longest")])
def test_wrong_arguments_are_refused(arguments):
    with pytest.raises(ValueError, match=r"sequence_length|truncate"):
        TextRowPacker(SPECIAL, *arguments)


def _empty(count):
    return tf.RaggedTensor.from_row_lengths(tf.zeros([0], tf.int32), [0] * count)
