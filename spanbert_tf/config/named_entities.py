"""The configuration of named entities."""

from typing import Literal

from spanbert_tf.config.finetuning import FinetuningConfig, PredictionConfig


class EntityPredictionConfig(PredictionConfig):
    """How entities are made of the labels of word pieces.

    Attributes:
        batch_size: rows of a batch.
        aggregation_strategy: as of the `token-classification` pipeline of `transformers`: `simple`
            takes each piece for itself; `first` lets the first piece of a word, which is the
            trained one, speak for the others.
    """

    aggregation_strategy: Literal["simple", "first"] = "simple"


class NamedEntitiesConfig(FinetuningConfig):
    """A fine-tuning run for named entities.

    Attributes:
        task: `named_entities`.
        prediction: how entities are made of labels.
    """

    task: Literal["named_entities"] = "named_entities"
    prediction: EntityPredictionConfig = EntityPredictionConfig()
