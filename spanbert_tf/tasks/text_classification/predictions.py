"""What a classifier says of each text: probabilities of the classes, or a number.

B rows, C classes.
"""

import functools
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from spanbert_tf.data.records import Records
from spanbert_tf.models import SpanBertTextClassifier
from spanbert_tf.tasks.row_predictions import predict_rows
from spanbert_tf.tasks.text_classification.dataset import (
    load_examples,
    text_classification_dataset,
)
from spanbert_tf.tasks.text_classification.records import TextClassificationInfo

Rows = Sequence[np.ndarray]  # float32 [C] each: probabilities, or of a regression its number


def probabilities(model: SpanBertTextClassifier, x: dict) -> tf.Tensor:
    """Probabilities of the classes, or of a regression its number, float32 [B, C].

    Args:
        model: the classifier.
        x: packed rows.
    """
    logits = tf.cast(model(x, training=False), tf.float32)
    is_linear = model.output_dense.activation.__name__ == "linear"
    return logits if model.is_regression or not is_linear else tf.nn.softmax(logits)


def predict_directory(
    model: SpanBertTextClassifier,
    directory: str,
    *,
    batch_size: int,
    after_batch: Callable[[], None] = lambda: None,
) -> Rows:
    """The predictions for some records, in the order of the file.

    Args:
        model: the classifier.
        directory: directory of the records.
        batch_size: number of rows in a batch.
        after_batch: called after each batch.
    """
    rows = text_classification_dataset(directory, batch_size=batch_size, training=False)
    return predict_rows(functools.partial(probabilities, model), rows, after_batch)


def predict_majority(directory: str) -> Rows:
    """For each text the shares of the classes in these records; of a regression the mean.

    The majority class and the mean of the very records that are scored: no constant can score
    better by accuracy and by squared error.

    Args:
        directory: directory of records with labels.
    """
    info = Records.of(directory, TextClassificationInfo).info
    if info.is_regression:
        numbers = [float(line["label"] or 0) for line in load_examples(directory)]
        row = np.array([np.mean(numbers)], "float32")
    else:
        row = np.array(info.label_counts, "float32") / max(sum(info.label_counts), 1)
    return [row] * info.num_rows


def predicted_labels(rows: Rows, labels: Sequence[str], is_regression: bool) -> list[str | float]:
    """The label of each text: the most probable class, or the number.

    Args:
        rows: predictions.
        labels: names of the classes in the order of their numbers.
        is_regression: whether the predictions are numbers.
    """
    if is_regression:
        return [float(row[0]) for row in rows]
    return [labels[int(row.argmax())] for row in rows]
