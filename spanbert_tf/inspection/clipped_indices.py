"""Counts the tokens whose paragraph, sentence or place in it SegaBERT's tables cannot tell."""

import dataclasses
import os
from collections.abc import Mapping

import keras
import numpy as np
import tensorflow as tf

from spanbert_tf.data.manifest import PretrainingManifest
from spanbert_tf.data.rows import POSITION_LISTS, parse_records, segment_aware_indices
from spanbert_tf.layers.segment_aware_embedding import lowered_indices

_BATCH_SIZE = 256


@dataclasses.dataclass(frozen=True)
class ClippedIndices:
    """How many tokens share the last row of a table because their index is beyond it.

    Attributes:
        num_records: records that were counted.
        num_tokens: their tokens, special tokens apart.
        clipped: name of the index → tokens whose index is beyond its table, after the paragraphs of
            a row are lowered into it (`lowered_indices`).
    """

    num_records: int
    num_tokens: int
    clipped: dict[str, int]


def count_clipped_indices(
    directory: str | os.PathLike,
    table_sizes: Mapping[str, int],
    *,
    split: str = "train",
    max_batches: int = 100,
) -> ClippedIndices:
    """Counts the clipped indices in up to `max_batches` batches of 256 records.

    Args:
        directory: directory of records; these must be of single sequences.
        table_sizes: rows of the tables of `paragraph_indices`, `sentence_indices` and
            `token_indices`, of those that are to be counted.
        split: `"train"` or `"validation"`.
        max_batches: where to stop.
    """
    directory = os.fspath(directory)
    info = PretrainingManifest.load(directory)

    @tf.autograph.experimental.do_not_convert
    def indices_and_lengths(serialized: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        records = parse_records(serialized, info, POSITION_LISTS)
        return segment_aware_indices(records), records.lengths

    batches = tf.data.TFRecordDataset(info.files(directory, split)).batch(_BATCH_SIZE)
    batches = batches.take(max_batches).map(indices_and_lengths)
    num_records = num_tokens = 0
    clipped = dict.fromkeys(table_sizes, 0)
    for indices, lengths in batches.as_numpy_iterator():
        num_records += len(lengths)
        num_tokens += int(lengths.sum())
        for name, size in table_sizes.items():
            lowered = keras.ops.convert_to_numpy(lowered_indices(name, indices[name], size))
            # Column 0 is [CLS]; beyond the text are [SEP] and padding.
            of_text = lowered[:, 1:-1]
            is_text = np.arange(of_text.shape[1]) < lengths[:, np.newaxis]
            clipped[name] += int((is_text & (of_text >= size)).sum())
    return ClippedIndices(num_records, num_tokens, clipped)
