"""Vectors of texts as a `Pipeline`, which any encoder answers.

N texts, S positions of a row, H width.
"""

import os
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from spanbert_tf.models import SpanBertTextEmbedder
from spanbert_tf.serving.exporting import Signatures
from spanbert_tf.tasks.pipeline import Pipeline, clean_texts, text_specs


class TextEmbedding(Pipeline):
    """Texts → a vector of each."""

    name = "text_embedding"
    model_class = SpanBertTextEmbedder
    readme = os.path.join(os.path.dirname(__file__), "text_embedding_readme.md")
    example: Mapping[str, Any] = {"text": "It rains."}

    def signatures(self, model: SpanBertTextEmbedder, top_k: int) -> Signatures:
        """One, of texts, which tells what the encoder computes as well."""

        def embed(text: tf.Tensor) -> dict[str, tf.Tensor]:
            x = model.preprocessor.pack_texts(clean_texts(text))
            return {**self.of_rows(model, x, top_k), "padding_mask": x["padding_mask"]}

        return {"serving_default": (embed, text_specs("text"))}

    def of_rows(
        self, model: SpanBertTextEmbedder, x: dict[str, tf.Tensor], top_k: int
    ) -> dict[str, tf.Tensor]:
        """`embeddings`, float32 [N, H], and what they are made of."""
        encoded = model.backbone(x, training=False)
        embeddings = model.pool(encoded["sequence_output"], x["padding_mask"])
        with tf.init_scope():  # values of weights are not for graphs
            hidden = () if model.backbone.is_pooler_trained else ("pooled_output",)
        found = {"embeddings": embeddings, **encoded}
        return {n: tf.cast(values, tf.float32) for n, values in found.items() if n not in hidden}

    def answer(
        self, model: SpanBertTextEmbedder, item: dict, found: dict, top_k: int
    ) -> dict[str, list[float]]:
        """The text's vector."""
        return {"embedding": found["embeddings"].tolist()}
