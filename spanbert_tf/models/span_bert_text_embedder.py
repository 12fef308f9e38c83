"""The embedder of texts, a vector for each.

B rows, S positions, H width.
"""

import keras
import keras_hub

from spanbert_tf.models.keras_hub_presets import LoadsPresets, SavesWithoutMixedPrecision
from spanbert_tf.models.preprocessing import check_positions
from spanbert_tf.models.span_bert_backbone import SpanBertBackbone
from spanbert_tf.models.span_bert_text_embedder_preprocessor import SpanBertTextEmbedderPreprocessor
from spanbert_tf.models.text_batches import TextBatches

POOLING_MODES = ("mean", "max", "cls")


@keras.saving.register_keras_serializable(package="spanbert_tf")
class SpanBertTextEmbedder(
    TextBatches, SavesWithoutMixedPrecision, LoadsPresets, keras_hub.models.BertTextEmbedder
):
    """An encoder, and the mean of what it computes for the tokens of a text.

    An encoder that was pre-trained to predict spans is no sentence encoder: its vectors are all
    alike until it is fine-tuned with a loss on pairs of texts (Reimers and Gurevych, 2019), which
    `compile(loss=…)` takes.

    Args:
        backbone: a `SpanBertBackbone`.
        preprocessor: a `SpanBertTextEmbedderPreprocessor`, or `None` for rows that are packed
            already.
        pooling_mode: string. `"mean"` of all tokens, special ones counted, their `"max"`, or that
            of `"cls"`.
        normalize: bool. Whether a vector has length 1.

    Raises:
        ValueError: one of backbone and preprocessor has SegaBERT's positions and the other has not,
            or there is no such mode.

    Example:
    ```python
    embedder = spanbert_tf.models.SpanBertTextEmbedder.from_preset("preset/")
    embedder.encode_text(["All fine.", "Not at all."])  # [2, H]
    ```
    """

    backbone_cls = SpanBertBackbone
    preprocessor_cls = SpanBertTextEmbedderPreprocessor

    def __init__(
        self,
        backbone: SpanBertBackbone,
        preprocessor: SpanBertTextEmbedderPreprocessor | None = None,
        pooling_mode: str = "mean",
        normalize: bool = True,
        **kwargs,
    ) -> None:
        check_positions(backbone, preprocessor)
        if pooling_mode not in POOLING_MODES:
            raise ValueError(
                f"pooling_mode must be one of {', '.join(POOLING_MODES)}. Received: {pooling_mode}"
            )
        # === Config ===
        self.pooling_mode = pooling_mode
        self.normalize = normalize

        # === Layers ===
        self.backbone = backbone
        self.preprocessor = preprocessor

        # === Functional Model ===
        states = backbone(backbone.input)["sequence_output"]  # [B, S, H]
        # Not its own class's, which leaves no way to pool states that are there already.
        keras_hub.models.TextEmbedder.__init__(
            self,
            inputs=backbone.input,
            outputs=self.pool(states, backbone.input["padding_mask"]),
            **kwargs,
        )

    def pool(self, states: keras.KerasTensor, padding_mask: keras.KerasTensor) -> keras.KerasTensor:
        """The vectors of texts, [B, H].

        Args:
            states: what the encoder computed, [B, S, H].
            padding_mask: int [B, S], 1 where there is a token.
        """
        if self.pooling_mode == "cls":
            pooled = states[:, 0]
        elif self.pooling_mode == "max":
            pooled = self._max_pooling(states, padding_mask)
        else:
            pooled = self._mean_pooling(states, padding_mask)
        return self._l2_normalize(pooled) if self.normalize else pooled
