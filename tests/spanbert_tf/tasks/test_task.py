"""What all tasks share: predictions in the order of the file, from one graph, and the loss."""

import types

import numpy as np
import pytest
import tensorflow as tf

from spanbert_tf.models.objective import ObjectiveSums
from spanbert_tf.tasks.task import Task


class Widest(Task):
    """Rows → their largest token. A row's loss is its label."""

    name = "widest"
    build = score = write = signatures = answer = manual = None

    def dataset(self, records, **options):
        def batches():
            for rows, width in (([3, 0], 5), ([1, 4], 7), ([2], 2)):
                ids = np.repeat(np.array(rows, "int32")[:, np.newaxis], width, axis=1)
                yield {"row_index": np.array(rows, "int32"), "token_ids": ids}, np.array(rows, "f4")

        specs = {
            "row_index": tf.TensorSpec([None], tf.int32),
            "token_ids": tf.TensorSpec([None, None], tf.int32),
        }
        return tf.data.Dataset.from_generator(
            batches, output_signature=(specs, tf.TensorSpec([None], tf.float32))
        ).apply(tf.data.experimental.assert_cardinality(3))

    def predict_batch(self, model, x, outputs):
        return {"largest": outputs, "row": x["row_index"]}


class Model:
    def __init__(self):
        self.traces = []

    def __call__(self, x, training):
        self.traces.append(x)
        return tf.reduce_max(x["token_ids"], axis=1)

    def objective_sums(self, x, outputs, y, sample_weight):
        half = ObjectiveSums.of(y / 2, None, sample_weight)
        return {"whole": ObjectiveSums.of(y, None, sample_weight), "half": half}


def records_of(num_training_rows):
    return types.SimpleNamespace(info=types.SimpleNamespace(num_training_rows=num_training_rows))


def test_batches_of_other_sizes_and_widths_need_no_second_trace():
    model, batches = Model(), []
    found = Widest().predict(
        model, records_of(5), batch_size=2, after_batch=lambda: batches.append(None)
    )
    assert found == [{"largest": row, "row": row} for row in range(5)]
    assert len(model.traces) == 1 and len(batches) == 3


@pytest.mark.parametrize(("num_labelled", "expected"), [(5, 2 + 1), (3, 1 + 0.5), (0, 0)])
def test_the_loss_is_a_mean_over_the_rows_with_labels_added_over_objectives(num_labelled, expected):
    """Batches have unequal numbers of them."""
    found, loss = Widest().predict_with_loss(Model(), records_of(num_labelled), batch_size=2)
    assert len(found) == 5 and loss == pytest.approx(expected)
