"""The configuration of the classification of texts."""

from typing import Literal

from spanbert_tf.config.finetuning import FinetuningConfig, RowsConfig
from spanbert_tf.validation import PositiveInt, Section


class ClassificationDataConfig(RowsConfig):
    """What the records of texts with labels must be.

    Attributes:
        sequence_length: positions of a row at most (SpanBERT, appendix B: 128).
        dataset: name of the GLUE task, as in `prepare glue --task`; null: any data.
    """

    sequence_length: PositiveInt = 128
    dataset: str | None = None


class ClassifierConfig(Section):
    """The layer over the pooler.

    Attributes:
        initial: its first weights: `random`, or `majority`, which predicts the most frequent class
            of the training records whatever the text; with training.epochs 0 it goes on so.
    """

    initial: Literal["random", "majority"] = "random"


class TextClassificationConfig(FinetuningConfig):
    """A fine-tuning run for the classification of texts and pairs of texts, or regression.

    Attributes:
        task: `text_classification`.
        data: what the records must be.
        classifier: the layer over the pooler.
    """

    task: Literal["text_classification"] = "text_classification"
    data: ClassificationDataConfig = ClassificationDataConfig()
    classifier: ClassifierConfig = ClassifierConfig()
