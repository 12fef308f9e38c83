"""The embedder, which computes a vector for each text.

Shapes: B rows, S positions, H width.
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
    """An encoder whose outputs for the tokens of a text are pooled to one vector.

    An encoder that was only pre-trained to predict spans computes similar vectors for all texts.
    Train it first with a loss on pairs of texts (Reimers and Gurevych, 2019), which
    `compile(loss=…)` takes.

    Args:
        backbone: a `SpanBertBackbone`.
        preprocessor: a `SpanBertTextEmbedderPreprocessor`, or `None` if the inputs are packed rows.
        pooling_mode: string. `"mean"` or `"max"` over all tokens, including special tokens, or
            `"cls"` for the output of [CLS].
        normalize: bool. Whether to normalize vectors to length 1.

    Raises:
        ValueError: only one of backbone and preprocessor has SegaBERT's positions, or
            `pooling_mode` is unknown.

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
        # Not the constructor of `BertTextEmbedder`, which pools in itself: `pool` would be unused.
        keras_hub.models.TextEmbedder.__init__(
            self,
            inputs=backbone.input,
            outputs=self.pool(states, backbone.input["padding_mask"]),
            **kwargs,
        )

    def pool(self, states: keras.KerasTensor, padding_mask: keras.KerasTensor) -> keras.KerasTensor:
        """Computes the vectors of texts, [B, H].

        Args:
            states: the outputs of the encoder, [B, S, H].
            padding_mask: int [B, S]; 1 for tokens, 0 for padding.
        """
        if self.pooling_mode == "cls":
            pooled = states[:, 0]
        elif self.pooling_mode == "max":
            pooled = self._max_pooling(states, padding_mask)
        else:
            pooled = self._mean_pooling(states, padding_mask)
        return self._l2_normalize(pooled) if self.normalize else pooled
