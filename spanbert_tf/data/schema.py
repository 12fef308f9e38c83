"""The features of a record and the description of a set of records.

The only place where the names of record features stand. `data_prep` writes them,
`spanbert_tf.data` reads them. Nothing here needs TensorFlow.
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Sequence

from spanbert_tf.errors import BadInputError

SCHEMA_VERSION = 1
DATASET_INFO_FILE = "dataset_info.json"
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

LIST_DTYPE = "uint16"
LIST_MAXIMUM = 2**16 - 1  # larger indices are stored as this; every index table is far smaller

SEQUENCE_KINDS = {"single": 2, "pair": 3}  # kind: number of special tokens in the packed row
ANNOTATIONS = ("entities", "noun_phrases")
SPLITS = ("train", "validation")


def token_id_dtype(vocabulary_size: int) -> str:
    """The unsigned type in which `token_ids` of a vocabulary of that size are stored."""
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
    """

    file: str
    split: str
    num_records: int
    num_tokens: int
    sha256: str


@dataclasses.dataclass(frozen=True)
class DatasetInfo:
    """The content of `dataset_info.json`, which lies beside the shards and `vocab.txt`.

    Attributes:
        vocabulary_hash: `vocabulary_hash` of `vocab.txt`.
        vocabulary_size: entries of the vocabulary.
        lowercase: whether text was lower-cased and stripped of accents.
        sequence_length: positions of a packed row, special tokens included.
        sequences: `"single"` or `"pair"`.
        annotations: subset of `ANNOTATIONS`.
        unigram_counts: occurrences of each vocabulary entry in the training split.
        counts: what was read and what became of it (documents, title_only_documents, …).
        shards: the files of both splits.
    """

    vocabulary_hash: str
    vocabulary_size: int
    lowercase: bool
    sequence_length: int
    sequences: str
    annotations: tuple[str, ...]
    unigram_counts: tuple[int, ...]
    counts: dict[str, int]
    shards: tuple[ShardInfo, ...]
    schema_version: int = SCHEMA_VERSION

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
        values = dataclasses.asdict(self).items()
        lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in values]
        return "{\n" + ",\n".join(lines) + "\n}\n"  # a line a field: lists are long

    @classmethod
    def from_json(cls, text: str, path: str) -> "DatasetInfo":
        """Reads the text of `dataset_info.json`; `path` is named in errors.

        Raises:
            BadInputError: the text is not JSON, or not of this schema version.
        """
        try:
            values = json.loads(text)
            if values.get("schema_version") != SCHEMA_VERSION:
                raise BadInputError(
                    f"{path}: schema_version is not {SCHEMA_VERSION}; write the records again "
                    "with this version of spanbert-tf"
                )
            values["shards"] = tuple(ShardInfo(**shard) for shard in values["shards"])
            values["annotations"] = tuple(values["annotations"])
            values["unigram_counts"] = tuple(values["unigram_counts"])
            return cls(**values)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise BadInputError(
                f"{path}: not a description of records ({error}); write the records again"
            ) from error


def vocabulary_hash(vocabulary: Sequence[str]) -> str:
    """A hexadecimal digest of the entries and their order."""
    return hashlib.sha256("\n".join(vocabulary).encode()).hexdigest()
