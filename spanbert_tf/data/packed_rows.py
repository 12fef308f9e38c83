"""The rows of a task's records as tensors: checked, in batches, with what all tasks read of them.

B rows, S positions of a batch.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from spanbert_tf.data.features import decode_unsigned
from spanbert_tf.data.length_batches import LengthBatches
from spanbert_tf.data.row_batches import prediction_batches, training_batches
from spanbert_tf.data.rows_info import (
    POSITION_DTYPE,
    ROW_TOKEN_IDS,
    SECOND_START,
    SEGMENT_POSITIONS,
    RowsInfo,
)
from spanbert_tf.data.schema import token_id_dtype
from spanbert_tf.data.task_records import Records
from spanbert_tf.errors import BadInputError
from spanbert_tf.text.vocabulary import SpecialTokenIds

NUMBER = tf.io.FixedLenFeature([], tf.int64)
FLOAT = tf.io.FixedLenFeature([], tf.float32)
LIST = tf.io.FixedLenFeature([], tf.string)


class PackedRows:
    """Makes tensors of serialized rows.

    Args:
        info: description of the rows.
        pad_id: id of [PAD].
    """

    def __init__(self, info: RowsInfo, pad_id: int) -> None:
        self._id_dtype = token_id_dtype(info.vocabulary_size)
        self._positions = SEGMENT_POSITIONS if info.segment_aware else ()
        self._pad_id = pad_id

    def parse(
        self,
        serialized: tf.Tensor,
        width: tf.Tensor,
        features: Mapping[str, tf.io.FixedLenFeature],
    ) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
        """The encoder's features, and what else the task has stored.

        Args:
            serialized: string [B].
            width: int32 [], S.
            features: kinds of the task's own features: `NUMBER`, `FLOAT` or `LIST`.

        Returns:
            `token_ids`, `segment_ids`, `padding_mask` and, if the records have them,
            `paragraph_indices`, `sentence_indices` and `token_indices`, int32 [B, S]; and the
            task's own features, numbers as int32 or float32 [B], lists as bytes, string [B].
        """
        own = {ROW_TOKEN_IDS: LIST, SECOND_START: NUMBER} | dict.fromkeys(self._positions, LIST)
        record = tf.io.parse_example(serialized, {**own, **features})
        record = {
            name: tf.cast(values, tf.int32) if values.dtype == tf.int64 else values
            for name, values in record.items()
        }
        num_tokens = tf.strings.length(record[ROW_TOKEN_IDS]) // np.dtype(self._id_dtype).itemsize
        positions = tf.range(width)[tf.newaxis]  # [1, S]
        is_token = positions < num_tokens[:, tf.newaxis]  # [B, S]
        is_second = positions >= record[SECOND_START][:, tf.newaxis]
        token_ids = self.decode(record[ROW_TOKEN_IDS], self._id_dtype, width)
        x = {
            "token_ids": tf.where(is_token, token_ids, self._pad_id),
            "segment_ids": tf.cast(is_token & is_second, tf.int32),
            "padding_mask": tf.cast(is_token, tf.int32),
        }
        for name in self._positions:
            x[name] = self.decode(record[name], POSITION_DTYPE, width)
        return x, {name: record[name] for name in features}

    def decode(self, raw: tf.Tensor, dtype: str, width: tf.Tensor) -> tf.Tensor:
        """Lists of unsigned numbers, one for each position, as int32 [B, S], padded with 0.

        Args:
            raw: string [B].
            dtype: the type that they were written in.
            width: int32 [], S.
        """
        size = np.dtype(dtype).itemsize
        values = decode_unsigned(raw, dtype, fixed_length=width * size)
        return tf.ensure_shape(tf.cast(values, tf.int32), [raw.shape[0], None])


ParsePackedRows = Callable[[PackedRows, tf.Tensor, tf.Tensor], tuple[dict, Any]]


def packed_batches(
    records: Records,
    parse: ParsePackedRows,
    *,
    batch_size: int,
    training: bool,
    seed: int = 0,
    first_batch: int = 0,
) -> tf.data.Dataset:
    """Batches of a task's rows, rows of similar length together.

    S is one of at most 16 widths; see `length_batches`.

    Args:
        records: the records, opened.
        parse: `(rows, serialized, width)` → `(x, y)`, by `rows.parse`.
        batch_size: B.
        training: endless batches of B rows, each epoch in an order of its own that is a function of
            (seed, epoch), of the rows that are trained; otherwise each row once, the longest first,
            the last batch smaller.
        seed: seed of the order.
        first_batch: how many batches of the training stream to pass over, to resume.

    Returns:
        For training, a data set of `(x, y, sample_weight)`: `sample_weight`, float32 [B], is 0
        where a copied row fills up the last batch of an epoch. Otherwise of `(x, y)`, where `x`
        also has `row_index`, int32 [B], the number of the row in the file.

    Raises:
        BadInputError: the rows are damaged, or there is none (to train on).
    """
    info = records.info
    lengths = records.lengths(training=training)
    if (longest := int(max(lengths))) > info.sequence_length:
        raise BadInputError(
            f"{records}: has rows of {longest} tokens, and {info.file_name()} says "
            f"{info.sequence_length} at most (sequence_length); write the records again"
        )
    batches = LengthBatches(lengths, batch_size=batch_size, max_length=info.sequence_length)
    rows = PackedRows(info, SpecialTokenIds.from_vocabulary(records.vocabulary).pad)
    parse_rows = tf.autograph.experimental.do_not_convert(functools.partial(parse, rows))
    if training:
        return training_batches(
            records.rows, batches, parse_rows, seed=seed, first_batch=first_batch
        )
    return prediction_batches(records.rows, batches, parse_rows)
