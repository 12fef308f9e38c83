"""Leaves damaged records out: whole ones are copied, shard by shard, into another directory.

A TFRecord file holds for each record its length (uint64), a checksum of the length, the bytes and a
checksum of the bytes. Where the bytes are damaged, the next record still begins where the length
says; where the length itself is, the rest of the file is lost.
"""

import dataclasses
import hashlib
import os
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator

import tensorflow as tf

from spanbert_tf.data import schema
from spanbert_tf.data.packing import parse_records
from spanbert_tf.errors import BadInputError

_LENGTH = struct.Struct("<Q")
_HEADER_BYTES, _FOOTER_BYTES = 12, 4  # length and its checksum; checksum of the bytes


def repaired_records(
    directory: str,
    info: schema.DatasetInfo,
    output: str,
    report: Callable[[str], None] = print,
) -> tuple[str, schema.DatasetInfo]:
    """The records without those that are damaged.

    Every shard is read once to compare its checksum. Shards that are whole are linked.

    Args:
        directory: of the records.
        info: their description.
        output: directory that takes the repaired records; made anew where there is damage.
        report: takes one line of text for each damaged shard.

    Returns:
        The directory to read and its description: those given where nothing is damaged.

    Raises:
        BadInputError: a split has no whole record left.
    """
    damaged = {
        shard.file
        for shard in info.shards
        if _checksum(os.path.join(directory, shard.file)) != shard.sha256
    }
    if not damaged:
        return directory, info
    shutil.rmtree(output, ignore_errors=True)
    os.makedirs(output)
    shards = []
    for shard in info.shards:
        source = os.path.abspath(os.path.join(directory, shard.file))
        target = os.path.join(output, shard.file)
        if shard.file in damaged:
            shard = _copy_whole_records(source, target, shard, info)
            lost = next(s.num_records for s in info.shards if s.file == shard.file)
            lost -= shard.num_records
            report(f"{source}: {lost} damaged records are skipped, {shard.num_records} are whole")
        else:
            os.symlink(source, target)
        shards.append(shard)
    vocabulary = os.path.join(directory, schema.VOCABULARY_FILE)
    shutil.copyfile(vocabulary, os.path.join(output, schema.VOCABULARY_FILE))
    info = dataclasses.replace(info, shards=tuple(shards))
    for split in schema.SPLITS:
        if not info.num_records(split):
            raise BadInputError(f"{directory}: no whole record is left in the {split} split")
    with open(os.path.join(output, schema.DATASET_INFO_FILE), "w", encoding="utf-8") as file:
        file.write(info.to_json())
    return output, info


def _copy_whole_records(
    source: str, target: str, shard: schema.ShardInfo, info: schema.DatasetInfo
) -> schema.ShardInfo:
    num_records = num_tokens = 0
    with tf.io.TFRecordWriter(target) as writer:
        for serialized in _whole_records(source):
            try:
                lengths = parse_records(tf.constant([serialized]), info).lengths
            except tf.errors.InvalidArgumentError:  # its checksum was written over the damage
                continue
            writer.write(serialized)
            num_records += 1
            num_tokens += int(lengths[0])
    return dataclasses.replace(
        shard, num_records=num_records, num_tokens=num_tokens, sha256=_checksum(target)
    )


def _whole_records(path: str) -> Iterator[bytes]:
    """The records whose checksums are right, each checked by TensorFlow in a file of its own."""
    size = os.path.getsize(path)
    with open(path, "rb") as file, tempfile.TemporaryDirectory() as directory:
        alone = os.path.join(directory, "record")
        start = 0
        while start + _HEADER_BYTES + _FOOTER_BYTES <= size:
            file.seek(start)
            (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
            total = _HEADER_BYTES + length + _FOOTER_BYTES
            if start + total > size:
                return
            file.seek(start)
            with open(alone, "wb") as copy:
                copy.write(file.read(total))
            try:
                yield from tf.data.TFRecordDataset(alone).as_numpy_iterator()
            except tf.errors.DataLossError as error:
                if "corrupted record at 0" in str(error) and not _length_is_right(alone):
                    return
            start += total


def _length_is_right(path: str) -> bool:
    """Whether the length of a file's only record is right: TensorFlow says which checksum is not.

    With the bytes cut off, a right length gives a truncated record, a wrong one a corrupted one.
    """
    with open(path, "rb") as file:
        header = file.read(_HEADER_BYTES)
    with open(path, "wb") as file:
        file.write(header)
    try:
        list(tf.data.TFRecordDataset(path))
    except tf.errors.DataLossError as error:
        return "truncated" in str(error)
    return False


def _checksum(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
