"""The embedder of texts, a vector for each.

B rows, H width.
"""

import keras
import keras_hub

from spanbert_tf.models.keras_hub_presets import LoadsPresets, SavesWithoutMixedPrecision
from spanbert_tf.models.preprocessing import check_positions
from spanbert_tf.models.span_bert_backbone import SpanBertBackbone
from spanbert_tf.models.span_bert_text_embedder_preprocessor import SpanBertTextEmbedderPreprocessor


@keras.saving.register_keras_serializable(package="spanbert_tf")
class SpanBertTextEmbedder(
    SavesWithoutMixedPrecision, LoadsPresets, keras_hub.models.BertTextEmbedder
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
        ValueError: one of backbone and preprocessor has SegaBERT's positions and the other has not.

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
        super().__init__(backbone, preprocessor, pooling_mode, normalize, **kwargs)
