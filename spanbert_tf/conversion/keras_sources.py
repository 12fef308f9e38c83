"""Presets of this project and of KerasHub's BERT, read."""

import keras
import keras_hub

from spanbert_tf.conversion.checkpoint import BERT_EPSILON, SIZES, Checkpoint
from spanbert_tf.conversion.coreference import coreference_parameters
from spanbert_tf.conversion.parameters import (
    Parameter,
    encoder_parameters,
    further_head_parameters,
    masked_lm_parameters,
    pooler_parameters,
    span_classifier_parameters,
    text_classifier_parameters,
    token_classifier_parameters,
)
from spanbert_tf.errors import MismatchError
from spanbert_tf.models import (
    SpanBertBackbone,
    SpanBertCoreferenceResolver,
    SpanBertQuestionAnswerer,
    SpanBertTextClassifier,
    SpanBertTokenClassifier,
    SpanBertTokenizer,
)
from spanbert_tf.models.task_presets import is_task_preset
from spanbert_tf.presets.loading import load_checked, load_preset
from spanbert_tf.presets.pretraining import add_heads, load_encoder_and_head
from spanbert_tf.vocabulary import Casing, has_accents


def read_keras(
    path: str,
    vocabulary: None = None,
    lowercase: bool | None = None,
    strip_accents: bool | None = None,
) -> Checkpoint:
    """Reads a preset of a `SpanBertBackbone` or of KerasHub's `BertBackbone`, heads included.

    Args:
        path: what `from_preset` takes.
        vocabulary: must be `None`: a preset has its own.
        lowercase: checked against the preset, if given.
        strip_accents: checked as well.

    Raises:
        BadInputError: the preset cannot be used.
        MismatchError: it has SegaBERT's positions, or another casing, or it answers questions and
            reads the passage first, as no other project's classes do.
    """
    if vocabulary:
        raise MismatchError(f"{path}: has a vocabulary of its own; leave out --vocabulary")
    if is_task_preset(path, SpanBertTextClassifier):
        classifier = _load_text_classifier(path)
        backbone, width = classifier.backbone, classifier.backbone.hidden_dim
        heads = text_classifier_parameters(classifier.output_dense, width)
        labels = {
            "labels": tuple(classifier.labels),
            "is_pair": classifier.preprocessor.is_pair,
        }
    elif is_task_preset(path, SpanBertTokenClassifier):
        classifier = load_checked(SpanBertTokenClassifier, path)
        backbone, width = classifier.backbone, classifier.backbone.hidden_dim
        heads = token_classifier_parameters(classifier.output_dense, width)
        labels = {"labels": tuple(classifier.labels)}
    else:
        (backbone, heads), labels = _load(path), {}
    tokenizer = load_preset(keras_hub.models.Tokenizer, path)
    sizes = {name: getattr(backbone, name) for name in SIZES}
    sizes["layer_norm_epsilon"] = getattr(backbone, "layer_norm_epsilon", BERT_EPSILON)
    if getattr(backbone, "position_embeddings", "absolute") != "absolute":
        raise MismatchError(
            f"{path}: has SegaBERT's positions, which no other project's format can hold"
        )
    casing = _casing(tokenizer)
    if lowercase not in (None, casing.lowercase) or strip_accents not in (
        None,
        casing.strip_accents,
    ):
        raise MismatchError(f"{path}: its text is {casing.describe()}")
    parameters = encoder_parameters(backbone) + pooler_parameters(backbone) + heads
    arrays = {parameter.name: parameter.to_array() for parameter in parameters}
    return Checkpoint(path, sizes, arrays, tokenizer.get_vocabulary(), casing, **labels)


def _casing(tokenizer: keras_hub.tokenizers.WordPieceTokenizer) -> Casing:
    """What a tokenizer of ours or of KerasHub does to text.

    KerasHub's own presets say that accents are kept where their models were trained without; so
    there entries with accents tell.
    """
    if isinstance(tokenizer, SpanBertTokenizer):
        return tokenizer.casing
    keeps_accents = not tokenizer.strip_accents and any(
        map(has_accents, tokenizer.get_vocabulary())
    )
    return Casing(tokenizer.lowercase, tokenizer.lowercase and not keeps_accents)


def _load_text_classifier(path: str) -> SpanBertTextClassifier:
    classifier = load_checked(SpanBertTextClassifier, path)
    if classifier.activation is not keras.activations.linear:
        raise MismatchError(
            f"{path}: its classifier has an activation, which other projects' have not; set "
            "activation to null"
        )
    return classifier


def _load(path: str) -> tuple[keras_hub.models.Backbone, list[Parameter]]:
    """The encoder of a preset, and the parameters of the heads that lie in it."""
    if is_task_preset(path, SpanBertQuestionAnswerer):
        answerer = load_checked(SpanBertQuestionAnswerer, path)
        if not answerer.preprocessor.question_first:
            raise MismatchError(
                f"{path}: reads the passage first, which other projects' question answerers do "
                "not; fine-tune with records of --question-first"
            )
        width = answerer.backbone.hidden_dim
        return answerer.backbone, span_classifier_parameters(answerer.span_classifiers, width)
    if is_task_preset(path, SpanBertCoreferenceResolver):
        resolver = load_checked(SpanBertCoreferenceResolver, path)
        return resolver.backbone, coreference_parameters(resolver.head)
    backbone, masked_lm_head = load_encoder_and_head(path)
    heads = []
    if masked_lm_head is not None:
        heads += masked_lm_parameters(masked_lm_head, backbone.hidden_dim)
    if isinstance(backbone, SpanBertBackbone):
        heads += further_head_parameters(add_heads(path, backbone, masked_lm_head)[0])
    return backbone, heads
