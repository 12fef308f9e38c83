"""Leaves out damaged records: the whole ones are copied, shard by shard, to another directory.

Where a record's bytes are damaged, the next record still begins where the length says; where the
length itself is, the rest of the file is lost.
"""

import dataclasses
import os
import shutil
from collections.abc import Callable

import tensorflow as tf

from spanbert_tf.data import schema
from spanbert_tf.data.packing import parse_records
from spanbert_tf.data.tfrecords import frame_fault, whole_records
from spanbert_tf.errors import BadInputError
from spanbert_tf.files.checksums import sha256
from spanbert_tf.files.writing import write_directory, write_text


def repaired_records(
    directory: str,
    info: schema.DatasetInfo,
    output: str,
    report: Callable[[str], None] = print,
) -> tuple[str, schema.DatasetInfo]:
    """The records without those that are damaged.

    Every shard is read once to compare its checksum. Shards that are whole are linked.

    Args:
        directory: directory of the records.
        info: their description.
        output: directory for the repaired records; written anew, as a whole, if there is damage.
        report: takes one line of text for each damaged shard.

    Returns:
        The directory to read and its description: those given where nothing is damaged.

    Raises:
        BadInputError: a split has no whole record left, or the output cannot be written.
    """
    damaged = {
        shard.file
        for shard in info.shards
        if sha256(os.path.join(directory, shard.file)) != shard.sha256
        or frame_fault(os.path.join(directory, shard.file))  # a stranger's checksums are right
    }
    if not damaged:
        return directory, info
    repaired = info

    def write(unfinished: str) -> None:
        nonlocal repaired
        repaired = _write_repaired(directory, info, damaged, unfinished, report)

    write_directory(output, write, schema.RECORDS, of_run=True)
    return output, repaired


def _write_repaired(
    directory: str,
    info: schema.DatasetInfo,
    damaged: set[str],
    output: str,
    report: Callable[[str], None],
) -> schema.DatasetInfo:
    """Writes the whole records of damaged shards, and links to the other shards."""
    shards = []
    for shard in info.shards:
        source = os.path.abspath(os.path.join(directory, shard.file))
        target = os.path.join(output, shard.file)
        if shard.file in damaged:
            whole = _copy_whole_records(source, target, shard, info)
            lost = shard.num_records - whole.num_records
            report(f"{source}: {lost} damaged records are skipped, {whole.num_records} are whole")
            shards.append(whole)
        else:
            os.symlink(source, target)
            shards.append(shard)
    for name in (schema.VOCABULARY_FILE, schema.UNIGRAM_COUNTS_FILE):
        shutil.copyfile(os.path.join(directory, name), os.path.join(output, name))
    info = dataclasses.replace(info, shards=tuple(shards))
    for split in schema.SPLITS:
        if not info.num_records(split):
            raise BadInputError(f"{directory}: no whole record is left in the {split} split")
    write_text(os.path.join(output, schema.DATASET_INFO_FILE), info.to_json())
    return info


def _copy_whole_records(
    source: str, target: str, shard: schema.ShardInfo, info: schema.DatasetInfo
) -> schema.ShardInfo:
    num_records = num_tokens = 0
    try:
        with tf.io.TFRecordWriter(target) as writer:
            for serialized in whole_records(source):
                try:
                    lengths = parse_records(tf.constant([serialized]), info).lengths
                except tf.errors.InvalidArgumentError:  # its checksum was written over the damage
                    continue
                writer.write(serialized)
                num_records += 1
                num_tokens += int(lengths[0])
    except tf.errors.OpError as error:  # such as a full disk
        raise OSError(error.message) from error
    return dataclasses.replace(
        shard,
        num_records=num_records,
        num_tokens=num_tokens,
        sha256=sha256(target),
        num_bytes=os.path.getsize(target),
    )
