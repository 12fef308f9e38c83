"""The classifier of texts and pairs of texts, for GLUE and the like."""

import keras
import keras_hub

from spanbert_tf.layers import bert_initializer
from spanbert_tf.models.span_bert_backbone import SpanBertBackbone
from spanbert_tf.models.span_bert_text_classifier_preprocessor import (
    SpanBertTextClassifierPreprocessor,
)
from spanbert_tf.models.task_presets import check_task_preset


@keras.saving.register_keras_serializable(package="spanbert_tf")
class SpanBertTextClassifier(keras_hub.models.TextClassifier):
    """An encoder with a linear classifier over the pooled [CLS] (SpanBERT, section 4.1, GLUE).

    `from_preset(preset, num_classes=…)` puts a new classifier on the encoder of any preset of this
    project; without `num_classes` the preset must have been saved from a classifier.

    Args:
        backbone: a `SpanBertBackbone`.
        num_classes: int. Logits of an example.
        preprocessor: a `SpanBertTextClassifierPreprocessor`, or `None` for rows that are packed
            already.
        activation: of the logits; none by default.
        dropout: float. Rate before the classifier.

    Raises:
        ValueError: a preprocessor is given, and the backbone reads SegaBERT's indices, which
            strings alone do not tell.

    Example:
    ```python
    classifier = spanbert_tf.models.SpanBertTextClassifier.from_preset("preset/", num_classes=2)
    classifier.fit(["All fine.", "Not at all."], [1, 0], batch_size=2)
    ```
    """

    backbone_cls = SpanBertBackbone
    preprocessor_cls = SpanBertTextClassifierPreprocessor

    def __init__(
        self,
        backbone: SpanBertBackbone,
        num_classes: int,
        preprocessor: SpanBertTextClassifierPreprocessor | None = None,
        activation: str | None = None,
        dropout: float = 0.1,
        **kwargs,
    ) -> None:
        if preprocessor is not None and backbone.position_embeddings != "absolute":
            raise ValueError(
                "Strings do not tell the paragraph and sentence indices of a backbone with "
                f"position_embeddings={backbone.position_embeddings!r}; use preprocessor=None"
            )
        # === Layers ===
        self.backbone = backbone
        self.preprocessor = preprocessor
        self.output_dropout = keras.layers.Dropout(
            dropout, dtype=backbone.dtype_policy, name="classifier_dropout"
        )
        self.output_dense = keras.layers.Dense(
            num_classes,
            activation=activation,
            kernel_initializer=bert_initializer(),
            dtype=backbone.dtype_policy,
            name="logits",
        )

        # === Functional Model ===
        pooled_output = backbone(backbone.input)["pooled_output"]  # [B, H]
        logits = self.output_dense(self.output_dropout(pooled_output))  # [B, num_classes]
        super().__init__(inputs=backbone.input, outputs=logits, **kwargs)

        # === Config ===
        self.num_classes = num_classes
        self.activation = keras.activations.get(activation)
        self.dropout = dropout

    @classmethod
    def from_preset(
        cls, preset: str, load_weights: bool = True, **kwargs
    ) -> "SpanBertTextClassifier":
        """Loads a preset; a new classifier is put on its encoder only where `num_classes` asks.

        Raises:
            BadInputError: no `num_classes`, and the preset was saved from no classifier.
        """
        if load_weights and "num_classes" not in kwargs:
            check_task_preset(preset, cls)
        return super().from_preset(preset, load_weights=load_weights, **kwargs)

    def get_config(self) -> dict:
        config = super().get_config()
        config.update(
            {
                "num_classes": self.num_classes,
                "activation": keras.activations.serialize(self.activation),
                "dropout": self.dropout,
            }
        )
        return config
