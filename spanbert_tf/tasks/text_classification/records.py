"""The configuration and the records of text classification.

`rows.tfrecord` has a packed row for each text or pair of texts, in the order of the file, and
`examples.jsonl` the texts themselves. Importing this module does not import TensorFlow.
"""

import dataclasses
from typing import Annotated, Any, ClassVar, Literal, NotRequired

from annotated_types import Ge, MinLen
from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12

from spanbert_tf.config.finetuning import FinetuningConfig, RowsConfig
from spanbert_tf.config.settings import shipped_names
from spanbert_tf.data.examples import Stored
from spanbert_tf.data.records import TaskManifest, fault_of_counts
from spanbert_tf.tasks.text_classification.glue import GLUE_TASKS
from spanbert_tf.validation import PositiveInt, Section

EXAMPLES_FILE = "examples.jsonl"

# Feature of a row, besides those of every row (`data.records`): id of the class, int64, or the
# number of a regression, float32; 0 without a label.
LABEL = "label"


class ClassificationDataConfig(RowsConfig):
    """What the records must be.

    Attributes:
        sequence_length: positions of a row at most (SpanBERT, appendix B: 128).
        dataset: name of the GLUE task, as in `prepare glue --task`; null for any data.
    """

    sequence_length: PositiveInt = 128
    dataset: str | None = None


class ClassifierConfig(Section):
    """The classification layer on the encoder.

    Attributes:
        pooling: input of the layer: `pooler`, BERT's dense layer over [CLS]; `cls`, the encoder's
            output for [CLS]; `mean`, the mean of its outputs for all tokens. `cls` and `mean` are
            for an encoder whose pooler was never trained.
        initial: first weights of the layer: `random`, or `majority`, which predicts the most
            frequent class of the training records for any text. With training.epochs 0 it stays so.
    """

    pooling: Literal["pooler", "cls", "mean"] = "pooler"
    initial: Literal["random", "majority"] = "random"


class TextClassificationConfig(FinetuningConfig):
    """A fine-tuning run that classifies texts or pairs of texts, or predicts numbers.

    Attributes:
        task: `text_classification`.
        data: what the records must be.
        classifier: the classification layer on the encoder.
    """

    task: Literal["text_classification"] = "text_classification"
    data: ClassificationDataConfig = ClassificationDataConfig()
    classifier: ClassifierConfig = ClassifierConfig()


class ExampleLine(TypedDict):
    """A line of `examples.jsonl`."""

    line: Annotated[int, Ge(1)]  # number of the line in the source file
    text: str
    text_pair: NotRequired[str]
    label: str | float | None  # name of the class, or number of a regression


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextClassificationManifest(TaskManifest):
    """The content of `text_classification_info.json`.

    Attributes:
        labels: names of the classes in the order of their numbers; for a regression, the name of
            the number.
        label_counts: number of rows of each class; empty for a regression.
        is_pair: whether the texts are pairs.
        is_regression: whether labels are numbers.
        dataset: name of the GLUE task, `None` for other data.
        counts: `training_rows` is 0 if the texts have no labels.
    """

    task: ClassVar[str] = "text_classification"
    line_files: ClassVar = {EXAMPLES_FILE: (ExampleLine, "rows")}
    segment_aware_options: ClassVar[str] = "--segment-aware"

    labels: Annotated[list[str], MinLen(1)]
    label_counts: list[Annotated[int, Ge(0)]]
    is_pair: bool
    is_regression: bool
    dataset: str | None = None

    def fault(self) -> str | None:
        """Checks what every manifest does, the data set, and that classes and counts fit."""
        if self.dataset is not None and self.dataset not in GLUE_TASKS:
            return f"dataset: {self.dataset!r} is no task of GLUE"
        classes = [] if self.is_regression else self.labels
        if fault := fault_of_counts(self.label_counts, classes):
            return fault
        if self.is_regression and len(self.labels) != 1:
            return "labels: a regression has one"
        return super().fault()

    def features(self) -> dict[str, Stored]:
        """Returns the feature of the label: id of the class, or the number; 0 without a label."""
        if self.is_regression:
            return {LABEL: Stored("float32")}
        return {LABEL: Stored("int64", below=len(self.labels))}

    @classmethod
    def planned_fields(cls, data: ClassificationDataConfig) -> dict[str, Any]:
        """Returns as many classes as the GLUE task has, or two."""
        labels = ["label 0", "label 1"]
        is_pair = is_regression = False
        if data.dataset is not None:
            facts = GLUE_TASKS[data.dataset]
            labels = [f"label {number}" for number in range(len(facts.labels) or 1)]
            is_pair = facts.is_pair
            is_regression = facts.is_regression
        return {
            "labels": labels,
            "label_counts": [1] * len(labels),
            "is_pair": is_pair,
            "is_regression": is_regression,
        }

    @property
    def shipped_config(self) -> str:
        """Name of the shipped configuration for these records."""
        if self.dataset is not None and self.dataset in shipped_names("finetune"):
            return self.dataset
        return "classification"

    @property
    def small_config(self) -> str | None:
        """Name of the shipped configuration for a small encoder; `None` for sets with their own."""
        return "classification_small" if self.shipped_config == "classification" else None

    @property
    def text_names(self) -> tuple[str, ...]:
        """Names of the texts of an example or a request."""
        return text_names(self.is_pair)


def text_names(is_pair: bool) -> tuple[str, ...]:
    """Returns the names of the texts, as in `transformers`' pipeline `text-classification`."""
    return ("text", "text_pair") if is_pair else ("text",)
