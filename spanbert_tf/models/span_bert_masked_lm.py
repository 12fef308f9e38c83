"""The masked-language model, as it is saved, served and fine-tuned."""

import keras
import keras_hub
from keras import ops

from spanbert_tf.layers import masked_lm_head
from spanbert_tf.models.span_bert_backbone import SpanBertBackbone
from spanbert_tf.models.span_bert_masked_lm_preprocessor import SpanBertMaskedLMPreprocessor
from spanbert_tf.models.task_presets import check_task_preset


@keras.saving.register_keras_serializable(package="spanbert_tf")
class SpanBertMaskedLM(keras_hub.models.MaskedLM):
    """An encoder with the head of the masked-language model.

    Args:
        backbone: a `SpanBertBackbone`.
        preprocessor: a `SpanBertMaskedLMPreprocessor`, or `None` for inputs that are packed and
            masked already.

    Example:
    ```python
    masked_lm = spanbert_tf.models.SpanBertMaskedLM.from_preset("run/preset")
    masked_lm.fit(["The quick brown fox jumped.", "I forgot my homework."], batch_size=2)
    ```
    """

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

    @property
    def is_head_trained(self) -> bool:
        """Whether the head differs from a new one, whose biases are all 0.

        The first step of training moves each of them, so weights tell, however they were loaded.
        """
        biases = [w for w in self.masked_lm_head.weights if w.path.endswith("output_bias")]
        return any(bool(ops.any(ops.not_equal(bias, 0))) for bias in biases)

    @classmethod
    def from_preset(cls, preset: str, load_weights: bool = True, **kwargs) -> "SpanBertMaskedLM":
        """Loads a preset; with weights, only one that has those of the head.

        For a new head on an encoder, construct the class. (`keras_hub.models.MaskedLM.from_preset`
        returns this class too, but passes this check by.)

        Raises:
            BadInputError: the preset has no masked-language-model head.
        """
        if load_weights:
            check_task_preset(preset, cls)
        return super().from_preset(preset, load_weights=load_weights, **kwargs)
