"""Lists of all widths come back as they were written; rows of any number of blocks are packed."""

import numpy as np
import pytest
import tensorflow as tf

from spanbert_tf.data.manifest import token_id_dtype
from spanbert_tf.data.parsing import decode_unsigned
from spanbert_tf.data.rows import ParsedRecords, pack_rows, pack_spans
from spanbert_tf.text.vocabulary import SpecialTokenIds


@pytest.mark.parametrize("vocabulary_size", [28_996, 2**16, 2**16 + 1, 250_002])
def test_ids_of_any_vocabulary(vocabulary_size):
    dtype = token_id_dtype(vocabulary_size)
    values = np.array([0, 1, vocabulary_size // 2, vocabulary_size - 1])
    raw = values.astype(f"<{np.dtype(dtype).str[1:]}").tobytes()

    decoded = decode_unsigned(tf.constant(raw), dtype)
    assert tf.cast(decoded, tf.int32).numpy().tolist() == values.tolist()
    item_size = len(raw) // len(values)
    rows = decode_unsigned(tf.constant([raw, raw[:item_size]]), dtype, fixed_length=5 * item_size)
    expected = [[*values.tolist(), 0], [0] * 5]
    assert tf.cast(rows, tf.int32).numpy().tolist() == expected


class ThreeBlocks(ParsedRecords):
    """Records have one block or two: these stand for others."""

    inner_bounds = tuple(tf.constant([[n], [m]], tf.int64) for n, m in ((2, 3), (5, 3)))


def test_rows_of_three_blocks():
    """Of 2, 3 and 1 tokens; and of 3, none and 2."""
    tokens = tf.constant([[11, 12, 21, 22, 23, 31, 0], [11, 12, 13, 31, 32, 0, 0]], tf.uint16)
    starts = tf.constant([[0, 2, 3, 5], [1, 3, 0, 0]], tf.uint16)
    ends = tf.constant([[1, 2, 4, 5], [2, 4, 0, 0]], tf.uint16)
    counts = tf.constant([4, 2], tf.int64)
    lists = {"entity_starts": (starts, counts), "entity_ends": (ends, counts)}
    records = ThreeBlocks(tokens, tf.constant([6, 5], tf.int64), {}, lists)

    features, blocks = pack_rows(records, SpecialTokenIds(start=1, end=2, pad=0))
    assert blocks.token_ids.numpy().tolist() == [
        [1, 11, 12, 2, 21, 22, 23, 2, 31, 2, 0],
        [1, 11, 12, 13, 2, 2, 31, 32, 2, 0, 0],
    ]
    assert features["segment_ids"].numpy().tolist() == [
        [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 0],
        [0, 0, 0, 0, 0, 1, 2, 2, 2, 0, 0],
    ]
    assert features["padding_mask"].numpy().sum(axis=1).tolist() == [10, 9]
    assert blocks.starts.numpy().tolist() == [[1, 4, 8], [1, 5, 6]]
    assert blocks.lengths.numpy().tolist() == [[2, 3, 1], [3, 0, 2]]

    spans = pack_spans(records, "entities")
    assert spans.starts.numpy().tolist()[0] == [1, 4, 5, 8]
    assert spans.ends.numpy().tolist()[0] == [2, 4, 6, 8]
    assert (spans.starts.numpy()[1, :2].tolist(), spans.ends.numpy()[1, :2].tolist()) == (
        [2, 6],
        [3, 7],
    )
    assert spans.first.numpy()[..., 0].tolist() == [[0, 1, 3], [0, 1, 1]]
    assert spans.counts.numpy()[..., 0].tolist() == [[1, 2, 1], [1, 0, 1]]
