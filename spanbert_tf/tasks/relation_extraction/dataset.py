"""The data set of relations: packed rows with their labels.

B rows, S positions of a batch.
"""

import os

import tensorflow as tf

from spanbert_tf.data.batches import packed_batches
from spanbert_tf.data.records import Records
from spanbert_tf.data.rows import NUMBER, PackedRows
from spanbert_tf.tasks.relation_extraction.records import LABEL, RelationExtractionInfo


def relation_extraction_dataset(
    directory: str | os.PathLike, **options: bool | int
) -> tf.data.Dataset:
    """Batches of rows for `SpanBertRelationClassifier`, rows of similar length together.

    Args:
        directory: what `spanbert-tf prepare tacred` or `prepare semeval2010` wrote.
        **options: `batch_size`, `training`, `seed` and `first_batch`, as for `packed_batches`.

    Returns:
        A data set of `(x, y)`, for training `(x, y, sample_weight)`: `x` has `token_ids`,
        `segment_ids` and `padding_mask`, and if not for training `row_index`; `y` is int32 [B],
        numbers of the relations, -1 for one that the training set does not have.

    Raises:
        BadInputError: the directory or one of its files is missing, damaged or unusable, or there
            is no row to train on.
    """
    return packed_batches(Records.of(directory, RelationExtractionInfo), _parse, **options)


def _parse(
    rows: PackedRows, serialized: tf.Tensor, width: tf.Tensor
) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    x, record = rows.parse(serialized, width, {LABEL: NUMBER})
    return x, record[LABEL] - 1
