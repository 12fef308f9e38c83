"""The masked-language model, which is saved, served and fine-tuned."""

import keras
import keras_hub

from spanbert_tf.layers import masked_lm_head
from spanbert_tf.models.span_bert_backbone import SpanBertBackbone
from spanbert_tf.models.span_bert_masked_lm_preprocessor import SpanBertMaskedLMPreprocessor
from spanbert_tf.models.span_bert_task import SpanBertTask


@keras.saving.register_keras_serializable(package="spanbert_tf")
class SpanBertMaskedLM(SpanBertTask, keras_hub.models.MaskedLM):
    """An encoder with a head that predicts masked word pieces.

    Args:
        backbone: a `SpanBertBackbone`.
        preprocessor: a `SpanBertMaskedLMPreprocessor`, or `None` if the inputs are packed and
            masked rows.

    Example:
    ```python
    masked_lm = spanbert_tf.models.SpanBertMaskedLM.from_preset("run/preset")
    masked_lm.fit(["The quick brown fox jumped.", "I forgot my homework."], batch_size=2)
    ```
    """

    accepts_loss = True
    objective = "masked_lm"
    _learning_rate = 5e-5
    backbone_cls = SpanBertBackbone
    preprocessor_cls = SpanBertMaskedLMPreprocessor

    def __init__(
        self,
        backbone: SpanBertBackbone,
        preprocessor: SpanBertMaskedLMPreprocessor | None = None,
        **kwargs,
    ) -> None:
        # === Layers ===
        self.backbone = backbone
        self.preprocessor = preprocessor
        self.masked_lm_head = masked_lm_head(backbone)

        # === Functional Model ===
        mask_positions = keras.Input(shape=(None,), dtype="int32", name="mask_positions")
        sequence_output = backbone(backbone.input)["sequence_output"]
        super().__init__(
            inputs={**backbone.input, "mask_positions": mask_positions},
            outputs=self.masked_lm_head(sequence_output, mask_positions),
            **kwargs,
        )
