"""The configuration of relation extraction."""

from typing import Literal

from spanbert_tf.config.finetuning import FinetuningConfig, RowsConfig
from spanbert_tf.validation import PositiveInt


class RelationDataConfig(RowsConfig):
    """What the records of relations must be.

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
