"""The features of a record and the description of a set of records.

The only place where the names of record features stand. `data_prep` writes them,
`spanbert_tf.data` reads them. Nothing here needs TensorFlow.
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Gt, Lt

from spanbert_tf.errors import BadInputError
from spanbert_tf.files.contents import is_file_name
from spanbert_tf.files.outputs import OutputKind
from spanbert_tf.files.text_files import parse_json
from spanbert_tf.text.vocabulary import Casing

SCHEMA_VERSION = 1
DATASET_INFO_FILE = "dataset_info.json"
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
FIRST_TOKEN_INDEX = "first_token_index"  # int64; index of the block's first token in its sentence
# Pair records only.
SECOND_SEGMENT_START = "second_segment_start"  # int64; position of the second segment
NEXT_SENTENCE_LABEL = "next_sentence_label"  # int64; 0 = the second continues the first, 1 = random
SECOND_FIRST_TOKEN_INDEX = "second_first_token_index"  # int64; as FIRST_TOKEN_INDEX
# Annotated records only: token spans, ends inclusive.
ENTITY_STARTS, ENTITY_ENDS = "entity_starts", "entity_ends"
NOUN_PHRASE_STARTS, NOUN_PHRASE_ENDS = "noun_phrase_starts", "noun_phrase_ends"

# Numbers of speakers, of documents for coreference; those of named ones are larger.
NO_SPEAKER, SPECIAL_SPEAKER = 0, 1

LIST_DTYPE = "uint16"
LIST_MAXIMUM = 2**16 - 1  # larger indices are stored as this; every index table is far smaller

NUM_BLOCKS = {"single": 1, "pair": 2}  # blocks of a packed row: [CLS], and a [SEP] after each
ANNOTATIONS = ("entities", "noun_phrases")
SPLITS = ("train", "validation")
RECORDS = OutputKind(
    "records",
    DATASET_INFO_FILE,
    (
        VOCABULARY_FILE,
        UNIGRAM_COUNTS_FILE,
        *(f"{split}-?????-of-?????.tfrecord" for split in SPLITS),
    ),
)

_Count = Annotated[int, Ge(0), Lt(2**63)]
_ADVICE = "write the records again with this version of spanbert-tf"


def token_id_dtype(vocabulary_size: int) -> str:
    """The unsigned type that stores `token_ids` of a vocabulary of that size."""
    return "uint16" if vocabulary_size <= 2**16 else "uint32"


@dataclasses.dataclass(frozen=True)
class ShardInfo:
    """One TFRecord file.

    Attributes:
        file: name inside the directory, `train-00000-of-00008.tfrecord`.
        split: `"train"` or `"validation"`.
        num_records: records in the file.
        num_tokens: word pieces in the file.
        sha256: hexadecimal digest of the whole file.
        num_bytes: size of the file.
    """

    file: str
    split: Literal["train", "validation"]
    num_records: _Count
    num_tokens: _Count
    sha256: str
    num_bytes: _Count

    __pydantic_config__: ClassVar[dict] = {"extra": "forbid"}


@dataclasses.dataclass(frozen=True)
class DatasetInfo:
    """The content of `dataset_info.json`, which lies beside the shards and `vocab.txt`.

    Attributes:
        vocabulary_hash: `vocabulary_hash` of `vocab.txt`.
        vocabulary_size: entries of the vocabulary.
        lowercase: whether text was lower-cased.
        sequence_length: positions of a packed row, special tokens included.
        sequences: `"single"` or `"pair"`.
        annotations: subset of `ANNOTATIONS`.
        counts: numbers of what was read and written (documents, title_only_documents, …).
        shards: the files of both splits.
        strip_accents: whether accents were stripped.
        unigram_counts_hash: SHA-256 of `unigram_counts.json`, which holds the occurrences of each
            vocabulary entry in the training split.
        repaired_from: `digest` of the records that these are the whole ones of.
    """

    vocabulary_hash: str
    vocabulary_size: Annotated[int, Gt(0), Lt(2**31)]
    lowercase: bool
    sequence_length: Annotated[int, Ge(8), Lt(2**16)]
    sequences: Literal["single", "pair"]
    annotations: tuple[Literal["entities", "noun_phrases"], ...]
    counts: dict[str, _Count]
    shards: tuple[ShardInfo, ...]
    strip_accents: bool
    unigram_counts_hash: str
    repaired_from: str | None = None
    schema_version: int = SCHEMA_VERSION

    __pydantic_config__: ClassVar[dict] = {"extra": "forbid"}

    @property
    def casing(self) -> Casing:
        """What was done to the text."""
        return Casing.of(self.lowercase, self.strip_accents)

    @property
    def num_blocks(self) -> int:
        """Blocks of text in a packed row; it has a special token more."""
        return NUM_BLOCKS[self.sequences]

    @property
    def digest(self) -> str:
        """The same for records of the same content, and for what is left of them when repaired."""
        return self.repaired_from or hashlib.sha256(self.to_json().encode()).hexdigest()

    def num_records(self, split: str) -> int:
        """Records in a split."""
        return sum(shard.num_records for shard in self.shards if shard.split == split)

    def num_tokens(self, split: str) -> int:
        """Word pieces in a split."""
        return sum(shard.num_tokens for shard in self.shards if shard.split == split)

    def files(self, directory: str, split: str) -> list[str]:
        """Paths of the shards of a split, in order of their names."""
        return [
            os.path.join(directory, shard.file) for shard in self.shards if shard.split == split
        ]

    def to_json(self) -> str:
        """The text of `dataset_info.json`."""
        values = dataclasses.asdict(self)
        if self.repaired_from is None:
            del values["repaired_from"]
        lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in values.items()]
        shards = ",\n  ".join(map(json.dumps, values["shards"]))
        lines[list(values).index("shards")] = f'"shards": [\n  {shards}\n ]'
        return "{\n " + ",\n ".join(lines) + "\n}\n"

    @classmethod
    def from_json(cls, text: str, path: str) -> "DatasetInfo":
        """Reads the text of `dataset_info.json`; `path` is named in errors.

        Raises:
            BadInputError: the text is not JSON, no such description, or of another schema version.
        """
        version = parse_json(text, _Versioned, path, _ADVICE).schema_version
        if version != SCHEMA_VERSION:
            raise BadInputError(f"{path}: schema_version is not {SCHEMA_VERSION}; {_ADVICE}")
        info = parse_json(text, cls, path, _ADVICE)
        if info.strip_accents and not info.lowercase:
            raise BadInputError(f"{path}: strip_accents: is true, and text is cased; {_ADVICE}")
        for number, shard in enumerate(info.shards):
            if not is_file_name(shard.file):
                raise BadInputError(f"{path}: shards[{number}].file: is no file's name; {_ADVICE}")
        return info


@dataclasses.dataclass(frozen=True)
class _Versioned:
    """What each version has."""

    schema_version: int


def vocabulary_hash(vocabulary: Sequence[str]) -> str:
    """A hexadecimal digest of the entries and their order."""
    return hashlib.sha256("\n".join(vocabulary).encode()).hexdigest()
