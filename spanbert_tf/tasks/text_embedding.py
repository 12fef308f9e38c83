"""Embeddings of texts, the pipeline of encoders.

Dimensions: N texts, S positions of a row, H width.
"""

import os
from collections.abc import Mapping
from typing import Any, ClassVar

import keras_hub
import tensorflow as tf

from spanbert_tf.models import SpanBertTextEmbedder
from spanbert_tf.serving.description import Description
from spanbert_tf.serving.exporting import Signatures
from spanbert_tf.tasks.graphs import text_specs
from spanbert_tf.tasks.pipeline import Pipeline
from spanbert_tf.text.tokenization import clean_texts


class TextEmbedding(Pipeline):
    """Computes a vector for each text."""

    name = "text_embedding"
    cuts_texts = True
    answer_names = ("embeddings", "padding_mask")
    model_class = SpanBertTextEmbedder
    readme = os.path.join(os.path.dirname(__file__), "text_embedding_readme.md")
    example: ClassVar[Mapping[str, Any]] = {"text": "It rains."}

    def signatures(self, model: keras_hub.models.Task, top_k: int) -> Signatures:
        """Returns one signature, which also returns the outputs of the encoder."""

        def embed(text: tf.Tensor) -> dict[str, tf.Tensor]:
            x = model.preprocessor.pack_texts(clean_texts(text))
            return {**self.of_rows(model, x, top_k), "padding_mask": x["padding_mask"]}

        return {"serving_default": (embed, text_specs("text"))}

    def of_rows(
        self, model: keras_hub.models.Task, x: dict[str, tf.Tensor], top_k: int
    ) -> dict[str, tf.Tensor]:
        """Computes `embeddings`, float32 [N, H], and returns the encoder's outputs as well."""
        encoded = model.backbone(x, training=False)
        embeddings = model.pool(encoded["sequence_output"], x["padding_mask"])
        outputs = {"embeddings": embeddings, **encoded}
        with tf.init_scope():  # a graph cannot read the values of weights
            is_pooler_trained = model.backbone.is_pooler_trained
        if not is_pooler_trained:
            del outputs["pooled_output"]
        return {name: tf.cast(values, tf.float32) for name, values in outputs.items()}

    def answer(
        self, description: Description, item: dict, found: dict, top_k: int
    ) -> dict[str, list[float]]:
        """Returns the vector of the text."""
        return {"embedding": found["embeddings"].tolist()}
