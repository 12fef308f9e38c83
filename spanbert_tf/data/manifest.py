"""The manifest of a set of records, and the names of the features of pre-training records.

The names of the features of a task's rows are in `spanbert_tf.data.records` and in the `records` of
each task. `data_prep` writes records with these names, and `spanbert_tf.data` reads them. This
module does not need TensorFlow.
"""

import contextlib
import dataclasses
import glob
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from annotated_types import Ge, Gt, Lt
from pydantic import AfterValidator

from spanbert_tf.data.examples import Stored, find_damaged_record
from spanbert_tf.data.tfrecords import check_frames, lengths_path, load_lengths
from spanbert_tf.errors import BadInputError, MismatchError, reason
from spanbert_tf.files.contents import is_file_name, regular_size, sha256
from spanbert_tf.files.kinds import (
    PRETRAINING_RECORDS,
    info_file,
    prepare_command,
    refuse_other_records,
)
from spanbert_tf.files.output import OutputKind
from spanbert_tf.files.paths import check_mounted
from spanbert_tf.files.text_files import parse_json
from spanbert_tf.text.languages import LANGUAGES, WordSegmentation, check_language
from spanbert_tf.text.vocabulary import TextRules, load_vocabulary

DATASET_INFO_FILE = info_file(PRETRAINING_RECORDS)
UNIGRAM_COUNTS_FILE = "unigram_counts.json"
VOCABULARY_FILE = "vocab.txt"

# Features of a pre-training record (a tf.train.Example). Lists are little-endian unsigned
# integers in one bytes value: LIST_DTYPE, and for token ids what `token_id_dtype` says.
TOKEN_IDS = "token_ids"  # word pieces of the block, no special tokens
RECORD_ID = "record_id"  # int64; the key of the record's masks
SENTENCE_STARTS = "sentence_starts"  # positions in the block where a sentence begins; first is 0
SENTENCE_INDICES = "sentence_indices"  # for each start: index of the sentence in its paragraph
PARAGRAPH_STARTS = "paragraph_starts"  # positions in the block where a paragraph begins; first is 0
PARAGRAPH_INDICES = "paragraph_indices"  # for each start: index of the paragraph in its document
POSITION_LISTS = (SENTENCE_STARTS, SENTENCE_INDICES, PARAGRAPH_STARTS, PARAGRAPH_INDICES)
FIRST_TOKEN_INDEX = "first_token_index"  # int64; index of the block's first token in its sentence
# Pair records only.
SECOND_SEGMENT_START = "second_segment_start"  # int64; position of the second segment
NEXT_SENTENCE_LABEL = "next_sentence_label"  # int64; 0 = the second continues the first, 1 = random
SECOND_FIRST_TOKEN_INDEX = "second_first_token_index"  # int64; as FIRST_TOKEN_INDEX
# Span lists, which masking schemes can take: name → features of starts and of ends, token positions
# in the block, ends inclusive. Without ends, a span ends where the next one begins.
Annotation = Literal["entities", "noun_phrases"]
ANNOTATIONS: dict[Annotation, tuple[str, str]] = {  # of records that were written with `--annotate`
    "entities": ("entity_starts", "entity_ends"),
    "noun_phrases": ("noun_phrase_starts", "noun_phrase_ends"),
}
SPAN_LISTS: dict[str, tuple[str, ...]] = dict(ANNOTATIONS.items())
SPAN_LISTS["sentences"] = (SENTENCE_STARTS,)
# Of records that were written with `--word-segmentation`; without it, words are those of BERT.
WORDS = "words"
WORD_STARTS = "word_starts"
SPAN_LISTS[WORDS] = (WORD_STARTS,)

# Numbers of speakers, of documents for coreference; those of named ones are larger.
NO_SPEAKER = 0
SPECIAL_SPEAKER = 1

LIST_DTYPE = "uint16"
LIST_MAXIMUM = 2**16 - 1  # larger numbers are stored as this; every index table is far smaller

Sequences = Literal["single", "pair"]
NUM_BLOCKS: dict[Sequences, int] = {
    "single": 1,
    "pair": 2,
}  # blocks of a packed row: [CLS], and a [SEP] after each
Split = Literal["train", "validation"]
SPLITS: tuple[Split, ...] = ("train", "validation")
RECORDS = OutputKind(
    "records",
    DATASET_INFO_FILE,
    (
        VOCABULARY_FILE,
        UNIGRAM_COUNTS_FILE,
        *(f"{split}-?????-of-?????.tfrecord" for split in SPLITS),
        *(f"{split}-?????-of-?????.lengths.npy" for split in SPLITS),
    ),
)

Count = Annotated[int, Ge(0), Lt(2**63)]
ADVICE = "write the records again with this version of spanbert-tf"


def encode_unigram_counts(counts: np.ndarray) -> tuple[str, str]:
    """Returns the content of `UNIGRAM_COUNTS_FILE`, and its hexadecimal digest.

    Args:
        counts: int64 [V], occurrences of each entry in the training split.
    """
    text = json.dumps(counts.tolist()) + "\n"
    return text, hashlib.sha256(text.encode()).hexdigest()


def token_id_dtype(vocabulary_size: int) -> str:
    """Returns the unsigned type that stores `token_ids` of a vocabulary of that size."""
    return "uint16" if vocabulary_size <= 2**16 else "uint32"


def vocabulary_hash(vocabulary: Sequence[str]) -> str:
    """Computes a hexadecimal digest of the entries and their order."""
    return hashlib.sha256("\n".join(vocabulary).encode()).hexdigest()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """The description of a set of records, a JSON file beside them.

    The keys of the file are the fields in their order; each kind of records adds its own.

    Attributes:
        task: name of the records' kind, a class attribute.
        version_key: the key that holds `records_version`, a class attribute.
        records_version: version of the format, a class attribute; others are refused.
        vocabulary_hash: `vocabulary_hash` of `vocab.txt`.
        vocabulary_size: entries of the vocabulary.
        lowercase: whether text was lower-cased.
        sequence_length: positions of a packed row at most, special tokens included.
        strip_accents: whether accents were stripped.
        language: code of the language whose rule split the text into sentences.
    """

    task: ClassVar[str]
    version_key: ClassVar[str] = "version"
    records_version: ClassVar[int] = 1
    __pydantic_config__: ClassVar[dict] = {"extra": "forbid"}

    vocabulary_hash: str
    vocabulary_size: Annotated[int, Gt(0), Lt(2**31)]
    lowercase: bool
    sequence_length: Annotated[int, Ge(3), Lt(2**16)]
    strip_accents: bool
    language: Annotated[str, AfterValidator(check_language)]

    @property
    def text_rules(self) -> TextRules:
        """What was done to the text."""
        return TextRules.of(self.lowercase, self.strip_accents, self.language)

    @classmethod
    def file_name(cls) -> str:
        """Returns the name of the file in a directory of records."""
        return info_file(cls.task)

    def to_json(self) -> str:
        """Returns the text of the file."""
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str, path: str) -> Self:
        """Reads the text of the file; `path` is named in errors.

        Raises:
            BadInputError: it is not JSON, no such description, or of another version.
        """
        version = parse_json(text, dict[str, Any], path, ADVICE).get(cls.version_key)
        if version != cls.records_version:
            raise BadInputError(f"{path}: {cls.version_key} is not {cls.records_version}; {ADVICE}")
        manifest = parse_json(text, cls, path, ADVICE)
        if fault := manifest.fault():
            raise BadInputError(f"{path}: {fault}; {ADVICE}")
        return manifest

    @classmethod
    def load(cls, directory: str | os.PathLike) -> Self:
        """Reads the file of a directory.

        Raises:
            BadInputError: it is missing, is no such description, has another version, or is `gs://…`.
        """
        directory = os.fspath(directory)
        check_mounted(directory)
        refuse_other_records(directory, cls.task)
        path = os.path.join(directory, cls.file_name())
        try:
            regular_size(path)
            with open(path, encoding="utf-8") as file:
                text = file.read()
        except (OSError, UnicodeDecodeError) as error:
            raise BadInputError(
                f"{path}: cannot be read; write records with {prepare_command(cls.task)}"
            ) from error
        return cls.from_json(text, path)

    def fault(self) -> str | None:
        """Returns what contradicts itself, in words; kinds of records check their fields first."""
        if self.strip_accents and not self.lowercase:
            return "strip_accents: is true, and text is cased"
        return None

    def check_values(
        self,
        wanted: Mapping[str, Any],
        directory: str,
        fitting: Callable[[str, Any], Sequence[str]],
    ) -> None:
        """Checks that the records are what a configuration's section `data` says.

        Args:
            wanted: name of a value → the wanted value; `None`: any value.
            directory: directory of the records, for errors.
            fitting: `(name, the records' own value)` → the settings that fit it.
        """
        differences = []
        settings = []
        for name, found in self.differing(wanted).items():
            differences.append(
                f"data.{name} of these records is {as_yaml(found)}, of the configuration "
                f"{as_yaml(wanted[name])}"
            )
            settings += [f"--set {setting}" for setting in fitting(name, found)]
        if differences:
            advice = f"write other records, or {' '.join(settings)}"
            raise MismatchError(f"{directory}: {'; '.join(differences)}; {advice}")

    def differing(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the records' own values that are not the wanted ones; arguments as above."""
        found = {name: getattr(self, name) for name in wanted}
        return {
            name: value
            for name, value in found.items()
            if wanted[name] is not None and value != wanted[name]
        }

    def vocabulary(self, directory: str) -> list[str]:
        """Reads the entries in order of their ids from the `vocab.txt` of a directory.

        Raises:
            BadInputError: it cannot be read.
            MismatchError: it is not the vocabulary that the records were written with.
        """
        path = os.path.join(directory, VOCABULARY_FILE)
        try:
            regular_size(path)
        except OSError as error:
            raise BadInputError(f"{path}: {reason(error)}; copy it again") from error
        vocabulary = load_vocabulary(path)
        if len(vocabulary) != self.vocabulary_size:
            raise MismatchError(
                f"{path}: has {len(vocabulary)} entries, and {self.file_name()} states "
                f"{self.vocabulary_size} (vocabulary_size, vocabulary_hash); {ADVICE}"
            )
        if vocabulary_hash(vocabulary) != self.vocabulary_hash:
            raise MismatchError(
                f"{path}: not the vocabulary that the records were written with "
                f"({self.file_name()}: vocabulary_hash); {ADVICE}"
            )
        return vocabulary


@dataclasses.dataclass(frozen=True)
class Shard:
    """One TFRecord file of pre-training records."""

    file: str  # name inside the directory, `train-00000-of-00008.tfrecord`
    split: Split
    num_records: Count
    num_tokens: Count  # word pieces in the file
    sha256: str  # hexadecimal digest of the whole file
    num_bytes: Count

    __pydantic_config__: ClassVar[dict] = {"extra": "forbid"}

    @classmethod
    def of_file(cls, path: str, split: Split, lengths: Sequence[int]) -> "Shard":
        """Describes a file that was written.

        Args:
            path: path of the file.
            split: its split.
            lengths: the number of word pieces of each of its records.
        """
        name = os.path.basename(path)
        return cls(name, split, len(lengths), sum(lengths), sha256(path), os.path.getsize(path))


@dataclasses.dataclass(frozen=True, kw_only=True)
class MadeFrom:
    """What pre-training records were made from, without what their manifest states elsewhere.

    If two sets of records differ, this shows why. Nothing is compared with it.

    Attributes:
        versions: versions of Python and of the packages that read and split the text.
        num_files: number of input files.
        num_bytes: their size in bytes, as stored.
        names_sha256: hexadecimal digest of their names in order, each followed by a zero byte. A
            name is relative to the common directory of all files.
        num_shards: number of groups of records, each at most one file of a split.
        validation_fraction: share of the records to hold out.
        deduplicate: what was left out if it had been read before; `None`: nothing.
        text_columns: columns of text in tables; empty for `text`.
        document_separator: in plain text, the line that begins a new document.
        spacy_model: name or path of the model that found the annotations or words; `None` without
            any.
    """

    versions: dict[str, str]
    num_files: Count
    num_bytes: Count
    names_sha256: str
    num_shards: Count
    validation_fraction: float
    deduplicate: str | None
    text_columns: tuple[str, ...]
    document_separator: str | None
    spacy_model: str | None

    __pydantic_config__: ClassVar[dict] = {"extra": "forbid"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainingManifest(Manifest):
    """The content of `dataset_info.json`, which lies beside the shards and `vocab.txt`.

    Attributes:
        sequences: `"single"` or `"pair"`.
        annotations: names of `ANNOTATIONS`.
        word_segmentation: how the words of `WORD_STARTS` were found; records have none of these
            with `"none"`.
        counts: documents, title_only_documents, …
        shards: the files of both splits.
        unigram_counts_hash: SHA-256 of `unigram_counts.json`, which holds the occurrences of each
            vocabulary entry in the training split.
        repaired_from: `digest` of the records from which the undamaged ones were copied.
        made_from: input and options; `None` in records of earlier commits.
    """

    task: ClassVar[str] = PRETRAINING_RECORDS
    version_key: ClassVar[str] = "schema_version"

    sequence_length: Annotated[int, Ge(8), Lt(2**16)]
    sequences: Sequences
    annotations: tuple[Annotation, ...]
    word_segmentation: WordSegmentation = "none"
    counts: dict[str, Count]
    shards: tuple[Shard, ...]
    unigram_counts_hash: str
    repaired_from: str | None = None
    made_from: MadeFrom | None = None
    schema_version: int = Manifest.records_version

    @property
    def num_blocks(self) -> int:
        """Blocks of text in a packed row; it has a special token more."""
        return NUM_BLOCKS[self.sequences]

    @property
    def num_places(self) -> int:
        """Word pieces of a record at most."""
        return self.sequence_length - 1 - self.num_blocks

    @property
    def spacy_model_of_words(self) -> str | None:
        """The model of spaCy that found the words; `None` if something else did."""
        if self.word_segmentation != "spacy" or self.made_from is None:
            return None
        return self.made_from.spacy_model

    @property
    def has_words(self) -> bool:
        """Whether the records tell where words begin."""
        return self.word_segmentation != "none"

    @property
    def word_lists(self) -> tuple[str, ...]:
        """Names of the lists that tell words, if the records have them."""
        return SPAN_LISTS[WORDS] if self.has_words else ()

    def stored(self) -> dict[str, Stored]:
        """Returns what each record holds."""
        numbers = {RECORD_ID: Stored("int64"), FIRST_TOKEN_INDEX: Stored("int64")}
        if self.num_blocks > 1:
            numbers[SECOND_SEGMENT_START] = Stored("int64", below=self.num_places + 1)
            numbers[NEXT_SENTENCE_LABEL] = Stored("int64", below=2)
        dtype = token_id_dtype(self.vocabulary_size)
        tokens = Stored(dtype, most=self.num_places, below=self.vocabulary_size)
        starts = Stored(LIST_DTYPE, most=self.num_places, below=TOKEN_IDS)
        lists = {TOKEN_IDS: tokens, SENTENCE_STARTS: starts, PARAGRAPH_STARTS: starts}
        lists[SENTENCE_INDICES] = Stored(LIST_DTYPE, like=SENTENCE_STARTS)
        lists[PARAGRAPH_INDICES] = Stored(LIST_DTYPE, like=PARAGRAPH_STARTS)
        for annotation in self.annotations:
            first, last = ANNOTATIONS[annotation]
            lists |= {first: starts, last: starts._replace(like=first)}
        if self.has_words:
            lists[WORD_STARTS] = starts
        return numbers | lists

    @property
    def digest(self) -> str:
        """A digest of the manifest without `made_from`, so that equal records have the same one.

        Repaired records keep the digest of the records that they come from.
        """
        if self.repaired_from is not None:
            return self.repaired_from
        content = dataclasses.replace(self, made_from=None)
        return hashlib.sha256(content.to_json().encode()).hexdigest()

    def num_records(self, split: str) -> int:
        """Counts the records in a split."""
        return sum(shard.num_records for shard in self.shards if shard.split == split)

    def num_tokens(self, split: str) -> int:
        """Counts the word pieces in a split."""
        return sum(shard.num_tokens for shard in self.shards if shard.split == split)

    def files(self, directory: str, split: str) -> list[str]:
        """Lists the paths of the shards of a split, in order of their names."""
        return [
            os.path.join(directory, shard.file) for shard in self.shards if shard.split == split
        ]

    def num_rows(self, directory: str, split: str) -> np.ndarray:
        """Counts the records of a split by their length in word pieces.

        Returns:
            int64 [num_places + 1], the number of records of each length.

        Raises:
            BadInputError: the files with the lengths are missing, as in records that earlier
                versions wrote, or do not belong to the records.
        """
        counts = np.zeros(self.num_places + 1, "int64")
        for shard in self.shards:
            if shard.split == split:
                counts += np.bincount(self._lengths_of(directory, shard), minlength=len(counts))
        return counts

    def _lengths_of(self, directory: str, shard: Shard) -> np.ndarray:
        path = os.path.join(directory, shard.file)
        advice = "`spanbert-tf prepare repair` writes them anew, with a copy of the records"
        if not os.path.exists(lengths_path(path)):
            raise BadInputError(
                f"{lengths_path(path)}: is missing, the lengths of the records; {advice}"
            )
        lengths = load_lengths(path, advice)
        are_counted = len(lengths) == shard.num_records and lengths.sum() == shard.num_tokens
        if not are_counted or np.any((lengths < 1) | (lengths > self.num_places)):
            raise BadInputError(
                f"{lengths_path(path)}: are not the lengths of the {shard.num_records:,} records "
                f"of {shard.num_tokens:,} tokens that {DATASET_INFO_FILE} states; {advice}"
            )
        return lengths

    def damage(self, directory: str) -> BadInputError | None:
        """Returns an error that names the damaged file and record; each record is read."""
        found = (self.damage_of(directory, shard) for shard in self.shards)
        return next(filter(None, found), None)

    def damage_of(self, directory: str, shard: Shard) -> BadInputError | None:
        """Does the same as `damage` for one file and, if there are any, its lengths."""
        path = os.path.join(directory, shard.file)
        lengths = None
        if os.path.exists(lengths_path(path)):
            try:
                lengths = (TOKEN_IDS, self._lengths_of(directory, shard))
            except BadInputError as error:
                return error
        return find_damaged_record(
            path,
            self.stored(),
            num_records=shard.num_records,
            info_file=DATASET_INFO_FILE,
            lengths=lengths,
        )

    def to_json(self) -> str:
        """Returns the text of the file, a line for each key and each shard."""
        values = dataclasses.asdict(self)
        if self.repaired_from is None:
            del values["repaired_from"]
        if self.made_from is None:
            del values["made_from"]
        if not self.has_words:
            del values["word_segmentation"]
        lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in values.items()]
        shards = ",\n  ".join(map(json.dumps, values["shards"]))
        lines[list(values).index("shards")] = f'"shards": [\n  {shards}\n ]'
        return "{\n " + ",\n ".join(lines) + "\n}\n"

    def fault(self) -> str | None:
        """Also reports a shard that lies elsewhere."""
        for number, shard in enumerate(self.shards):
            if not is_file_name(shard.file):
                return f"shards[{number}].file: is no file's name"
        return super().fault()

    @classmethod
    def load(cls, directory: str | os.PathLike, *, check_sizes: bool = True) -> Self:
        """Reads and checks the description of a set of records.

        Args:
            directory: what `spanbert-tf prepare pretraining` wrote.
            check_sizes: whether each shard must have the size with which it was written.
                TensorFlow reads one that was cut between two records without an error.

        Raises:
            BadInputError: the directory, its description or one of its files is missing or
                unusable.
            MismatchError: `vocab.txt` is not the vocabulary that the records were written with.
        """
        directory = os.fspath(directory)
        manifest = super().load(directory)
        paths = [os.path.join(directory, shard.file) for shard in manifest.shards]
        for path, shard in zip(paths, manifest.shards, strict=True):
            num_bytes = _size_of(path)
            if os.path.lexists(lengths_path(path)):
                _size_of(lengths_path(path))
            if check_sizes and num_bytes != shard.num_bytes:
                raise BadInputError(
                    f"{path}: has {num_bytes} bytes, and {DATASET_INFO_FILE} states "
                    f"{shard.num_bytes}; copy the file again or write the records again"
                )
        if check_sizes:
            check_frames(paths)
        manifest.vocabulary(directory)
        return manifest

    def check_fit(self, directory: str, split: str, *, segment_aware: bool) -> None:
        """Refuses a split that is missing or empty, and pairs for SegaBERT's positions.

        All records store the values for SegaBERT's indices, but only single sequences have them.
        """
        if split not in SPLITS:
            raise BadInputError(f"split: {split!r} is not one of {', '.join(SPLITS)}")
        if not self.num_records(split):
            raise BadInputError(
                f"{directory}: the {split} split has no records; write more text, or another "
                "--validation-fraction"
            )
        if segment_aware and self.sequences != "single":
            raise MismatchError(
                f"{directory}: segment-aware positions need single sequences, the records are "
                f"{self.sequences}; write them with --sequences single"
            )

    def unigram_counts(self, directory: str | os.PathLike) -> tuple[int, ...]:
        """Reads the number of occurrences of each vocabulary entry in the training split.

        Raises:
            BadInputError: they are missing, or not those of these records.
        """
        path = os.path.join(directory, UNIGRAM_COUNTS_FILE)
        advice = "write the records again"
        try:
            regular_size(path)
            with open(path, "rb") as file:
                text = file.read()
        except OSError as error:
            raise BadInputError(f"{path}: cannot be read; {advice}") from error
        if hashlib.sha256(text).hexdigest() != self.unigram_counts_hash:
            raise BadInputError(
                f"{path}: not the counts that {DATASET_INFO_FILE} states (unigram_counts_hash); "
                f"copy it again or {advice}"
            )
        counts = tuple(parse_json(text, list[int], path, advice))
        if len(counts) != self.vocabulary_size:
            raise BadInputError(
                f"{path}: has {len(counts)} unigram counts for {self.vocabulary_size} entries of "
                f"the vocabulary; {advice}"
            )
        return counts

    def span_features(self, spans: str | None, scheme: str, directory: str) -> tuple[str, ...]:
        """Returns the features of the span list that a masking scheme takes; none if it takes none.

        Raises:
            MismatchError: these records have no such list, or no records have one.
        """
        if spans is None:
            return ()
        if spans not in SPAN_LISTS:
            raise MismatchError(
                f"{directory}: masking.scheme {scheme!r} takes {spans}, which no records have; "
                f"choose a scheme that takes {' or '.join(SPAN_LISTS)}"
            )
        if spans == WORDS and not self.has_words:
            raise MismatchError(
                f"{directory}: masking.scheme {scheme!r} needs records with words; write them with "
                "`spanbert-tf prepare pretraining --word-segmentation icu`"
            )
        if spans in ANNOTATIONS and spans not in self.annotations:
            raise MismatchError(
                f"{directory}: masking.scheme {scheme!r} needs annotated records; write them with "
                f"`spanbert-tf prepare pretraining --annotate {spans}`"
            )
        return SPAN_LISTS[spans]


def language_of_records(directory: str | os.PathLike) -> str | None:
    """Returns the code of the language of a set of records, of any task.

    `None` if the directory has no such description; the reader of the records raises an error.
    """
    pattern = os.path.join(glob.escape(os.fspath(directory)), info_file("*"))
    for path in sorted(glob.glob(pattern)):
        with contextlib.suppress(OSError, ValueError, RecursionError, LookupError, TypeError):
            regular_size(path)  # a pipe would be waited for
            with open(path, encoding="utf-8") as file:
                language = json.load(file)["language"]
            if language in LANGUAGES:
                return language
    return None


def _size_of(path: str) -> int:
    """Returns the size of a file of records; raises `BadInputError` if it is no regular file."""
    try:
        return regular_size(path)
    except OSError as error:
        raise BadInputError(
            f"{path}: belongs to the records, but is missing or unreadable; copy it or write the "
            "records again"
        ) from error


def as_yaml(value: object) -> str:
    """Writes a value of a configuration as YAML does, and as the option `--set` takes it."""
    return value if isinstance(value, str) else json.dumps(value)
