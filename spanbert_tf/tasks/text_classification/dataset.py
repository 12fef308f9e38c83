"""The data set of labelled texts: packed rows with their labels.

B rows, S positions of a batch.
"""

import functools
import os

import tensorflow as tf

from spanbert_tf.data.batches import packed_batches
from spanbert_tf.data.records import Records
from spanbert_tf.data.rows import FLOAT, NUMBER, PackedRows
from spanbert_tf.tasks.text_classification.records import (
    EXAMPLES_FILE,
    LABEL,
    ExampleLine,
    TextClassificationInfo,
)


def text_classification_dataset(
    directory: str | os.PathLike,
    *,
    batch_size: int,
    training: bool,
    seed: int = 0,
    first_batch: int = 0,
) -> tf.data.Dataset:
    """Batches of rows for `SpanBertTextClassifier`, rows of similar length together.

    S is one of at most 16 widths; see `length_batches`.

    Args:
        directory: what `spanbert-tf prepare glue` or `prepare classification` wrote.
        batch_size: B.
        training: endless batches of B rows, each epoch in an order of its own that is a function of
            (seed, epoch); otherwise each row once, the longest first, the last batch smaller.
        seed: seed of the order.
        first_batch: how many batches of the training stream to pass over, to resume.

    Returns:
        A data set of `(x, y)`, for training `(x, y, sample_weight)`: `x` has `token_ids`,
        `segment_ids`, `padding_mask` and, if the records tell them, `paragraph_indices`,
        `sentence_indices` and `token_indices` (int32 [B, S]); if not for training, `row_index`
        (int32 [B]), the number of the row in the file. `y` has the numbers of the classes, int32
        [B], or of a regression the numbers, float32 [B]; 0 where there are no labels.
        `sample_weight`, float32 [B], is 0 where a copied row fills up the last batch of an epoch.

    Raises:
        BadInputError: the directory or one of its files is missing, damaged or unusable, or there
            is no row to train on.
    """
    records = Records.of(directory, TextClassificationInfo)
    kind = FLOAT if records.info.is_regression else NUMBER
    return packed_batches(
        records,
        functools.partial(_parse, kind),
        batch_size=batch_size,
        training=training,
        seed=seed,
        first_batch=first_batch,
    )


def _parse(
    kind: tf.io.FixedLenFeature, rows: PackedRows, serialized: tf.Tensor, width: tf.Tensor
) -> tuple[dict, tf.Tensor]:
    """Tensors of B rows, padded to a width."""
    x, record = rows.parse(serialized, width, {LABEL: kind})
    return x, record[LABEL]


def load_examples(directory: str | os.PathLike) -> list[ExampleLine]:
    """The lines of `examples.jsonl`.

    Raises:
        BadInputError: a file of the records is damaged.
    """
    return Records.of(directory, TextClassificationInfo).lines(EXAMPLES_FILE)
