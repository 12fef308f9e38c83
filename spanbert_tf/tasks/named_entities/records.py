"""The configuration and the records of named entities.

`rows.tfrecord` has a packed row for each sentence; the word pieces of a sentence that is too long
continue in further rows. `sentences.jsonl` has the sentences themselves.

Importing this module does not import TensorFlow.
"""

import dataclasses
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Len
from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12

from spanbert_tf.config.finetuning import FinetuningConfig, PredictionConfig, RowsConfig
from spanbert_tf.data.examples import Stored
from spanbert_tf.data.manifest import Count
from spanbert_tf.data.records import TaskManifest, fault_of_counts

SENTENCES_FILE = "sentences.jsonl"
# Feature of a row: for each position the id of its label + 1, or 0 without a label.
LABELS = "labels"
LABEL_DTYPE = "uint16"

_CONLL_2003_LABELS = 9
OUTSIDE = "O"
BEGIN = "B-"
INSIDE = "I-"


class EntityPredictionConfig(PredictionConfig):
    """How the labels of word pieces become entities.

    Attributes:
        batch_size: number of rows of a batch.
        aggregation_strategy: `first`: the label of the first piece of a word, which is the trained
            one, counts for the whole word. `simple`: each piece counts by itself. Words are those
            of the training records; if the data mark them, the strategy of the model is `word`,
            and without spaces between words it is `simple`.
    """

    aggregation_strategy: Literal["simple", "first"] = "first"


class NamedEntitiesConfig(FinetuningConfig):
    """A fine-tuning run for named entities.

    Attributes:
        task: `named_entities`.
        prediction: how labels become entities.
    """

    task: Literal["named_entities"] = "named_entities"
    prediction: EntityPredictionConfig = EntityPredictionConfig()


class SentenceLine(TypedDict):
    """A line of `sentences.jsonl`.

    Attributes:
        id: id of the sentence.
        text: its words with the characters between them.
        words: characters of each word, the end exclusive.
        first_pieces: index of the first piece of each word; -1 for a word without pieces.
        num_pieces: number of word pieces of the sentence.
        labels: labels of the words; `None` if they are not known.
    """

    id: str
    text: str
    words: list[Annotated[list[int], Len(2, 2)]]
    first_pieces: list[Annotated[int, Ge(-1)]]
    num_pieces: Annotated[int, Ge(0)]
    labels: list[str] | None


# Whose first pieces have labels; see `NamedEntitiesManifest`.
LabelledWords = Literal["marked", "tokenizer", "pieces"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class NamedEntitiesManifest(TaskManifest):
    """The content of `named_entities_info.json`.

    Attributes:
        labels: `O`, and `B-TYPE` and `I-TYPE` of each type, the types sorted.
        words: the words whose first pieces have labels: those that the data mark, or those of
            BERT's tokenizer. `"pieces"`: each piece has a label, in languages without spaces
            between words.
        label_counts: number of word pieces with each label.
    """

    task: ClassVar[str] = "named_entities"
    line_files: ClassVar = {SENTENCES_FILE: (SentenceLine, "sentences")}
    needed_counts: ClassVar[tuple[str, ...]] = ("rows", "tokens", "sentences")

    labels: Annotated[list[str], Len(1, 2**15)]
    words: LabelledWords
    label_counts: list[Count]

    def features(self) -> dict[str, Stored]:
        """Returns the feature of labels: the id + 1 for each position, or 0 without a label."""
        return {LABELS: Stored(LABEL_DTYPE, below=len(self.labels) + 1)}

    @classmethod
    def planned_fields(cls, data: RowsConfig) -> dict[str, Any]:
        """Returns as many labels as CoNLL-2003 has."""
        labels = [f"label {number}" for number in range(_CONLL_2003_LABELS)]
        return {"labels": labels, "words": "marked", "label_counts": [1] * len(labels)}

    def fault(self) -> str | None:
        """Checks what every manifest does, and that there is a count for each label."""
        return fault_of_counts(self.label_counts, self.labels) or super().fault()

    @property
    def shipped_config(self) -> str:
        """Name of the shipped configuration for these records."""
        return "named_entities"

    @property
    def small_config(self) -> str:
        """Name of the shipped configuration for a small encoder."""
        return "named_entities_small"

    @property
    def scoring_note(self) -> str | None:
        """The number of entities without labels, which make the recall too high; `None` for 0."""
        unscored = self.counts.get("unscored_entities", 0)
        if not unscored:
            return None
        return (
            f"{unscored:,} gold entities are not counted: they begin or end inside a word, or hold "
            "none"
        )
