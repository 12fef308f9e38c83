"""What classifiers share: their layers, and, with a label for each row or position, the rest.

B rows, S positions, C classes, H width.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import keras_hub
import numpy as np
import tensorflow as tf
from keras import ops

from spanbert_tf.layers import bert_initializer
from spanbert_tf.models.mixins import MixinBase
from spanbert_tf.models.objective import weights_of
from spanbert_tf.models.span_bert_backbone import SpanBertBackbone
from spanbert_tf.models.span_bert_task import SpanBertTask

_UNKNOWN = "y has a label that is none of those of the model"


class NamedClasses(MixinBase):
    """Takes names of classes as labels, where numbers are taken; name it before `SpanBertTask`.

    A model has `labels`, the names of its classes, and may have `is_regression`.
    """

    labels: list[str]
    is_regression = False  # whether the output is a number, not the logits of classes

    def fit(self, *args: Any, **kwargs) -> keras.callbacks.History:
        """Trains the model, see `TextBatches.fit`; `y` may have the classes' names.

        Args:
            *args: as there.
            **kwargs: as there.

        Raises:
            ValueError: a label is none of the classes' names.
        """
        with _unknown_labels_named():
            return super().fit(*args, **kwargs)

    def evaluate(self, *args: Any, **kwargs) -> Any:
        """The loss and the metrics, as `keras.Model.evaluate`; see `fit`."""
        with _unknown_labels_named():
            return super().evaluate(*args, **kwargs)

    def preprocess_samples(self, x: Any, y: Any = None, sample_weight: Any = None) -> Any:
        """As of the class, of labels or of their names."""
        return super().preprocess_samples(x, self._prepared_labels(y), sample_weight)

    def _prepared_labels(self, y: Any) -> Any:
        if not _are_names(y):
            return y
        if self.is_regression:
            raise ValueError("y must be numbers: with one class the model is a regression")
        return class_numbers(y, self.labels)


class LabelClassifier(NamedClasses, SpanBertTask):
    """Base of linear classifiers of rows or positions; name it before KerasHub's class.

    One that reads the pooler classifies rows. What has a negative label is not trained. A class may
    begin its output with other values: `_output_initializer`.

    Args:
        backbone: a `SpanBertBackbone`.
        labels: names of the classes.
        preprocessor: of the task, whose rows have no positions of SegaBERT; or `None`.
        dropout: float. Rate before the classifier.

    Raises:
        ValueError: labels are missing or not different, or the backbone reads those positions.
    """

    _output_initializer = staticmethod(bert_initializer)

    def __init__(
        self,
        backbone: SpanBertBackbone,
        labels: Sequence[str],
        preprocessor: keras_hub.models.Preprocessor | None = None,
        dropout: float = 0.1,
        **kwargs,
    ) -> None:
        labels = checked_labels(labels)
        if preprocessor is not None and backbone.position_embeddings != "absolute":
            raise ValueError(
                "The rows of the preprocessor do not tell the positions of a backbone with "
                f"position_embeddings={backbone.position_embeddings!r}; use preprocessor=None"
            )
        # === Layers ===
        self.backbone = backbone
        self.preprocessor = preprocessor
        self.output_dropout, self.output_dense = classifier_layers(
            len(labels),
            dropout,
            backbone.dtype_policy,
            kernel_initializer=self._output_initializer(),
        )

        # === Functional Model ===
        encoded = backbone(backbone.input)
        states = encoded["pooled_output" if self._reads_pooler else "sequence_output"]
        logits = self.output_dense(self.output_dropout(states))  # [B, C] or [B, S, C]
        super().__init__(inputs=backbone.input, outputs=logits, **kwargs)

        # === Config ===
        self.labels = labels
        self.dropout = dropout

    def get_config(self) -> dict:
        return {**super().get_config(), "labels": self.labels, "dropout": self.dropout}

    @classmethod
    def asks_for_new_head(cls, arguments: Mapping[str, object]) -> bool:
        """Whether arguments of `from_preset` have `labels`, which need a new classifier.

        Raises:
            ValueError: they have `num_classes`, for which KerasHub would make one, too.
        """
        if "num_classes" in arguments:
            raise ValueError(f"{cls.__name__} has a class for each of `labels`; give their names")
        return "labels" in arguments

    def compile(
        self,
        optimizer: str | keras.Optimizer = "auto",
        loss: str | keras.losses.Loss | None = "auto",
        *,
        metrics: Sequence | None = None,
        weighted_metrics: Sequence | None = None,
        **kwargs,
    ) -> None:
        """Configures the model for training, see `SpanBertTask.compile`.

        Args:
            optimizer: as there.
            loss: as there.
            metrics: of what has a label, by its weights.
            weighted_metrics: further ones, the same way.
            **kwargs: as there.
        """
        if isinstance(metrics, str) and metrics == "auto":  # KerasHub's default
            metrics = None
        for given in (metrics, weighted_metrics):
            if isinstance(given, str | dict):
                raise ValueError(f"metrics must be a list, of one output. Received: {given!r}")
        own = [*(metrics or ()), *(weighted_metrics or ())]
        super().compile(optimizer, loss, weighted_metrics=own or None, **kwargs)

    def _metric_targets(
        self, y: keras.KerasTensor, sample_weight: keras.KerasTensor | None
    ) -> tuple[keras.KerasTensor, keras.KerasTensor]:
        return ops.maximum(y, 0), self._target_weights(y, sample_weight)

    def _target_weights(
        self, y: keras.KerasTensor, sample_weight: keras.KerasTensor | None
    ) -> keras.KerasTensor:
        """Weights of the labels, float32 as `y`; 0 for negative ones."""
        return weights_of(y, sample_weight) * ops.cast(y >= 0, "float32")


def checked_labels(labels: Sequence[str], num_classes: int | None = None) -> list[str]:
    """The names of classes, a list of NumPy's or pandas' as well.

    Raises:
        ValueError: they are not `num_classes` different strings, or any number of them by default.
    """
    names = list(labels)
    are_names = not isinstance(labels, str) and all(isinstance(name, str) for name in names)
    wanted = len(names) if num_classes is None else num_classes
    if not names or not are_names or not len(set(names)) == len(names) == wanted:
        number = "" if num_classes is None else f"{num_classes} "
        raise ValueError(f"labels must be {number}different names. Received: {labels!r}")
    return list(map(str, names))


def class_numbers(names: Any, labels: Sequence[str]) -> tf.Tensor | tf.RaggedTensor:
    """The numbers of classes, int32, that have these names.

    Args:
        names: strings of any shape, ragged or not.
        labels: the classes' names, in the order of their numbers.

    Raises:
        ValueError: a class has none of these names; in a graph `tf.errors.InvalidArgumentError`.
    """
    if isinstance(names, tf.RaggedTensor):
        return names.with_flat_values(class_numbers(names.flat_values, labels))
    names = tf.convert_to_tensor(names, tf.string)
    is_label = names[..., tf.newaxis] == tf.constant(labels)  # [..., C]
    is_known = tf.reduce_any(is_label, axis=-1)
    unknown = tf.boolean_mask(names, ~is_known)  # [names that are no label]
    problem = f"{_UNKNOWN} ({', '.join(labels)}): "
    if tf.executing_eagerly():
        if tf.size(unknown):
            raise ValueError(problem + unknown[0].numpy().decode("utf-8", "replace"))
        checks = []
    else:
        sentence = tf.strings.join([problem, tf.strings.reduce_join(unknown[:1])])
        checks = [tf.debugging.Assert(tf.reduce_all(is_known), [sentence])]
    with tf.control_dependencies(checks):
        return tf.argmax(tf.cast(is_label, tf.int32), axis=-1, output_type=tf.int32)


@contextlib.contextmanager
def _unknown_labels_named() -> Iterator[None]:
    """Raises `ValueError` where a data set has an unknown label: TensorFlow adds its own lines."""
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        _, found, rest = str(error).partition(_UNKNOWN)
        if not found:
            raise
        raise ValueError(found + rest.splitlines()[0].removesuffix("]")) from error


def _are_names(y: Any) -> bool:
    """Whether labels are strings."""
    if isinstance(y, tf.Tensor | tf.RaggedTensor):
        return y.dtype == tf.string
    if y is None or isinstance(y, dict):
        return False
    try:
        values = np.asarray(y)
    except ValueError:  # lists of unequal lengths, which TensorFlow refuses
        return False
    if values.dtype.kind == "O":
        return values.size > 0 and all(isinstance(value, str | bytes) for value in values.flat)
    return values.dtype.kind in "US"


def classifier_layers(
    num_classes: int,
    dropout: float,
    dtype: str | keras.DTypePolicy,
    activation: str | None = None,
    kernel_initializer: keras.initializers.Initializer | None = None,
) -> tuple[keras.layers.Dropout, keras.layers.Dense]:
    """New layers, to be called one after the other on float [..., H].

    Args:
        num_classes: C, width of the output.
        dropout: rate before the dense layer.
        dtype: precision of both.
        activation: name of the dense layer's activation; `None`: linear.
        kernel_initializer: of the dense layer; `None`: BERT's.
    """
    return (
        keras.layers.Dropout(dropout, dtype=dtype, name="classifier_dropout"),
        keras.layers.Dense(
            num_classes,
            activation=activation,
            kernel_initializer=kernel_initializer or bert_initializer(),
            dtype=dtype,
            name="logits",
        ),
    )
