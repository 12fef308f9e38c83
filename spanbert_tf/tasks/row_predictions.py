"""What a model predicts for each row of some records, in the order of the file.

B rows, N rows of all records.
"""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from spanbert_tf.terminal import show_progress


def predict_rows(
    predict: Callable[[dict], tf.Tensor],
    dataset: tf.data.Dataset,
    after_batch: Callable[[], None] = lambda: None,
) -> list[np.ndarray]:
    """Predicts for batches that come in any order.

    Args:
        predict: features of a batch → a tensor [B, …].
        dataset: what `packed_batches` returned, not for training.
        after_batch: is called after each batch.

    Returns:
        N arrays, one for each row.
    """
    # One trace, whatever the shapes of the batches.
    function = tf.function(predict, input_signature=[dataset.element_spec[0]])
    rows: dict[int, np.ndarray] = {}
    total = int(dataset.cardinality())
    for x, *_ in show_progress(dataset, total, "batches", doing="predicting"):
        rows.update(zip(x["row_index"].numpy().tolist(), function(x).numpy(), strict=True))
        after_batch()
    return [rows[number] for number in range(len(rows))]


def row_labels(dataset: tf.data.Dataset) -> list[np.ndarray]:
    """The labels of each row, where they are one tensor [B, …] of a batch.

    Args:
        dataset: as for `predict_rows`.
    """
    rows: dict[int, np.ndarray] = {}
    for x, y in dataset.as_numpy_iterator():
        rows.update(zip(x["row_index"].tolist(), y, strict=True))
    return [rows[number] for number in range(len(rows))]
