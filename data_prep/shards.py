"""From spill files to TFRecord shards: the second half of preparation."""

import dataclasses
import hashlib
import json
import os

import numpy as np
import tensorflow as tf

from data_prep.spill import SpilledRecord, read_shard
from spanbert_tf.data import schema


@dataclasses.dataclass(frozen=True)
class ShardTask:
    """One file to write.

    Attributes:
        file: its name.
        split: `"train"` or `"validation"`.
        sources: shards of the spill files that it is filled from.
        largest_held_out_hash: documents with a hash up to this are held out.
    """

    file: str
    split: str
    sources: tuple[int, ...]
    largest_held_out_hash: int


def plan_shards(
    num_shards: int, validation_fraction: float, largest_held_out_hash: int
) -> list[ShardTask]:
    """The files of both splits; each validation file draws on all spilled shards of its turn."""
    tasks = []
    for split, count in (
        ("train", num_shards),
        ("validation", max(1, round(num_shards * validation_fraction))),
    ):
        for number in range(count):
            file = f"{split}-{number:05d}-of-{count:05d}.tfrecord"
            sources = tuple(range(number, num_shards, count))
            tasks.append(ShardTask(file, split, sources, largest_held_out_hash))
    return tasks


def write_shard(
    task: ShardTask, spill_paths: list[str], directory: str, vocabulary_size: int
) -> dict:
    """Writes one file in order of the records' keys, which is random but always the same.

    Returns:
        `shard`, the fields of its `ShardInfo`, and `unigram_counts` of its tokens.
    """
    records: list[SpilledRecord] = []
    for source in task.sources:
        for record in read_shard(spill_paths, source):
            is_held_out = record.document_hash <= task.largest_held_out_hash
            if is_held_out == (task.split == "validation"):
                records.append(record)
    records.sort(key=lambda record: record.order_key)
    path = os.path.join(directory, task.file)
    counts = np.zeros(vocabulary_size, np.int64)
    dtype = np.dtype(schema.token_id_dtype(vocabulary_size)).newbyteorder("<")
    with tf.io.TFRecordWriter(path) as writer:
        for record in records:
            writer.write(record.serialized)
            features = tf.train.Example.FromString(record.serialized).features.feature
            raw = features[schema.TOKEN_IDS].bytes_list.value[0]
            counts += np.bincount(np.frombuffer(raw, dtype), minlength=vocabulary_size)
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    shard = schema.ShardInfo(
        task.file,
        task.split,
        len(records),
        sum(record.num_tokens for record in records),
        digest,
    )
    return {"shard": dataclasses.asdict(shard), "unigram_counts": counts.tolist()}


def read_result(path: str) -> dict:
    """What a worker left behind."""
    with open(path, encoding="utf-8") as file:
        return json.load(file)
