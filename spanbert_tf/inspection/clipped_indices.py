"""Counts the tokens whose paragraph, sentence or place in it is beyond SegaBERT's tables."""

import dataclasses
import os
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from spanbert_tf.data.packing import POSITION_LISTS, parse_records, segment_aware_indices
from spanbert_tf.data.records import load_dataset_info
from spanbert_tf.layers.segment_aware_embedding import TABLE_SIZES

_BATCH_SIZE = 256


@dataclasses.dataclass(frozen=True)
class ClippedIndices:
    """How many tokens share the last row of a table because their index is beyond it.

    Attributes:
        num_records: records that were counted.
        num_tokens: their tokens, special tokens apart.
        clipped: name of the index → tokens whose index is beyond its table.
    """

    num_records: int
    num_tokens: int
    clipped: dict[str, int]


def count_clipped_indices(
    directory: str | os.PathLike,
    index_names: Sequence[str],
    *,
    split: str = "train",
    max_batches: int = 100,
) -> ClippedIndices:
    """Counts the clipped indices in up to `max_batches` batches of 256 records.

    Args:
        directory: directory of records; these must be of single sequences.
        index_names: which of `paragraph_indices`, `sentence_indices` and `token_indices` to count.
        split: `"train"` or `"validation"`.
        max_batches: where to stop.
    """
    directory = os.fspath(directory)
    info = load_dataset_info(directory)

    @tf.autograph.experimental.do_not_convert
    def indices_and_lengths(serialized: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        records = parse_records(serialized, info, POSITION_LISTS)
        return segment_aware_indices(records), records.lengths

    batches = tf.data.TFRecordDataset(info.files(directory, split)).batch(_BATCH_SIZE)
    batches = batches.take(max_batches).map(indices_and_lengths)
    num_records = num_tokens = 0
    clipped = dict.fromkeys(index_names, 0)
    for indices, lengths in batches.as_numpy_iterator():
        num_records += len(lengths)
        num_tokens += int(lengths.sum())
        for name in index_names:
            # Column 0 is [CLS]; beyond the text are [SEP] and padding.
            of_text = indices[name][:, 1:-1]
            is_text = np.arange(of_text.shape[1]) < lengths[:, np.newaxis]
            clipped[name] += int((is_text & (of_text >= TABLE_SIZES[name])).sum())
    return ClippedIndices(num_records, num_tokens, clipped)
