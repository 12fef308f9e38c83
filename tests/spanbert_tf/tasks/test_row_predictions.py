"""Predictions row by row: in the order of the file, from one graph."""

import numpy as np
import tensorflow as tf

from spanbert_tf.tasks.row_predictions import predict_rows


def test_batches_of_other_sizes_and_widths_need_no_second_trace():
    def batches():
        for rows, width in (([3, 0], 5), ([1, 4], 7), ([2], 2)):
            ids = np.repeat(np.array(rows, "int32")[:, np.newaxis], width, axis=1)
            yield {"row_index": np.array(rows, "int32"), "token_ids": ids}, np.zeros(len(rows))

    specs = {
        "row_index": tf.TensorSpec([None], tf.int32),
        "token_ids": tf.TensorSpec([None, None], tf.int32),
    }
    dataset = tf.data.Dataset.from_generator(
        batches, output_signature=(specs, tf.TensorSpec([None], tf.float64))
    ).apply(tf.data.experimental.assert_cardinality(3))
    traces = []

    def predict(x):
        traces.append(x)
        return tf.reduce_max(x["token_ids"], axis=1)

    assert [int(row) for row in predict_rows(predict, dataset)] == [0, 1, 2, 3, 4]
    assert len(traces) == 1
