"""Vectors of texts as a `Pipeline`, which any encoder answers.

N texts, S positions of a row, H width.
"""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from spanbert_tf.models import SpanBertTextEmbedder
from spanbert_tf.serving.exporting import Signatures
from spanbert_tf.serving.server_files import Manual
from spanbert_tf.tasks.pipeline import Pipeline, clean_texts, text_specs

_SIGNATURES = """Signature `serving_default`: `text` (string [texts]) → {outputs};
and `padding_mask` (int32 [texts, positions]), 1 where a row has a token, [CLS] first."""
_DESCRIPTION = """Makes vectors of texts. An encoder that was pre-trained on spans is no sentence
encoder: its vectors compare texts only after it was fine-tuned to."""


class TextEmbedding(Pipeline):
    """Texts → a vector of each."""

    name = "text_embedding"
    model_class = SpanBertTextEmbedder
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

    def describe_rows(self, model: SpanBertTextEmbedder) -> str:
        """With the pooler's output where it was trained."""
        width = model.backbone.hidden_dim
        pooled = f", `pooled_output` [rows, {width}]" if model.backbone.is_pooler_trained else ""
        return (
            f"`embeddings` (float32 [rows, {width}]: {model.pooling_mode}"
            f"{', length 1' if model.normalize else ''}){pooled}\n"
            f"and `sequence_output` [rows, positions, {width}]"
        )

    def manual(self, model: SpanBertTextEmbedder) -> Manual:
        """What the export's README says."""
        return Manual(
            description=_DESCRIPTION,
            output="embeddings",
            output_shape=f"[texts, {model.backbone.hidden_dim}]",
            signatures=_SIGNATURES.format(outputs=self.describe_rows(model)),
        )

    def answer(
        self, model: SpanBertTextEmbedder, item: dict, found: dict, top_k: int
    ) -> dict[str, list[float]]:
        """The text's vector."""
        return {"embedding": found["embeddings"].tolist()}
