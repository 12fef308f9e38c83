"""The configuration and the records of relation extraction.

`rows.tfrecord` has a packed row for each example, and `examples.jsonl` the example itself.

Importing this module does not import TensorFlow.
"""

import dataclasses
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Len
from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12

from spanbert_tf.config.finetuning import FinetuningConfig, RowsConfig
from spanbert_tf.data.examples import Stored
from spanbert_tf.data.manifest import Count
from spanbert_tf.data.records import TaskManifest, fault_of_counts
from spanbert_tf.text.vocabulary import EntityMode
from spanbert_tf.validation import PositiveInt

EXAMPLES_FILE = "examples.jsonl"
LABEL = "label"  # int64 of a row: number of its relation + 1, or 0 where training has none such
_TACRED_RELATIONS = 42
Place = Annotated[list[int], Len(2, 2)]  # first character, and the one after the last


class RelationDataConfig(RowsConfig):
    """What the records must be.

    Attributes:
        sequence_length: positions of a row at most (SpanBERT, appendix B: 128).
        entities: `masked`: a marker in place of each entity; `text`: markers around their words.
    """

    sequence_length: PositiveInt = 128
    entities: Literal["masked", "text"] = "masked"


class RelationExtractionConfig(FinetuningConfig):
    """A fine-tuning run for the relation between two entities.

    Attributes:
        task: `relation_extraction`.
        data: what the records must be.
    """

    task: Literal["relation_extraction"] = "relation_extraction"
    data: RelationDataConfig = RelationDataConfig()


class ExampleLine(TypedDict):
    """A line of `examples.jsonl`."""

    id: str
    text: str
    subject: Place
    object: Place
    subject_type: str
    object_type: str
    relation: str | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class RelationExtractionManifest(TaskManifest):
    """The content of `relation_extraction_info.json`.

    Attributes:
        labels: relations of the training set: first the one that means none, then the others,
            sorted.
        label_counts: number of rows of each relation.
        markers: markers of `make_markers` for the entity types of the training set.
        entities: whether entities are masked, or kept between markers.
        layout: layout of the source, which decides on the scorer.
    """

    task: ClassVar[str] = "relation_extraction"
    line_files: ClassVar = {EXAMPLES_FILE: (ExampleLine, "rows")}

    labels: Annotated[list[str], Len(1)]
    label_counts: list[Count]
    markers: dict[str, str]
    entities: EntityMode
    layout: Literal["tacred", "semeval2010"]

    def features(self) -> dict[str, Stored]:
        """Returns the feature of the relation: its id + 1, or 0 if the training set lacks it."""
        return {LABEL: Stored("int64", below=len(self.labels) + 1)}

    @classmethod
    def planned_fields(cls, data: RelationDataConfig) -> dict[str, Any]:
        """Returns as many relations as TACRED has."""
        labels = [f"label {number}" for number in range(_TACRED_RELATIONS)]
        counts = [1] * len(labels)
        return {"labels": labels, "label_counts": counts, "markers": {}, "layout": "tacred"}

    def fault(self) -> str | None:
        """Checks what every manifest does, and that there is a count for each relation."""
        return fault_of_counts(self.label_counts, self.labels) or super().fault()

    @property
    def shipped_config(self) -> str:
        """Name of the shipped configuration for these records."""
        return {"tacred": "tacred", "semeval2010": "semeval2010_task8"}[self.layout]
