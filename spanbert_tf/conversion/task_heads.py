"""The tasks whose heads other formats store, and what each of them needs to be converted."""

from collections.abc import Callable
from typing import NamedTuple

import keras
import keras_hub

from spanbert_tf.config.positions import reads_indices
from spanbert_tf.conversion.checkpoint import Checkpoint, task_head_sizes
from spanbert_tf.conversion.names import (
    COREFERENCE,
    SPAN_CLASSIFIERS,
    TEXT_CLASSIFIER,
    TOKEN_CLASSIFIER,
)
from spanbert_tf.errors import MismatchError
from spanbert_tf.models import (
    SpanBertBackbone,
    SpanBertCoreferenceResolver,
    SpanBertCoreferenceResolverPreprocessor,
    SpanBertQuestionAnswerer,
    SpanBertQuestionAnswererPreprocessor,
    SpanBertTextClassifier,
    SpanBertTextClassifierPreprocessor,
    SpanBertTokenClassifier,
    SpanBertTokenClassifierPreprocessor,
    SpanBertTokenizer,
)
from spanbert_tf.presets.preset import Preset

_POOLINGS = {"cls": "[CLS] without the pooler", "mean": "the mean of the tokens"}
_WIDTH_OF_LARGE = 1024


def _accept(preset: Preset, task: keras_hub.models.Task) -> None:
    """Accepts every model."""


class TaskHead(NamedTuple):
    """A task whose head is a part of checkpoints.

    Attributes:
        model_class: class of its models.
        new_model: returns a model with a new head, from a checkpoint with the head, the encoder and
            the tokenizer.
        stored: arguments of the model and of its preprocessor that other formats store, or that
            arrays show.
        reads_indices: whether there is such a model with SegaBERT's positions.
        check: raises `MismatchError` for the model of a preset that other projects do not have.
    """

    model_class: type[keras_hub.models.Task]
    new_model: Callable[[Checkpoint, SpanBertBackbone, SpanBertTokenizer], keras_hub.models.Task]
    stored: tuple[str, ...]
    reads_indices: bool
    check: Callable[[Preset, keras_hub.models.Task], None] = _accept


def head_layer(task: keras_hub.models.Task) -> keras.layers.Layer:
    """Returns the layer that is the head of a task."""
    return task.head if task.dense_head is None else getattr(task, task.dense_head.layer)


def _question_answerer(
    checkpoint: Checkpoint, backbone: SpanBertBackbone, tokenizer: SpanBertTokenizer
) -> SpanBertQuestionAnswerer:
    preprocessor = SpanBertQuestionAnswererPreprocessor(
        tokenizer,
        sequence_length=backbone.max_sequence_length,
        question_first=True,
        segment_aware=reads_indices(backbone.position_embeddings),
    )
    return SpanBertQuestionAnswerer(backbone, preprocessor)


def _check_question_answerer(preset: Preset, answerer: keras_hub.models.Task) -> None:
    if not answerer.preprocessor.question_first:
        raise MismatchError(
            f"{preset}: reads the passage first, which other projects' question answerers do "
            "not; fine-tune with records of --question-first"
        )


def _text_classifier(
    checkpoint: Checkpoint, backbone: SpanBertBackbone, tokenizer: SpanBertTokenizer
) -> SpanBertTextClassifier:
    return SpanBertTextClassifier(
        backbone,
        num_classes=len(checkpoint.labels),
        preprocessor=SpanBertTextClassifierPreprocessor(
            tokenizer,
            backbone.max_sequence_length,
            is_pair=checkpoint.is_pair,
            segment_aware=reads_indices(backbone.position_embeddings),
        ),
        dropout=backbone.dropout,
        labels=checkpoint.labels,
    )


def _check_text_classifier(preset: Preset, classifier: SpanBertTextClassifier) -> None:
    if classifier.activation is not keras.activations.linear:
        raise MismatchError(
            f"{preset}: its classifier has an activation, which other projects' do not have; set "
            "activation to null"
        )
    if classifier.pooling != "pooler":
        raise MismatchError(
            f"{preset}: its classifier reads {_POOLINGS[classifier.pooling]}, and other projects' "
            "read the pooler; fine-tune with classifier.pooling=pooler"
        )


def _token_classifier(
    checkpoint: Checkpoint, backbone: SpanBertBackbone, tokenizer: SpanBertTokenizer
) -> SpanBertTokenClassifier:
    return SpanBertTokenClassifier(
        backbone,
        labels=checkpoint.labels,
        preprocessor=SpanBertTokenClassifierPreprocessor(tokenizer, backbone.max_sequence_length),
        dropout=backbone.dropout,
    )


def coreference_resolver(
    checkpoint: Checkpoint, backbone: SpanBertBackbone, tokenizer: SpanBertTokenizer
) -> SpanBertCoreferenceResolver:
    """Builds a resolver. The settings that the arrays do not show are those of the original code.

    The number of segments determines their length (experiments.conf): 11 segments have 128 tokens,
    5 have 256, and 3 have 512 in SpanBERT large and 384 in all other models.
    """
    width = backbone.hidden_dim
    sizes = task_head_sizes(width, checkpoint.arrays)
    longest = 512 if width >= _WIDTH_OF_LARGE else 384
    length = {11: 128, 5: 256}.get(sizes["max_segments"], longest)
    preprocessor = SpanBertCoreferenceResolverPreprocessor(
        tokenizer, min(length, backbone.max_sequence_length)
    )
    return SpanBertCoreferenceResolver(
        backbone,
        preprocessor,
        max_span_width=sizes["max_span_width"],
        feature_dim=sizes["feature_dim"],
        ffnn_dim=sizes["ffnn_dim"],
        max_segments=sizes["max_segments"],
    )


# The part of a checkpoint → the task of which it is the head.
TASK_HEADS: dict[str, TaskHead] = {
    SPAN_CLASSIFIERS: TaskHead(
        SpanBertQuestionAnswerer,
        _question_answerer,
        stored=("question_first", "segment_aware"),
        reads_indices=True,
        check=_check_question_answerer,
    ),
    TEXT_CLASSIFIER: TaskHead(
        SpanBertTextClassifier,
        _text_classifier,
        stored=("labels", "num_classes", "activation", "dropout", "segment_aware"),
        reads_indices=True,
        check=_check_text_classifier,
    ),
    TOKEN_CLASSIFIER: TaskHead(
        SpanBertTokenClassifier,
        _token_classifier,
        stored=("labels", "dropout"),
        reads_indices=False,
    ),
    COREFERENCE: TaskHead(
        SpanBertCoreferenceResolver,
        coreference_resolver,
        stored=("max_segments", "max_span_width", "feature_dim", "ffnn_dim"),
        reads_indices=False,
    ),
}
