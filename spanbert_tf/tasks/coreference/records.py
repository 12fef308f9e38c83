"""The configuration and the records of coreference resolution.

`rows.tfrecord` has a record for each document, `rows.lengths.npy` the numbers of their positions,
and `documents.jsonl` their words. Importing this module does not import TensorFlow.
"""

import dataclasses
from typing import Annotated, Any, ClassVar, Literal, NotRequired

from annotated_types import Gt, Lt
from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12

from spanbert_tf.config.coreference import ResolverConfig
from spanbert_tf.config.finetuning import FinetuningConfig, PredictionConfig, RowsConfig
from spanbert_tf.data.examples import Stored
from spanbert_tf.data.manifest import NO_SPEAKER as NO_SPEAKER
from spanbert_tf.data.manifest import SPECIAL_SPEAKER as SPECIAL_SPEAKER
from spanbert_tf.data.manifest import token_id_dtype
from spanbert_tf.data.records import ROW_TOKEN_IDS, TaskManifest
from spanbert_tf.validation import PositiveInt

DOCUMENTS_FILE = "documents.jsonl"
Span = tuple[int, int]  # first and last word, inclusive
Clusters = list[list[Span]]

# Features of a document, besides `token_ids`: lists of little-endian unsigned integers, one number
# for each position, including special tokens.
SENTENCES = "sentence_indices"
WORDS = "word_indices"
SPEAKERS = "speaker_ids"
IS_SPECIAL = "is_special"
SEGMENT_LENGTHS = "segment_lengths"  # one for each segment
MENTION_STARTS = "mention_starts"  # positions
MENTION_ENDS = "mention_ends"  # positions, inclusive
MENTION_CLUSTERS = "mention_clusters"  # from 1
GENRE = "genre"  # int64
NUMBER_DTYPE = "uint32"
FLAG_DTYPE = "uint8"

# The genres of the original `independent.py`. Any other genre counts as the first.
GENRES = ("bc", "bn", "mz", "nw", "pt", "tc", "wb")


class DocumentDataConfig(RowsConfig):
    """What the records must be.

    Attributes:
        sequence_length: largest number of positions of a segment.
        segment_aware: false: documents in segments do not have SegaBERT's positions.
        max_training_segments: number of segments of a document that are trained at once; null for
            any.
    """

    sequence_length: PositiveInt = 384
    max_training_segments: PositiveInt | None = None

    @property
    def num_training_segments(self) -> int:
        """`max_training_segments`, or the number of the original code."""
        return self.max_training_segments or default_training_segments(self.sequence_length)

    @property
    def num_positions(self) -> int:
        """Number of positions of all segments that are trained at once."""
        return self.num_training_segments * self.sequence_length


class ClusterConfig(PredictionConfig):
    """How clusters are predicted.

    Attributes:
        batch_size: largest number of documents of a batch; there are fewer long ones.
        singletons: whether a mention without another mention of the entity is predicted as well.
    """

    singletons: bool = False


class CoreferenceConfig(FinetuningConfig):
    """A fine-tuning run for coreference resolution.

    Attributes:
        task: `coreference`.
        data: what the records must be.
        resolver: the layers over the encoder.
        prediction: how clusters are predicted.
    """

    task: Literal["coreference"] = "coreference"
    data: DocumentDataConfig = DocumentDataConfig()
    resolver: ResolverConfig = ResolverConfig()
    prediction: ClusterConfig = ClusterConfig()


class DocumentLine(TypedDict):
    """A line of `documents.jsonl`."""

    name: str
    part: int
    words: list[str]
    sentence_starts: list[int]
    speakers: list[str]
    clusters: list[list[list[int]]]
    conllu: NotRequired[str]  # its lines in a file of CorefUD


@dataclasses.dataclass(frozen=True, kw_only=True)
class CoreferenceManifest(TaskManifest):
    """The content of `coreference_info.json`; `sequence_length` is that of a segment.

    Attributes:
        max_training_segments: number of segments of a document that are trained at once.
        counts: rows are documents.
    """

    task: ClassVar[str] = "coreference"
    line_files: ClassVar = {DOCUMENTS_FILE: (DocumentLine, "rows")}
    needed_counts: ClassVar[tuple[str, ...]] = ("rows", "tokens", "segments")

    max_training_segments: Annotated[int, Gt(0), Lt(2**31)]

    def stored(self) -> dict[str, Stored]:
        """Returns the features of a document, for the positions of all its segments."""
        flags = Stored(FLAG_DTYPE, like=ROW_TOKEN_IDS)
        numbers = Stored(NUMBER_DTYPE, like=ROW_TOKEN_IDS, below=2**31)  # read as int32
        mentions = Stored(NUMBER_DTYPE, like=MENTION_STARTS, below=ROW_TOKEN_IDS)
        return {
            ROW_TOKEN_IDS: Stored(token_id_dtype(self.vocabulary_size), below=self.vocabulary_size),
            GENRE: Stored("int64", below=len(GENRES)),
            IS_SPECIAL: flags,
            SEGMENT_LENGTHS: Stored(
                NUMBER_DTYPE, below=self.sequence_length + 1, adds_up_to=ROW_TOKEN_IDS
            ),
            SENTENCES: numbers,
            WORDS: numbers,
            SPEAKERS: numbers,
            MENTION_STARTS: mentions,
            MENTION_ENDS: mentions,
            MENTION_CLUSTERS: mentions._replace(below=2**31),
        }

    @classmethod
    def planned_fields(cls, data: DocumentDataConfig) -> dict[str, Any]:
        """Returns the number of segments of the configuration, or of the original code."""
        return {"max_training_segments": data.num_training_segments}

    def describe_rows(self) -> str:
        """Describes the segments, and how many are trained at once."""
        return (
            f"coreference in segments of up to {self.sequence_length}, "
            f"{self.max_training_segments} trained at once"
        )

    @property
    def shipped_config(self) -> str:
        """Name of the shipped configuration for these records."""
        return "coreference_spanbert_base"

    @property
    def small_config(self) -> str:
        """Name of the shipped configuration for a small encoder."""
        return "coreference_small"

    @property
    def num_training_rows(self) -> int:
        """Number of documents to train on: 0 if no clusters are known."""
        return self.num_rows if self.is_labelled else 0

    @property
    def is_labelled(self) -> bool:
        """Whether any document has clusters. Without clusters all scores would be 0."""
        return self.counts.get("mentions", 1) > 0


def gold_clusters(line: DocumentLine) -> Clusters:
    """Returns the clusters of a line, with spans as tuples."""
    return [[(start, end) for start, end in spans] for spans in line["clusters"]]


def default_training_segments(sequence_length: int) -> int:
    """Returns the number of segments that are trained at once, by their length.

    It is that of the original `experiments.conf`; for other lengths, the number with as much text.
    """
    return {128: 11, 256: 5, 384: 3, 512: 3}.get(sequence_length, max(3, 1408 // sequence_length))


def genre_id(name: str) -> int:
    """Returns the index of a document's genre; the first two letters of its name are the genre."""
    genre = name[:2]
    return GENRES.index(genre) if genre in GENRES else 0
