"""The data set of sentences: packed rows with the labels of their tokens.

B rows, S positions of a batch.
"""

import os

import tensorflow as tf

from spanbert_tf.data.batches import packed_batches
from spanbert_tf.data.records import Records
from spanbert_tf.data.rows import LIST, PackedRows
from spanbert_tf.tasks.named_entities.records import LABEL_DTYPE, LABELS, NamedEntitiesInfo


def named_entities_dataset(directory: str | os.PathLike, **options: bool | int) -> tf.data.Dataset:
    """Batches of rows for `SpanBertTokenClassifier`, rows of similar length together.

    Args:
        directory: what `spanbert-tf prepare named_entities` wrote.
        **options: `batch_size`, `training`, `seed` and `first_batch`, as for `packed_batches`.

    Returns:
        A data set of `(x, y)`, for training `(x, y, sample_weight)`: `x` has `token_ids`,
        `segment_ids` and `padding_mask`, and if not for training `row_index`; `y` is int32 [B, S],
        numbers of the labels, -1 without one.

    Raises:
        BadInputError: the directory or one of its files is missing, damaged or unusable, or there
            is no row to train on.
    """
    return packed_batches(Records.of(directory, NamedEntitiesInfo), _parse, **options)


def _parse(
    rows: PackedRows, serialized: tf.Tensor, width: tf.Tensor
) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    x, record = rows.parse(serialized, width, {LABELS: LIST})
    return x, rows.decode(record[LABELS], LABEL_DTYPE, width) - 1
