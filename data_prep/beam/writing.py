"""Writes pre-training records: `spanbert-tf prepare pretraining`.

Processes of this machine (`processes`) or a runner of Apache Beam (`pipeline`) do the work in two
steps (`steps`):

1. For each input file, or part of a large one, write its records to a spill file.
2. For each shard, read its records from all spill files, and write them in a random order that is
   the same in every run.

The results of each step are kept until the output is complete, so a command that was killed, or
that found the disk full, can go on. Processes exchange only counts and keys. The memory does not
grow with the corpus, and the output does not depend on the number of processes.
"""

import collections
import contextlib
import dataclasses
import hashlib
import importlib.metadata
import itertools
import math
import os
import pathlib
import platform
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from data_prep.beam.duplicates import count_ranges, find_duplicates, write_hashes
from data_prep.beam.job import (
    SPILL,
    Call,
    Job,
    PartSummary,
    ShardResult,
    StoppedError,
    can_go_on,
    cannot_write,
    prepare_to_go_on,
)
from data_prep.beam.processes import on_this_machine
from data_prep.beam.progress import Progress
from data_prep.beam.steps import held_out_records, scan_file, spill_part, write_shard
from data_prep.blocks.annotations import check_annotations
from data_prep.blocks.held_out import HeldOut
from data_prep.blocks.records import CELLS_WITHOUT_TEXT, RecordOptions
from data_prep.text import cutting
from data_prep.text.corpus import find_format
from data_prep.text.cutting import FilePart
from data_prep.text.duplicates import Unit, duplicate_count
from data_prep.text.formats import describe_cells_without_text
from data_prep.text.storage import InputFile, find_files, import_beam
from data_prep.text.unknown_words import SOME_UNKNOWN, find_unknown_words, read_sample
from spanbert_tf.conversion.converted_presets import converted_preset
from spanbert_tf.data.manifest import (
    DATASET_INFO_FILE,
    RECORDS,
    SPLITS,
    UNIGRAM_COUNTS_FILE,
    VOCABULARY_FILE,
    MadeFrom,
    PretrainingManifest,
    Sequences,
    Shard,
    encode_unigram_counts,
    vocabulary_hash,
)
from spanbert_tf.data.tfrecords import lengths_path
from spanbert_tf.errors import BadInputError, reason
from spanbert_tf.files.contents import code_digest
from spanbert_tf.files.lock import locks_output
from spanbert_tf.files.output import NEW, Output
from spanbert_tf.files.paths import is_remote
from spanbert_tf.files.text_files import without_surrogates
from spanbert_tf.terminal import print_line
from spanbert_tf.text.chosen_vocabulary import chosen_vocabulary, segmentation_of_preset
from spanbert_tf.text.languages import DEFAULT_SPACY_MODEL
from spanbert_tf.text.sentences import PUNKT_LANGUAGES
from spanbert_tf.text.vocabulary import UNKNOWN_TOKEN
from spanbert_tf.text.word_segmentation import check_segmentation, describe_segmentation

if TYPE_CHECKING:
    from apache_beam.options.pipeline_options import PipelineOptions

_TEXT_BYTES_PER_SHARD = 32 * 2**20
_MOST_SHOWN = 100  # files whose duplicates are printed
_PACKAGE_OF_SENTENCES = "icu4py"  # of languages for which Punkt has no parameters
_PACKAGES_OF_WORDS = {"icu": ("icu4py",), "jieba": ("rjieba",)}
_COMPRESSION_RATIO = 3  # approximately, of English text
_COMPRESSED_ENDINGS = (".gz", ".bz2", ".xz", ".zst", ".parquet")


@locks_output()
def write_pretraining_records(
    input_pattern: str | os.PathLike | Sequence[str | os.PathLike],
    *,
    preset: str | None = None,
    vocabulary: str | os.PathLike | None = None,
    output: str | os.PathLike,
    document_separator: str | None = None,
    text_columns: Sequence[str] = (),
    follow_links: bool = False,
    lowercase: bool | None = None,
    strip_accents: bool | None = None,
    language: str | None = None,
    sequence_length: int = 512,
    sequences: Sequences = "single",
    annotate: Sequence[str] = (),
    spacy_model: str | None = None,
    word_segmentation: str | None = None,
    validation_fraction: float = 0.01,
    deduplicate: Unit | None = None,
    num_shards: int | None = None,
    num_processes: int = 1,
    beam_arguments: Sequence[str] = (),
    overwrite: bool = False,
) -> PretrainingManifest:
    """Writes TFRecord shards, their vocabulary, unigram counts and manifest to a new directory.

    Args:
        input_pattern: one or more glob patterns of text files (formats: `data_prep.text.corpus`).
        preset: preset whose vocabulary and casing are used; see `chosen_vocabulary`.
        vocabulary: path of a vocabulary; see `chosen_vocabulary`.
        output: the directory to write. After an error or a kill it is unchanged. After a kill or a
            full disk, a call with the same options and inputs goes on with what was done.
        document_separator: in plain text, a line equal to this begins a new document.
        text_columns: columns of text in tables; see `data_prep.text.formats.RowParser`.
        follow_links: see `find_files`.
        lowercase: see `chosen_vocabulary`.
        strip_accents: see `chosen_vocabulary`.
        language: see `chosen_vocabulary`.
        sequence_length: positions of a packed row, special tokens included.
        sequences: `"single"` or `"pair"`, see `data_prep.blocks.pairs`.
        annotate: names of `ANNOTATIONS`, see `data_prep.blocks.annotations`.
        spacy_model: name or path of the spaCy model that finds annotations and words. `None` for
            that of the preset, or `DEFAULT_SPACY_MODEL`.
        word_segmentation: how words are found, a value of `WordSegmentation`. `None` for the value
            of the preset, or the default of the language.
        validation_fraction: share of the records to hold out: whole documents, or blocks if
            documents are few or large, see `data_prep.blocks.held_out`.
        deduplicate: leaves out documents or paragraphs that have the same words as an earlier one,
            in the order of files; see `data_prep.text.duplicates`. `None` leaves out nothing.
        num_shards: number of files of the training split. By default one for each 32 MB of text,
            where a byte of a compressed file counts as three. A shard is sorted in memory.
        num_processes: number of processes on this machine. They share large files that can be cut
            at documents; see `data_prep.text.cutting`.
        beam_arguments: options for a runner of Beam, such as `--runner=dask`.
        overwrite: whether earlier records at `output` may be replaced.

    Returns:
        The manifest that was written. Its `counts` are `files`, `bytes` of text, `documents` with
        text, `title_only_documents` and `empty_documents`; and for the documents with text
        `paragraphs`, `sentences`, `tokens`, `records`, `split_sentences` (longer than a block) and
        `sentences_without_tokens`, which are in no record. `cells_without_text` is the number of
        cells of tables with nulls or numbers, if there are any. With `deduplicate` there are also
        `duplicate_documents`, which no other count includes, or `duplicate_paragraphs`.

    Raises:
        BadInputError: a file cannot be read, used or written, or the output exists.
        MismatchError: the vocabulary does not have the stated casing.
        ConfigurationError: an option of Beam is unknown or needs `--runner`, or a package or model
            that finds annotations or words is not installed.
    """
    start = time.monotonic()
    target = Output(output, RECORDS, overwrite=overwrite)
    target.check()
    files = find_files(input_pattern, follow_links=follow_links)
    preset = None if preset is None else converted_preset(preset, language=language)
    pieces, text_rules = chosen_vocabulary(
        preset=preset,
        vocabulary=vocabulary,
        lowercase=lowercase,
        strip_accents=strip_accents,
        language=language,
    )
    if preset is not None:
        stated_segmentation, stated_model = segmentation_of_preset(preset)
        word_segmentation = word_segmentation or stated_segmentation
        spacy_model = spacy_model or stated_model
    spacy_model = spacy_model or DEFAULT_SPACY_MODEL
    segmentation = check_segmentation(word_segmentation, text_rules.language, spacy_model)
    if segmentation != "none":
        described = describe_segmentation(segmentation, text_rules.language)
        print_line(f"{target.path}: {described} (--word-segmentation {segmentation})")
    text_bytes = sum(_estimate_text_bytes(file) for file in files)
    job = Job(
        output=os.path.realpath(target.path),
        directory=target.aside,
        options=RecordOptions(
            tuple(pieces),
            text_rules,
            sequence_length,
            sequences,
            document_separator,
            tuple(text_columns),
            check_annotations(annotate, spacy_model),
            spacy_model,
            segmentation,
        ),
        num_shards=num_shards or math.ceil(text_bytes / _TEXT_BYTES_PER_SHARD),
        validation_fraction=validation_fraction,
        deduplicate=deduplicate,
    )
    options = _runner_options(beam_arguments)
    manifest, held_out = _write_whole(target, job, files, options, num_processes)
    seconds = time.monotonic() - start
    print_line(_summary(manifest, held_out, target.path, seconds))
    if num_cells := manifest.counts.get(CELLS_WITHOUT_TEXT):
        print_line(describe_cells_without_text(target.path, num_cells))
    _warn_of_unknown_pieces(manifest, target.path, files, job.options)
    return manifest


def _write_whole(
    target: Output,
    job: Job,
    files: Sequence[InputFile],
    options: "PipelineOptions | None",
    num_processes: int,
) -> tuple[PretrainingManifest, HeldOut]:
    """Runs the steps and publishes the output; keeps finished parts if it is interrupted.

    Args:
        target: the output.
        job: the work.
        files: the input.
        options: options of a runner of Beam; `None` for processes of this machine.
        num_processes: number of these processes.

    Returns:
        The manifest, and what decided which records are held out.
    """
    made_from = _made_from(job, files)
    states = _states(files)
    keeps_work = False
    try:
        _begin_or_go_on(target, job, _digest(job, made_from, states))
        outcome = _run_steps(job, files, options, num_processes)
        _check_unchanged(files, states)
        manifest = _finish(job, outcome, made_from)
        target.publish()
    except OSError as error:
        keeps_work = _has_whole_parts(job)
        raise BadInputError(
            cannot_write(target.path, error, kept=target.aside if keeps_work else None)
        ) from error
    except StoppedError as error:
        keeps_work = _has_whole_parts(job)
        if not keeps_work:
            raise
        raise StoppedError(
            f"{error}; if the command has the same options (but for the number of processes and "
            f"the runner), {can_go_on(target.aside)}"
        ) from error
    finally:
        if not keeps_work:
            target.discard()
    return manifest, outcome.held_out


def _warn_of_unknown_pieces(
    manifest: PretrainingManifest, output: str, files: Sequence[InputFile], options: RecordOptions
) -> None:
    """Prints why many pieces are [UNK], if there are many. The reasons come from a sample."""
    counts = manifest.unigram_counts(output)
    unknown = counts[options.vocabulary.index(UNKNOWN_TOKEN)]
    share = unknown / max(sum(counts), 1)
    if share > SOME_UNKNOWN:
        sample = read_sample(files, options.document_separator, options.text_columns)
        for advice in find_unknown_words(sample, options.vocabulary, options.text_rules).advice(
            share
        ):
            print_line(f"{output}: {advice}")


def _estimate_text_bytes(file: InputFile) -> int:
    if file.name.endswith(_COMPRESSED_ENDINGS):
        return file.size * _COMPRESSION_RATIO
    return file.size


def _states(files: Sequence[InputFile]) -> list[tuple[int, int]]:
    """Returns the size of each file and its time of change in ns, which is 0 for remote files."""
    states = []
    for file in files:
        if is_remote(file.path):
            states.append((file.size, 0))
        else:
            try:
                found = os.stat(file.path)
            except OSError as error:
                raise BadInputError(
                    f"{file.path}: cannot be found any more ({reason(error)}); run the command "
                    "again when nothing changes the input"
                ) from error
            states.append((found.st_size, found.st_mtime_ns))
    return states


def _check_unchanged(files: Sequence[InputFile], states: Sequence[tuple[int, int]]) -> None:
    """Raises `BadInputError` if a file was changed after the command began."""
    for file, before, now in zip(files, states, _states(files), strict=True):
        if before != now:
            raise BadInputError(
                f"{file.path}: was changed while it was read; run the command again when nothing "
                "writes to it"
            )


def _made_from(job: Job, files: Sequence[InputFile]) -> MadeFrom:
    options = job.options
    packages = ["spanbert_tf", "tensorflow-text"]
    packages += _PACKAGES_OF_WORDS.get(options.word_segmentation, ())
    if options.text_rules.language not in PUNKT_LANGUAGES:
        packages += [_PACKAGE_OF_SENTENCES]
    uses_spacy = bool(options.annotations) or options.word_segmentation == "spacy"
    if uses_spacy:
        packages += ["spacy", options.spacy_model]
    versions = {"python": platform.python_version()}
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # a model may be a path
            versions[package] = importlib.metadata.version(package)
    names = "".join(f"{file.name}\0" for file in files)
    # Bytes of an argument that are not UTF-8 are surrogates, which JSON cannot hold.
    separator = options.document_separator
    return MadeFrom(
        versions=versions,
        num_files=len(files),
        num_bytes=sum(file.size for file in files),
        names_sha256=hashlib.sha256(names.encode("utf-8", "surrogateescape")).hexdigest(),
        num_shards=job.num_shards,
        validation_fraction=job.validation_fraction,
        deduplicate=job.deduplicate,
        text_columns=tuple(map(without_surrogates, options.text_columns)),
        document_separator=None if separator is None else without_surrogates(separator),
        spacy_model=without_surrogates(options.spacy_model) if uses_spacy else None,
    )


def _digest(job: Job, made_from: MadeFrom, states: Sequence[tuple[int, int]]) -> str:
    """Returns a digest of the options, the versions, the code and the input.

    Of the input, and of a spaCy model in a directory, it covers the names, sizes and times of
    change of the files, not their content.
    """
    content = repr((job.options, made_from, states, _states_inside(job.options.spacy_model)))
    digest = hashlib.sha256(content.encode("utf-8", "surrogateescape"))
    for package in ("data_prep", "spanbert_tf"):
        digest.update(code_digest(sys.modules[package].__path__).encode())
    return digest.hexdigest()


def _states_inside(directory: str) -> list[tuple[str, int, int]]:
    """Returns the path, the size and the time of change of each file; none of a package's name."""
    states = []
    for path in sorted(pathlib.Path(directory).rglob("*")):
        found = path.stat()
        states.append((str(path), found.st_size, found.st_mtime_ns))
    return states


def _begin_or_go_on(target: Output, job: Job, digest: str) -> None:
    """Makes the work directory, or keeps that of a killed command with the same digest."""
    left = target.left_work(SPILL, NEW)
    if left == digest:
        num_parts, num_shards = prepare_to_go_on(job)
        print_line(
            f"{target.path}: goes on where it stopped; {num_parts:,} files or parts of files "
            f"are read, {num_shards:,} of {job.num_shards:,} shards are written"
        )
        return
    if left is not None:
        print_line(
            f"{target.path}: begins anew, since the command that stopped had other options, "
            "inputs or code"
        )
    target.create(SPILL, NEW)
    os.chmod(os.path.join(target.aside, SPILL), 0o700)  # it holds text of the input
    target.note_work(digest)


def _has_whole_parts(job: Job) -> bool:
    """Whether some parts of the input are done. Unfinished files are removed."""
    try:
        num_parts, _ = prepare_to_go_on(job)
    except OSError:
        return False
    return num_parts > 0


def _runner_options(arguments: Sequence[str]) -> "PipelineOptions | None":
    """Parses options for Beam. Importing it takes a second, so it is imported only for options."""
    if not arguments:
        return None
    import_beam()
    from data_prep.beam.pipeline import runner_options

    return runner_options(arguments)


class _Outcome(NamedTuple):
    """The results of the steps.

    Attributes:
        summaries: one for each part of the input, in any order.
        held_out: decides which records are held out.
        shards: one for each shard, ordered by shard.
    """

    summaries: list[PartSummary]
    held_out: HeldOut
    shards: list[ShardResult]


def _run_steps(
    job: Job, files: Sequence[InputFile], options: "PipelineOptions | None", num_processes: int
) -> _Outcome:
    """Runs the steps on this machine, or on a runner of Beam if there are options for it."""
    input_bytes = sum(file.size for file in files)
    if options is not None:
        from data_prep.beam.pipeline import on_runner

        with on_runner(job, options, input_bytes) as call:
            return _call_steps(job, files, call, is_shared=True)
    with (
        Progress(input_bytes, job.num_shards) as progress,
        on_this_machine(job, num_processes, progress.add) as call,
    ):
        return _call_steps(job, files, call, is_shared=num_processes > 1)


def _call_steps(job: Job, files: Sequence[InputFile], call: Call, *, is_shared: bool) -> _Outcome:
    parts = _cut_files(job, files, call, is_shared=is_shared)
    # Largest parts first: otherwise one process could still read one when others are done.
    numbered = sorted(enumerate(parts), key=lambda entry: -entry[1].size)
    num_hash_ranges = 0
    if job.deduplicate is not None:
        num_hash_ranges = _find_all_duplicates(job, numbered, call)
    to_spill = [(number, part, num_hash_ranges) for number, part in numbered]
    summaries = call(spill_part, "parts", to_spill)
    if job.deduplicate is not None:
        _print_duplicates(job.deduplicate, [part for _, part in numbered], summaries)
    held_out = held_out_records(job, summaries)
    to_write = [(shard, held_out, len(parts)) for shard in range(job.num_shards)]
    shards = call(write_shard, "shards", to_write)
    return _Outcome(summaries, held_out, shards)


def _cut_files(
    job: Job, files: Sequence[InputFile], call: Call, *, is_shared: bool
) -> list[FilePart]:
    """Cuts large files into parts.

    Args:
        job: the job.
        files: the input files.
        call: calls steps.
        is_shared: whether several processes share the work, so that it matters which files cannot
            be cut.
    """
    separator = job.options.document_separator
    formats = {
        file: find_format(file.path, job.options.text_columns)
        for file in files
        if file.size > cutting.RANGE_BYTES
    }
    reasons = {file: cutting.why_whole(formats[file], separator) for file in formats}
    to_scan: list[tuple] = []
    for file, text_format in formats.items():
        if reasons[file] is None and text_format != "parquet":
            for start, stop in cutting.ranges_of(file):
                to_scan.append((len(to_scan), file, text_format, start, stop))
    scans = iter(call(scan_file, "ranges", to_scan) if to_scan else [])
    parts: list[FilePart] = []
    whole: dict[str, list[InputFile]] = collections.defaultdict(list)  # by the reason
    for file in files:
        if file not in formats:
            parts.append(FilePart(file))
            continue
        cut = [FilePart(file)]
        if reasons[file] is None and formats[file] == "parquet":
            cut = cutting.cut_parquet(file)
        elif reasons[file] is None:
            scans_of_file = list(itertools.islice(scans, len(cutting.ranges_of(file))))
            cut = cutting.cut_file(file, formats[file], scans_of_file)
        if len(cut) == 1:
            whole[reasons[file] or cutting.why_not_cut(formats[file])].append(file)
        parts += cut
    if is_shared:
        for reason_of_some, some in whole.items():
            largest = max(some, key=lambda file: file.size)
            others = f" ({len(some):,} such files)" if len(some) > 1 else ""
            print_line(f"{largest.path}: one process reads all of it{others}: {reason_of_some}")
    return parts


def _find_all_duplicates(job: Job, numbered: Sequence[tuple[int, FilePart]], call: Call) -> int:
    """Finds duplicates and returns the number of files that list them."""
    to_hash = [(number, part, job.deduplicate) for number, part in numbered]
    num_hashes = sum(call(write_hashes, "hashes", to_hash))
    num_hash_ranges = count_ranges(num_hashes)
    ranges = [(number, num_hash_ranges, len(numbered)) for number in range(num_hash_ranges)]
    call(find_duplicates, "duplicates", ranges)
    return num_hash_ranges


def _print_duplicates(
    unit: Unit, parts: Sequence[FilePart], summaries: Sequence[PartSummary]
) -> None:
    """Prints how many duplicates each file has, in the order of files."""
    counts: collections.Counter = collections.Counter()
    for part, summary in zip(parts, summaries, strict=True):
        counts[part.file.name] += summary.counts[duplicate_count(unit)]
    found = sorted((name, number) for name, number in counts.items() if number)
    for name, number in found[:_MOST_SHOWN]:
        print_line(f"{name}: {number:,} duplicate {unit} are left out")
    others = found[_MOST_SHOWN:]
    if others:
        total = sum(number for _, number in others)
        print_line(f"{len(others):,} other files: {total:,} duplicate {unit} are left out")


def _finish(job: Job, outcome: _Outcome, made_from: MadeFrom) -> PretrainingManifest:
    """Renames the shards, and writes the vocabulary, the unigram counts and the manifest."""
    counts: collections.Counter = collections.Counter()
    for summary in outcome.summaries:
        counts.update(summary.counts)
    written = list(itertools.chain.from_iterable(shard.files for shard in outcome.shards))
    if not written:
        raise BadInputError("--input: no document has text that can be used; check its format")
    num_written = sum(file.num_records for file in written)
    if num_written != counts["records"]:
        raise BadInputError(
            f"{job.output}: {num_written:,} of {counts['records']:,} records were written; "
            "run the command again"
        )
    pieces = job.options.vocabulary
    totals = np.zeros(len(pieces), np.int64)
    for shard in outcome.shards:
        totals += np.frombuffer(shard.unigram_counts, np.int64)
    unigram_counts, counts_hash = encode_unigram_counts(totals)
    manifest = PretrainingManifest(
        vocabulary_hash=vocabulary_hash(pieces),
        vocabulary_size=len(pieces),
        **job.options.text_rules._asdict(),
        sequence_length=job.options.sequence_length,
        sequences=job.options.sequences,
        annotations=job.options.annotations,
        word_segmentation=job.options.word_segmentation,
        counts=dict(sorted(counts.items())),
        made_from=made_from,
        shards=tuple(_name_shards(job, written)),
        unigram_counts_hash=counts_hash,
    )
    texts = {
        VOCABULARY_FILE: "\n".join(pieces) + "\n",
        UNIGRAM_COUNTS_FILE: unigram_counts,
        DATASET_INFO_FILE: manifest.to_json(),
    }
    for name, text in texts.items():
        with open(job.shard_path(name), "wb") as file:
            file.write(text.encode())
    return manifest


def _name_shards(job: Job, files: Sequence[Shard]) -> list[Shard]:
    """Renames the files of each split so that they are numbered without gaps.

    A shard without records in a split has no file there. A command that was killed meanwhile has
    renamed some of them already.
    """
    named = []
    for split in SPLITS:
        split_files = [file for file in files if file.split == split]
        for index, file in enumerate(split_files):
            name = f"{split}-{index:05d}-of-{len(split_files):05d}.tfrecord"
            for old, new in (
                (job.shard_path(file.file), job.shard_path(name)),
                (lengths_path(job.shard_path(file.file)), lengths_path(job.shard_path(name))),
            ):
                if not os.path.exists(new):
                    os.rename(old, new)
            named.append(dataclasses.replace(file, file=name))
    return named


def _summary(manifest: PretrainingManifest, held_out: HeldOut, output: str, seconds: float) -> str:
    counts = collections.Counter(manifest.counts)
    unused = counts["title_only_documents"] + counts["empty_documents"]
    num_held_out = manifest.num_records("validation")
    num_training = manifest.num_records("train")
    share = num_held_out / (num_held_out + num_training)
    return (
        f"{output}: {num_training:,} training and {num_held_out:,} held-out records ({share:.2%}, "
        f"{held_out.describe()}) of {manifest.sequence_length} positions, "
        f"{counts['tokens']:,} tokens of {counts['documents']:,} documents "
        f"({unused:,} more have no text), {counts['bytes'] / 1e6:,.1f} MB in {seconds:,.0f} s"
    )
