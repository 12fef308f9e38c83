"""`spanbert-tf prepare repair`: the same records without those that are damaged.

Where a record's bytes are damaged, the next record still begins where the length says; where the
length itself is, the rest of the file is lost.
"""

import dataclasses
import os
import shutil

from spanbert_tf.data.examples import example_fault, read_example
from spanbert_tf.data.manifest import (
    DATASET_INFO_FILE,
    RECORDS,
    SPLITS,
    TOKEN_IDS,
    UNIGRAM_COUNTS_FILE,
    VOCABULARY_FILE,
    PretrainingManifest,
    Shard,
)
from spanbert_tf.data.tfrecords import read_records, record_writer
from spanbert_tf.errors import BadInputError
from spanbert_tf.files.contents import sha256
from spanbert_tf.files.lock import locks_output
from spanbert_tf.files.output import Output, write_text
from spanbert_tf.terminal import print_line


@locks_output()
def repair_records(directory: str, output: str, *, overwrite: bool = False) -> PretrainingManifest:
    """Writes the whole records of a directory to another one; says how many of which file are lost.

    Every record is read, since a stranger's checksums may be right over damaged ones. Files that
    are whole are hard links, where the file system has them.
    """
    output = Output(output, RECORDS, overwrite=overwrite).check()
    if os.path.realpath(output) == os.path.realpath(directory):
        raise BadInputError(f"{output}: is what is to be repaired; name another output")
    info = PretrainingManifest.load(directory, check_sizes=False)
    repaired = dataclasses.replace(info, shards=(), repaired_from=info.digest)

    with Output(output, RECORDS, overwrite=overwrite).written() as unfinished:
        shards = tuple(_repaired(directory, shard, info, unfinished) for shard in info.shards)
        repaired = dataclasses.replace(repaired, shards=shards)
        for split in SPLITS:
            if info.num_records(split) and not repaired.num_records(split):
                raise BadInputError(f"{directory}: no whole record is left in the {split} split")
        for name in (VOCABULARY_FILE, UNIGRAM_COUNTS_FILE):
            shutil.copyfile(os.path.join(directory, name), os.path.join(unfinished, name))
        write_text(os.path.join(unfinished, DATASET_INFO_FILE), repaired.to_json())
    kept = sum(shard.num_records for shard in repaired.shards)
    lost = sum(shard.num_records for shard in info.shards) - kept
    print_line(f"{output}: {kept:,} records are whole, {lost:,} of {directory} are left out")
    return repaired


def _repaired(directory: str, shard: Shard, info: PretrainingManifest, output: str) -> Shard:
    """Writes the whole records of a file, and describes them."""
    source, target = (os.path.join(place, shard.file) for place in (directory, output))
    stored = info.stored()
    if sha256(source) == shard.sha256 and not info.damage_of(directory, shard):
        try:
            os.link(os.path.realpath(source), target)  # of a link a second name would be a link
        except OSError:  # another file system, or one without links
            shutil.copyfile(source, target)
        return shard
    num_records = num_tokens = 0
    with record_writer(target) as write:
        for serialized, fault in read_records(source):
            if fault or example_fault(serialized, stored):
                continue
            write(serialized)
            num_records += 1
            num_tokens += len(read_example(serialized, stored)[TOKEN_IDS])
    lost = shard.num_records - num_records
    print_line(f"{source}: {lost} damaged records are left out, {num_records} are whole")
    return dataclasses.replace(
        shard,
        num_records=num_records,
        num_tokens=num_tokens,
        sha256=sha256(target),
        num_bytes=os.path.getsize(target),
    )
