"""`spanbert-tf prepare repair`: copies records and leaves out damaged ones.

If the bytes of a record are damaged, reading continues with the next record. If the stored length
of a record is damaged, the rest of its file is lost.
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
from spanbert_tf.data.tfrecords import lengths_path, read_records, record_writer, save_lengths
from spanbert_tf.errors import BadInputError
from spanbert_tf.files.contents import sha256
from spanbert_tf.files.lock import locks_output
from spanbert_tf.files.output import Output, write_text
from spanbert_tf.terminal import print_line


@locks_output()
def repair_records(directory: str, output: str, *, overwrite: bool = False) -> PretrainingManifest:
    """Copies the undamaged records of a directory and prints how many are lost in each file.

    It also writes the files of lengths again if they are missing or damaged.

    Every record is read, because checksums that somebody else wrote may match damaged records.
    Undamaged files become hard links if the file system supports them.

    Args:
        directory: directory of pre-training records.
        output: directory to write.
        overwrite: whether earlier records at `output` may be replaced.

    Returns:
        The manifest of the new records.

    Raises:
        BadInputError: the records cannot be read, a split has no undamaged record, or the output
            exists or cannot be written.
    """
    output = Output(output, RECORDS, overwrite=overwrite).check()
    if os.path.realpath(output) == os.path.realpath(directory):
        raise BadInputError(f"{output}: is what is to be repaired; name another output")
    manifest = PretrainingManifest.load(directory, check_sizes=False)
    repaired = dataclasses.replace(manifest, shards=(), repaired_from=manifest.digest)

    with Output(output, RECORDS, overwrite=overwrite).written() as unfinished:
        shards = tuple(
            _repaired(directory, shard, manifest, unfinished) for shard in manifest.shards
        )
        repaired = dataclasses.replace(repaired, shards=shards)
        for split in SPLITS:
            if manifest.num_records(split) and not repaired.num_records(split):
                raise BadInputError(f"{directory}: no whole record is left in the {split} split")
        for name in (VOCABULARY_FILE, UNIGRAM_COUNTS_FILE):
            shutil.copyfile(os.path.join(directory, name), os.path.join(unfinished, name))
        write_text(os.path.join(unfinished, DATASET_INFO_FILE), repaired.to_json())
    kept = sum(shard.num_records for shard in repaired.shards)
    lost = sum(shard.num_records for shard in manifest.shards) - kept
    print_line(f"{output}: {kept:,} records are whole, {lost:,} of {directory} are left out")
    return repaired


def _repaired(directory: str, shard: Shard, manifest: PretrainingManifest, output: str) -> Shard:
    """Writes the undamaged records of one shard and returns the description of the new shard."""
    source = os.path.join(directory, shard.file)
    target = os.path.join(output, shard.file)
    stored = manifest.stored()
    has_lengths = os.path.exists(lengths_path(source))  # earlier versions wrote none
    is_whole = sha256(source) == shard.sha256 and not manifest.damage_of(directory, shard)
    if is_whole and has_lengths:
        _link(source, target)
        _link(lengths_path(source), lengths_path(target))
        return shard
    lengths = []
    with record_writer(target) as write:
        for serialized, fault in read_records(source):
            if fault or example_fault(serialized, stored):
                continue
            write(serialized)
            lengths.append(len(read_example(serialized, stored)[TOKEN_IDS]))
    save_lengths(lengths_path(target), lengths)
    lost = shard.num_records - len(lengths)
    if lost:
        print_line(f"{source}: {lost} damaged records are left out, {len(lengths)} are whole")
    return Shard.of_file(target, shard.split, lengths)


def _link(source: str, target: str) -> None:
    """Makes a hard link, or copies the file where there are none."""
    try:
        os.link(os.path.realpath(source), target)  # `os.link` does not follow symbolic links
    except OSError:  # the target lies on another file system, or this one has no hard links
        shutil.copyfile(source, target)
