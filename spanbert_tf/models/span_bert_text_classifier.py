"""The classifier of texts and pairs of texts, for tasks such as GLUE's.

Shapes: B rows, S positions, H width, C classes.
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

    With one class it is a regression, whose output is a number in float32.

    `from_preset` loads a text classifier without further arguments. With `num_classes` or `labels`,
    it puts a new classifier on the encoder of any preset of this project. If a saved classifier has
    the same number of classes, `labels` only renames its classes. A classifier with another
    `pooling` than the saved one is new.

    Args:
        backbone: a `SpanBertBackbone`.
        num_classes: int. Number of classes, C; 1 for a regression. By default the number of
            `labels`.
        preprocessor: a `SpanBertTextClassifierPreprocessor`, or `None` if the inputs are packed
            rows.
        activation: activation of the logits; the identity by default.
        dropout: float. Dropout rate before the classifier.
        labels: names of the classes in the order of their numbers; of a regression, the name of the
            number. By default `LABEL_0` and so on.
        pooling: input of the classifier. `"pooler"`: BERT's pooler, a dense layer over [CLS];
            `"cls"`: the output of the encoder for [CLS]; `"mean"`: the mean of its outputs for all
            tokens, including special tokens. The latter two suit encoders with an untrained pooler,
            such as sentence encoders.

    Raises:
        ValueError: `pooling` is unknown; `labels` are not `num_classes` different names, or neither
            is given; or only one of backbone and preprocessor has SegaBERT's positions.

    Example:
    ```python
    classifier = spanbert_tf.models.SpanBertTextClassifier.from_preset("preset/", num_classes=2)
    classifier.fit(["All fine.", "Not at all."], [1, 0], batch_size=2)
    ```
    """

    accepts_loss = True
    objective = "classification"
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
            self.objective = "regression"
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
        self.reads_pooler = pooling == "pooler"

    @classmethod
    def from_preset(
        cls, preset: str | os.PathLike | PresetFiles, load_weights: bool = True, **kwargs
    ) -> "SpanBertTextClassifier":
        """Loads a preset, with a new classifier where the class docstring says so.

        Args:
            preset: a directory, another name that KerasHub knows, or a preset.
            load_weights: whether to load weights; otherwise all weights are random.
            **kwargs: arguments of the class and of its backbone that override the preset's.
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
            kwargs["num_classes"] = saved["num_classes"]  # makes the classifier a new one
            kwargs.setdefault("labels", saved.get("labels"))
        return super().from_preset(preset, load_weights=load_weights, **kwargs)

    @classmethod
    def from_config(cls, config: dict) -> "SpanBertTextClassifier":
        """Creates a classifier from a configuration.

        Labels whose number differs from `num_classes` are ignored: KerasHub's `from_preset` adds
        the argument `num_classes` to a configuration with the preset's labels.
        """
        labels = config.get("labels")
        if labels is not None and config.get("num_classes") not in (None, len(labels)):
            config = {**config, "labels": None}
        return super().from_config(config)

    def compile(self, *args: Any, **kwargs) -> None:
        """Configures the model for training.

        Args:
            *args: as for `keras_hub.models.TextClassifier.compile`.
            **kwargs: as for `keras_hub.models.TextClassifier.compile`. By default, a regression has
                no metric besides its loss.
        """
        if self.is_regression and kwargs.get("metrics", "auto") == "auto":
            kwargs["metrics"] = None
        super().compile(*args, **kwargs)

    def train_on_batch(self, x: Any, *args: Any, **kwargs) -> Any:
        """Trains on one batch, as `keras.Model.train_on_batch`."""
        self._note_inputs(x)
        return super().train_on_batch(x, *args, **kwargs)

    def _note_inputs(self, x: Any) -> None:
        """Records in the preprocessor whether the model is trained on pairs."""
        if isinstance(self.preprocessor, SpanBertTextClassifierPreprocessor):
            self.preprocessor.is_pair = isinstance(x, tuple) and len(x) == 2

    def objective_sums(
        self,
        x: dict,
        outputs: keras.KerasTensor,
        y: keras.KerasTensor,
        sample_weight: keras.KerasTensor | None = None,
    ) -> dict[str, ObjectiveSums]:
        """Computes the sums over the rows of a batch.

        Args:
            x: the inputs of `call`; unused.
            outputs: the outputs of `call`.
            y: classes, int [B]; for a regression, numbers, float [B].
            sample_weight: float [B]; 1 by default.
        """
        if self.is_regression:
            numbers = ops.reshape(ops.cast(y, "float32"), (-1,))
            predicted = ops.reshape(ops.cast(outputs, "float32"), (-1,))
            weights = self.target_weights(numbers, sample_weight)
            sums = ObjectiveSums.of(ops.square(predicted - numbers), None, weights)
        else:
            is_linear = self.output_dense.activation == keras.activations.linear
            sums = crossentropy_sums(y, outputs, sample_weight, from_logits=is_linear)
        return {self.objective: sums}

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
    """Returns the names of the classes; raises `ValueError` if neither argument is given."""
    if labels is not None:
        return checked_labels(labels, num_classes)
    if num_classes is None:
        raise ValueError("num_classes or labels must be given")
    return [f"LABEL_{index}" for index in range(num_classes)]


def _saved_arguments(preset: PresetFiles) -> dict[str, Any]:
    """Returns the arguments of a preset's text classifier; an empty dict if it has none."""
    is_classifier = preset.head_class == SpanBertTextClassifier.__name__
    return preset.arguments(TASK_CONFIG) if is_classifier else {}


def _mean(states: keras.KerasTensor, padding_mask: keras.KerasTensor) -> keras.KerasTensor:
    """Computes the mean of states [B, S, H] over all tokens without padding: float32 [B, H]."""
    is_token = ops.expand_dims(ops.cast(padding_mask, "float32"), axis=-1)  # [B, S, 1]
    total = ops.sum(ops.cast(states, "float32") * is_token, axis=1)
    return total / ops.maximum(ops.sum(is_token, axis=1), 1.0)
