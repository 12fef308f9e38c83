"""The rows of a task's records as tensors: checked, in batches, with what all tasks read of them.

B rows, S positions of a batch.
"""

import functools
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from spanbert_tf.data.length_batches import LengthBatches
from spanbert_tf.data.record_file import RecordFile
from spanbert_tf.data.row_batches import prediction_batches, training_batches
from spanbert_tf.data.row_lengths import load_lengths
from spanbert_tf.data.rows_info import (
    POSITION_DTYPE,
    ROW_TOKEN_IDS,
    SECOND_START,
    SEGMENT_POSITIONS,
    RowsInfo,
)
from spanbert_tf.data.schema import VOCABULARY_FILE, token_id_dtype
from spanbert_tf.data.unsigned_lists import decode_unsigned
from spanbert_tf.errors import BadInputError
from spanbert_tf.files.checksums import check_files
from spanbert_tf.vocabulary import PAD_TOKEN, load_vocabulary

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
    directory: str | os.PathLike,
    info: RowsInfo,
    parse: ParsePackedRows,
    *,
    batch_size: int,
    training: bool,
    seed: int = 0,
    first_batch: int = 0,
    count_tokens: Callable[[str], np.ndarray] = load_lengths,
) -> tf.data.Dataset:
    """Batches of a task's rows, rows of similar length together.

    S is one of at most 16 widths; see `length_batches`.

    Args:
        directory: directory of the records.
        info: their description.
        parse: `(rows, serialized, width)` → `(x, y)`, by `rows.parse`.
        batch_size: B.
        training: endless batches of B rows, each epoch in an order of its own that is a function of
            (seed, epoch), of the rows that are trained; otherwise each row once, the longest first,
            the last batch smaller.
        seed: seed of the order.
        first_batch: how many batches of the training stream to pass over, to resume.
        count_tokens: path of the rows → their lengths, for a task that also reads records that
            were written without them.

    Returns:
        For training, a data set of `(x, y, sample_weight)`: `sample_weight`, float32 [B], is 0
        where a copied row fills up the last batch of an epoch. Otherwise of `(x, y)`, where `x`
        also has `row_index`, int32 [B], the number of the row in the file.

    Raises:
        BadInputError: the directory or one of its files is missing, damaged or unusable, or there
            is no row to train on.
    """
    records, lengths, vocabulary = open_rows(directory, info, count_tokens, training=training)
    batches = LengthBatches(lengths, batch_size=batch_size, max_length=info.sequence_length)
    rows = PackedRows(info, vocabulary.index(PAD_TOKEN))
    parse_rows = tf.autograph.experimental.do_not_convert(functools.partial(parse, rows))
    if training:
        return training_batches(records, batches, parse_rows, seed=seed, first_batch=first_batch)
    return prediction_batches(records, batches, parse_rows)


def open_rows(
    directory: str | os.PathLike,
    info: RowsInfo,
    count_tokens: Callable[[str], np.ndarray] = load_lengths,
    *,
    training: bool,
) -> tuple[RecordFile, np.ndarray, list[str]]:
    """The rows of some records, checked.

    Args:
        directory: directory of the records.
        info: their description.
        count_tokens: as for `packed_batches`.
        training: whether the rows that are not trained are left out of the lengths.

    Returns:
        The rows, their lengths, and the vocabulary.

    Raises:
        BadInputError: as `packed_batches`.
    """
    directory = os.fspath(directory)
    check_files(directory, info.files)
    path = os.path.join(directory, info.rows_file)
    records, lengths = RecordFile(path), count_tokens(path)
    if not len(records) == len(lengths) == info.num_rows:
        raise BadInputError(
            f"{path}: holds {len(records):,} rows, lengths of {len(lengths):,} and by "
            f"{info.file_name()} {info.num_rows:,}; write the records again"
        )
    if training:
        lengths = lengths[: info.num_training_rows]
    if not len(lengths):
        raise BadInputError(f"{path}: holds no rows{' to train on' * training}")
    return records, lengths, load_vocabulary(os.path.join(directory, VOCABULARY_FILE))
