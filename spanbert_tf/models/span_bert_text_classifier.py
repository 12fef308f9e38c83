"""The classifier of texts and pairs of texts, for tasks such as GLUE's.

B rows, C classes.
"""

import os
from collections.abc import Sequence
from typing import Any

import keras
import keras_hub
from keras import ops

from spanbert_tf.files.preset import TASK_CONFIG, PresetFiles
from spanbert_tf.models.label_classifier import NamedClasses, checked_labels, classifier_layers
from spanbert_tf.models.objective import ObjectiveSums, crossentropy_sums
from spanbert_tf.models.preprocessing import check_positions
from spanbert_tf.models.span_bert_backbone import SpanBertBackbone
from spanbert_tf.models.span_bert_task import DenseHead, SpanBertTask
from spanbert_tf.models.span_bert_text_classifier_preprocessor import (
    SpanBertTextClassifierPreprocessor,
)

POOLINGS = ("pooler", "cls", "mean")


@keras.saving.register_keras_serializable(package="spanbert_tf")
class SpanBertTextClassifier(NamedClasses, SpanBertTask, keras_hub.models.TextClassifier):
    """An encoder with a linear classifier over the pooled [CLS] (SpanBERT, section 4.1, GLUE).

    With one class it is a regression: its output is the number, in float32 whatever the precision.

    `from_preset(preset, num_classes=…)`, or `labels=…`, puts a new classifier on the encoder of any
    preset of this project; only one that was saved from a classifier needs neither. As many
    `labels` as that has rename its classes; with another `pooling` than that has the classifier is
    new.

    Args:
        backbone: a `SpanBertBackbone`.
        num_classes: int. Number of classes, C; 1 for a regression. That of `labels` by default.
        preprocessor: a `SpanBertTextClassifierPreprocessor`, or `None` for rows that are packed
            already.
        activation: activation of the logits; the identity by default.
        dropout: float. Rate before the classifier.
        labels: names of the classes in the order of their numbers, of a regression the name of
            its number; `LABEL_0` and so on by default.
        pooling: what the classifier reads. `"pooler"`: BERT's pooler, a dense layer over [CLS];
            `"cls"`: the encoder's output for [CLS]; `"mean"`: the mean of its outputs for all
            tokens, special ones counted. The latter two are for encoders whose pooler nothing has
            trained, such as sentence encoders.

    Raises:
        ValueError: there is no such pooling; `labels` are not `num_classes` different names, or
            neither is given; or one of backbone and preprocessor has SegaBERT's positions and the
            other has not.

    Example:
    ```python
    classifier = spanbert_tf.models.SpanBertTextClassifier.from_preset("preset/", num_classes=2)
    classifier.fit(["All fine.", "Not at all."], [1, 0], batch_size=2)
    ```
    """

    accepts_loss = True
    checkpoint_part = "text_classifier"
    _objective = "classification"
    dense_head = DenseHead("output_dense", "classifier", "SEQ_CLS")
    _learning_rate = 5e-5
    backbone_cls = SpanBertBackbone
    preprocessor_cls = SpanBertTextClassifierPreprocessor

    def __init__(
        self,
        backbone: SpanBertBackbone,
        num_classes: int | None = None,
        preprocessor: SpanBertTextClassifierPreprocessor | None = None,
        activation: str | None = None,
        dropout: float = 0.1,
        labels: Sequence[str] | None = None,
        pooling: str = "pooler",
        **kwargs,
    ) -> None:
        if pooling not in POOLINGS:
            raise ValueError(f"pooling must be one of {', '.join(POOLINGS)}. Received: {pooling!r}")
        labels = _checked_labels(num_classes, labels)
        num_classes = len(labels)
        check_positions(backbone, preprocessor)
        self.is_regression = num_classes == 1
        dtype = backbone.dtype_policy
        if self.is_regression:
            self._objective = "regression"
            self.has_accuracy = False
            dtype = "float32"  # bfloat16 has too few digits for a number
        # === Layers ===
        self.backbone = backbone
        self.preprocessor = preprocessor
        self.output_dropout, self.output_dense = classifier_layers(
            num_classes, dropout, dtype, activation
        )

        # === Functional Model ===
        encoded = backbone(backbone.input)
        if pooling == "pooler":
            pooled = encoded["pooled_output"]  # [B, H]
        elif pooling == "cls":
            pooled = encoded["sequence_output"][:, 0]
        else:
            pooled = _mean(encoded["sequence_output"], backbone.input["padding_mask"])
        logits = self.output_dense(self.output_dropout(pooled))  # [B, C]
        super().__init__(inputs=backbone.input, outputs=logits, **kwargs)

        # === Config ===
        self.num_classes = num_classes
        self.activation = keras.activations.get(activation)
        self.dropout = dropout
        self.labels = labels
        self.pooling = pooling
        self._reads_pooler = pooling == "pooler"

    @classmethod
    def from_preset(
        cls, preset: str | os.PathLike | PresetFiles, load_weights: bool = True, **kwargs
    ) -> "SpanBertTextClassifier":
        """Loads a preset; with `num_classes` or other labels with a new classifier.

        Args:
            preset: directory, another name that KerasHub knows, or a preset.
            load_weights: whether to load weights; all are random otherwise.
            **kwargs: arguments of the class and of its backbone, in place of the preset's.
        """
        preset = PresetFiles.of(preset)
        saved = _saved_arguments(preset)
        if "num_classes" in kwargs:
            kwargs.setdefault("labels", None)
            _checked_labels(kwargs["num_classes"], kwargs["labels"])
        elif kwargs.get("labels") is not None:
            labels = _checked_labels(None, kwargs["labels"])
            if saved.get("num_classes") != len(labels):
                kwargs["num_classes"] = len(labels)
        saved_pooling = saved.get("pooling", "pooler")
        is_other_pooling = kwargs.get("pooling", saved_pooling) != saved_pooling
        if is_other_pooling and "num_classes" in saved and "num_classes" not in kwargs:
            kwargs["num_classes"] = saved["num_classes"]  # so the classifier is a new one
            kwargs.setdefault("labels", saved.get("labels"))
        return super().from_preset(preset, load_weights=load_weights, **kwargs)

    @classmethod
    def from_config(cls, config: dict) -> "SpanBertTextClassifier":
        """A classifier as `get_config` describes it; `labels` must be `num_classes`, or are new.

        (KerasHub's `TextClassifier.from_preset` puts its `num_classes` beside the preset's labels.)
        """
        labels = config.get("labels")
        if labels is not None and config.get("num_classes") not in (None, len(labels)):
            config = {**config, "labels": None}
        return super().from_config(config)

    def compile(self, *args: Any, **kwargs) -> None:
        """Configures the model for training.

        Args:
            *args: as for `keras_hub.models.TextClassifier.compile`.
            **kwargs: as well; a regression has no metric besides its loss by default.
        """
        if self.is_regression and kwargs.get("metrics", "auto") == "auto":
            kwargs["metrics"] = None
        super().compile(*args, **kwargs)

    def train_on_batch(self, x: Any, *args: Any, **kwargs) -> Any:
        """One step, as `keras.Model.train_on_batch`."""
        self._note_inputs(x)
        return super().train_on_batch(x, *args, **kwargs)

    def _note_inputs(self, x: Any) -> None:
        """Predictors and exports take pairs where the model was trained on pairs."""
        if isinstance(self.preprocessor, SpanBertTextClassifierPreprocessor):
            self.preprocessor.is_pair = isinstance(x, tuple) and len(x) == 2

    def objective_sums(
        self,
        x: dict,
        outputs: keras.KerasTensor,
        y: keras.KerasTensor,
        sample_weight: keras.KerasTensor | None = None,
    ) -> dict[str, ObjectiveSums]:
        """Sums over the rows of a batch.

        Args:
            x: as for `call`; unused.
            outputs: what `call` returned.
            y: classes, int [B]; of a regression numbers, float [B].
            sample_weight: float [B]; 1 by default.
        """
        if self.is_regression:
            numbers, found = (ops.reshape(ops.cast(v, "float32"), (-1,)) for v in (y, outputs))
            weights = self._target_weights(numbers, sample_weight)
            sums = ObjectiveSums.of(ops.square(found - numbers), None, weights)
        else:
            is_linear = self.output_dense.activation == keras.activations.linear
            sums = crossentropy_sums(y, outputs, sample_weight, from_logits=is_linear)
        return {self._objective: sums}

    def get_config(self) -> dict:
        return {
            **super().get_config(),
            "num_classes": self.num_classes,
            "activation": keras.activations.serialize(self.activation),
            "dropout": self.dropout,
            "labels": self.labels,
            "pooling": self.pooling,
        }


def _checked_labels(num_classes: int | None, labels: Sequence[str] | None) -> list[str]:
    """The names of the classes; raises `ValueError` where neither of the two is given."""
    if labels is not None:
        return checked_labels(labels, num_classes)
    if num_classes is None:
        raise ValueError("num_classes or labels must be given")
    return [f"LABEL_{index}" for index in range(num_classes)]


def _saved_arguments(preset: PresetFiles) -> dict[str, Any]:
    """The arguments of the text classifier that a preset holds; empty if it holds none."""
    is_classifier = preset.head_class == SpanBertTextClassifier.__name__
    return preset.arguments(TASK_CONFIG) if is_classifier else {}


def _mean(states: keras.KerasTensor, padding_mask: keras.KerasTensor) -> keras.KerasTensor:
    """The mean of the tokens' states [B, S, H] without padding, [B, H]; summed in float32."""
    is_token = ops.expand_dims(ops.cast(padding_mask, "float32"), axis=-1)  # [B, S, 1]
    total = ops.sum(ops.cast(states, "float32") * is_token, axis=1)
    return total / ops.maximum(ops.sum(is_token, axis=1), 1.0)
