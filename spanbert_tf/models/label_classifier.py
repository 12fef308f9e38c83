"""The base classes of classifiers of rows and of positions, and their layers.

Shapes: B rows, S positions, C classes, H width.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import keras_hub
import numpy as np
import tensorflow as tf
from keras import ops

from spanbert_tf.config.positions import reads_indices
from spanbert_tf.layers import bert_initializer, head_initializer
from spanbert_tf.models.mixins import MixinBase
from spanbert_tf.models.objective import weights_of
from spanbert_tf.models.span_bert_backbone import SpanBertBackbone
from spanbert_tf.models.span_bert_task import SpanBertTask

_UNKNOWN = "y has a label that is none of those of the model"


class NamedClasses(MixinBase):
    """Mixin of models that take names of classes as labels; name it before `SpanBertTask`.

    Attributes:
        labels: names of the classes.
        is_regression: whether the output is a number instead of the logits of classes.
    """

    labels: list[str]
    is_regression = False

    def fit(self, *args: Any, **kwargs) -> keras.callbacks.History:
        """Trains the model, as `TextBatches.fit`; `y` may be numbers or names of classes.

        Args:
            *args: as for `TextBatches.fit`.
            **kwargs: as for `TextBatches.fit`.

        Raises:
            ValueError: a label is not the name of a class.
        """
        with _unknown_labels_named():
            return super().fit(*args, **kwargs)

    def evaluate(self, *args: Any, **kwargs) -> Any:
        """Computes the loss and the metrics, as `keras.Model.evaluate`; takes labels as `fit`."""
        with _unknown_labels_named():
            return super().evaluate(*args, **kwargs)

    def preprocess_samples(self, x: Any, y: Any = None, sample_weight: Any = None) -> Any:
        """Preprocesses a batch, whose labels may be names of classes."""
        return super().preprocess_samples(x, self._prepared_labels(y), sample_weight)

    def _prepared_labels(self, y: Any) -> Any:
        if not _are_names(y):
            return y
        if self.is_regression:
            raise ValueError("y must be numbers: with one class the model is a regression")
        return class_numbers(y, self.labels)


class LabelClassifier(NamedClasses, SpanBertTask):
    """Base class of linear classifiers of rows or positions; name it before KerasHub's class.

    A subclass that reads the pooler classifies rows, others classify positions. Rows or positions
    with a negative label are not trained.

    Args:
        backbone: a `SpanBertBackbone`.
        labels: names of the classes.
        preprocessor: preprocessor of the task, which makes no positions of SegaBERT; or `None`.
        dropout: float. Dropout rate before the classifier.

    Raises:
        ValueError: there are no labels or equal ones; or there is a preprocessor, and the backbone
            has SegaBERT's positions.
    """

    def __init__(
        self,
        backbone: SpanBertBackbone,
        labels: Sequence[str],
        preprocessor: keras_hub.models.Preprocessor | None = None,
        dropout: float = 0.1,
        **kwargs,
    ) -> None:
        labels = checked_labels(labels)
        if preprocessor is not None and reads_indices(backbone.position_embeddings):
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
            kernel_initializer=head_initializer(),
        )

        # === Functional Model ===
        encoded = backbone(backbone.input)
        states = encoded["pooled_output" if self.reads_pooler else "sequence_output"]
        logits = self.output_dense(self.output_dropout(states))  # [B, C] or [B, S, C]
        super().__init__(inputs=backbone.input, outputs=logits, **kwargs)

        # === Config ===
        self.labels = labels
        self.dropout = dropout

    def get_config(self) -> dict:
        return {**super().get_config(), "labels": self.labels, "dropout": self.dropout}

    def begin_at_shares(self, counts: Sequence[int]) -> None:
        """Sets the output bias so that a new classifier predicts the shares of the labels.

        Otherwise training starts with a plateau, on which the classifier learns that most words are
        outside of entities, or that most pairs of entities have no relation.

        Args:
            counts: number of targets of each label. One is added to each count, so no share is 0.
        """
        smoothed = np.array(counts, "float64") + 1.0
        self.output_dense.bias.assign(np.log(smoothed / smoothed.sum()))

    @classmethod
    def asks_for_new_head(cls, arguments: Mapping[str, object]) -> bool:
        """Whether arguments of `from_preset` have `labels`, which need a new classifier.

        Raises:
            ValueError: they have `num_classes`, which KerasHub takes for other classifiers.
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
        """Configures the model for training, as `SpanBertTask.compile`.

        Args:
            optimizer: as for `SpanBertTask.compile`.
            loss: as for `SpanBertTask.compile`.
            metrics: metrics, computed over labelled rows or positions only, and weighted by
                `sample_weight`.
            weighted_metrics: further metrics, computed in the same way.
            **kwargs: as for `SpanBertTask.compile`.
        """
        if isinstance(metrics, str) and metrics == "auto":  # KerasHub's default
            metrics = None
        for given in (metrics, weighted_metrics):
            if isinstance(given, str | dict):
                raise ValueError(f"metrics must be a list for one output. Received: {given!r}")
        own = [*(metrics or ()), *(weighted_metrics or ())]
        super().compile(optimizer, loss, weighted_metrics=own or None, **kwargs)

    def _metric_targets(
        self, y: keras.KerasTensor, sample_weight: keras.KerasTensor | None
    ) -> tuple[keras.KerasTensor, keras.KerasTensor]:
        return ops.maximum(y, 0), self.target_weights(y, sample_weight)

    def target_weights(
        self, y: keras.KerasTensor, sample_weight: keras.KerasTensor | None
    ) -> keras.KerasTensor:
        """Returns the weights of labels, float32 of the shape of `y`; 0 for negative labels."""
        return weights_of(y, sample_weight) * ops.cast(y >= 0, "float32")


def checked_labels(labels: Sequence[str], num_classes: int | None = None) -> list[str]:
    """Checks names of classes, and returns them as a list of strings.

    Args:
        labels: the names, in a sequence of any kind, such as a column of pandas.
        num_classes: number of classes; `None` for any number.

    Raises:
        ValueError: the labels are not `num_classes` different strings, or there are none.
    """
    names = list(labels)
    are_names = not isinstance(labels, str) and all(isinstance(name, str) for name in names)
    are_different = len(set(names)) == len(names)
    is_right_number = num_classes is None or len(names) == num_classes
    if not (names and are_names and are_different and is_right_number):
        number = "" if num_classes is None else f"{num_classes} "
        raise ValueError(f"labels must be {number}different names. Received: {labels!r}")
    return [str(name) for name in names]


def class_numbers(names: Any, labels: Sequence[str]) -> tf.Tensor | tf.RaggedTensor:
    """Converts names of classes to numbers, int32.

    Args:
        names: strings of any shape, ragged or not.
        labels: names of the classes, in the order of their numbers.

    Raises:
        ValueError: a name is not among the labels. A graph raises
            `tf.errors.InvalidArgumentError` instead.
    """
    if isinstance(names, tf.RaggedTensor):
        return names.with_flat_values(class_numbers(names.flat_values, labels))
    names = tf.convert_to_tensor(names, tf.string)
    is_label = names[..., tf.newaxis] == tf.constant(labels)  # […, C]
    is_known = tf.reduce_any(is_label, axis=-1)
    unknown = tf.boolean_mask(names, ~is_known)  # [unknown names]
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
    """Replaces TensorFlow's error for an unknown label by a `ValueError` of one line."""
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        _, found, rest = str(error).partition(_UNKNOWN)
        if not found:
            raise
        raise ValueError(found + rest.splitlines()[0].removesuffix("]")) from error


def _are_names(y: Any) -> bool:
    """Whether labels are names, not numbers."""
    if isinstance(y, tf.Tensor | tf.RaggedTensor):
        return y.dtype == tf.string
    if y is None or isinstance(y, dict):
        return False
    try:
        values = np.asarray(y)
    except ValueError:  # lists of unequal lengths, which TensorFlow refuses later
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
    """Creates the dropout and the dense layer of a classifier of float […, H].

    Args:
        num_classes: C, width of the output.
        dropout: dropout rate.
        dtype: precision of both layers.
        activation: name of the activation of the dense layer; `None` for none.
        kernel_initializer: initializer of the dense layer; `None` for BERT's.
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
