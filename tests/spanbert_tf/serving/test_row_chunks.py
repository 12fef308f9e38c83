"""Functions of rows, in chunks and at once."""

import pytest
import tensorflow as tf

from spanbert_tf.serving.text_function import map_row_chunks


@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize("num_rows", [0, 1, 4, 5, 13])
def test_chunks_give_what_all_rows_at_once_give(num_rows, in_graph):
    sizes = []

    def function(rows):
        tf.py_function(lambda x: sizes.append(len(x)), [rows["x"]], [])
        return {"sums": tf.reduce_sum(rows["x"], axis=1)}, tf.cast(rows["flag"], tf.int32)

    rows = {
        "x": tf.random.stateless_uniform([num_rows, 7], (1, 2)),
        "flag": tf.range(num_rows) % 3 == 0,
    }
    dtypes = ({"sums": tf.float32}, tf.int32)

    def in_chunks(rows):
        return map_row_chunks(function, rows, dtypes, max_rows=4)

    found = (tf.function(in_chunks) if in_graph else in_chunks)(rows)
    chunks = sizes.copy()
    tf.nest.map_structure(tf.debugging.assert_equal, found, function(rows))
    assert max(chunks) <= 4 and num_rows <= sum(chunks) < num_rows + len(chunks)
