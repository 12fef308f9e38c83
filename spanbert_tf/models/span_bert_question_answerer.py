"""The extractive question answerer.

B rows, S positions, H width.
"""

import keras
import keras_hub
from keras import ops

from spanbert_tf.layers import bert_initializer
from spanbert_tf.models.span_bert_backbone import SpanBertBackbone
from spanbert_tf.models.span_bert_question_answerer_preprocessor import (
    SpanBertQuestionAnswererPreprocessor,
)
from spanbert_tf.models.task_presets import check_task_preset

_NO_POSITION = -1e9  # in place of the logit of padding


@keras.saving.register_keras_serializable(package="spanbert_tf")
class SpanBertQuestionAnswerer(keras_hub.models.Task):
    """Two linear classifiers over the encoder: where the answer starts, and where it ends.

    A question without an answer starts and ends at [CLS], position 0 (SpanBERT, section 4.1). The
    loss of a row is the mean of the two cross-entropies. `fit` takes the batches of
    `spanbert_tf.data.question_answering_dataset`; `compile()` needs no loss.

    Args:
        backbone: a `SpanBertBackbone`.
        preprocessor: a `SpanBertQuestionAnswererPreprocessor`, or `None` for rows that are packed
            already.

    Returns:
        A dict of `start_logits` and `end_logits`, float32 [B, S]; those of padding are -1e9.

    Example:
    ```python
    answerer = spanbert_tf.models.SpanBertQuestionAnswerer.from_preset("run/preset")
    logits = answerer.predict((["Who sat?"], ["The cat sat on the mat."]))
    ```
    """

    backbone_cls = SpanBertBackbone
    preprocessor_cls = SpanBertQuestionAnswererPreprocessor

    def __init__(
        self,
        backbone: SpanBertBackbone,
        preprocessor: SpanBertQuestionAnswererPreprocessor | None = None,
        **kwargs,
    ) -> None:
        # === Layers ===
        self.backbone = backbone
        self.preprocessor = preprocessor
        backbone.pooled_dense.trainable = False  # it has no gradient here
        self.span_classifiers = keras.layers.Dense(
            2,
            kernel_initializer=bert_initializer(),
            dtype=backbone.dtype_policy,
            name="span_classifiers",
        )

        # === Functional Model ===
        sequence_output = backbone(backbone.input)["sequence_output"]  # [B, S, H]
        logits = ops.cast(self.span_classifiers(sequence_output), "float32")  # [B, S, 2]
        is_token = ops.cast(backbone.input["padding_mask"], "bool")
        outputs = {
            name: ops.where(is_token, logits[:, :, number], _NO_POSITION)
            for number, name in enumerate(("start_logits", "end_logits"))
        }
        super().__init__(inputs=backbone.input, outputs=outputs, **kwargs)

        # === Config ===
        self._feature_names = tuple(backbone.input)

    @classmethod
    def from_preset(
        cls, preset: str, load_weights: bool = True, **kwargs
    ) -> "SpanBertQuestionAnswerer":
        """Loads a preset; with weights, only one that was saved from a question answerer.

        For new classifiers on an encoder, construct the class.

        Raises:
            BadInputError: the preset has no such classifiers.
        """
        if load_weights:
            check_task_preset(preset, cls)
        return super().from_preset(preset, load_weights=load_weights, **kwargs)

    def compile(self, optimizer: str | keras.Optimizer = "auto", **kwargs) -> None:
        """Configures the model for training; the loss is the model's own.

        Args:
            optimizer: `"auto"` (Adam, 3e-5), a name, or a `keras.Optimizer`.
            **kwargs: as for `keras.Model.compile`.
        """
        if optimizer == "auto":
            optimizer = keras.optimizers.Adam(3e-5)
        super().compile(optimizer=optimizer, **kwargs)

    def call(self, inputs: dict, training: bool | None = None, mask: None = None) -> dict:
        """Logits; features that the model does not know are ignored."""
        features = {name: inputs[name] for name in self._feature_names}
        return super().call(features, training=training, mask=mask)

    def compute_loss(
        self,
        x: dict | None = None,
        y: dict | None = None,
        y_pred: dict | None = None,
        sample_weight: None = None,
        training: bool = True,
    ) -> keras.KerasTensor:
        """The mean over the rows of a batch; `y` has `start_positions` and `end_positions` [B]."""
        losses = [
            keras.losses.sparse_categorical_crossentropy(
                y[f"{end}_positions"], y_pred[f"{end}_logits"], from_logits=True
            )
            for end in ("start", "end")
        ]  # [B] each
        return ops.mean(losses[0] + losses[1]) / 2
