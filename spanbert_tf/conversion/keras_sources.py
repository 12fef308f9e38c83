"""Presets of this project and of KerasHub's BERT, read."""

import inspect
from collections.abc import Callable

import keras
import keras_hub

from spanbert_tf.conversion.checkpoint import BERT_EPSILON, SIZES, Checkpoint, read_tables
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
    SpanBertMaskedLM,
    SpanBertQuestionAnswerer,
    SpanBertRelationClassifier,
    SpanBertTextClassifier,
    SpanBertTokenClassifier,
    SpanBertTokenizer,
)
from spanbert_tf.models.keras_hub_presets import task_class
from spanbert_tf.presets.loading import (
    load_checked,
    load_preset,
    without_warning_of_new_heads,
)
from spanbert_tf.presets.pretraining import add_heads, load_encoder_and_head
from spanbert_tf.presets.writing import check_outputs
from spanbert_tf.process.lines import print_line
from spanbert_tf.text.vocabulary import Casing, has_accents


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
        MismatchError: it has another casing, or it answers questions and reads the passage first,
            as no other project's classes do; or it is a SegaBERT of before 0.2.0.
    """
    if vocabulary:
        raise MismatchError(f"{path}: has a vocabulary of its own; leave out --vocabulary")
    name = task_class(path)
    if name in _HEADS:
        backbone, heads, facts = _read_task(path, *_HEADS[name])
    else:
        backbone, heads, facts = _read_pretrained(path, name)
    facts["approximates_gelu"] = isinstance(backbone, keras_hub.models.BertBackbone)
    tokenizer = load_preset(keras_hub.models.Tokenizer, path)
    check_outputs(path, backbone, tokenizer)
    sizes = {name: getattr(backbone, name) for name in SIZES}
    sizes["layer_norm_epsilon"] = getattr(backbone, "layer_norm_epsilon", BERT_EPSILON)
    sizes["position_embeddings"] = getattr(backbone, "position_embeddings", "absolute")
    for size in read_tables(sizes["position_embeddings"]):
        sizes[size] = getattr(backbone, size)
    casing = _casing(tokenizer)
    if lowercase not in (None, casing.lowercase) or strip_accents not in (
        None,
        casing.strip_accents,
    ):
        raise MismatchError(f"{path}: its text is {casing.describe()}")
    parameters = encoder_parameters(backbone) + pooler_parameters(backbone) + heads
    arrays = {parameter.name: parameter.to_array() for parameter in parameters}
    return Checkpoint(path, sizes, arrays, tokenizer.get_vocabulary(), casing, **facts)


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


# Arguments of tasks and their preprocessors that a conversion keeps, or that arrays tell.
_CONVERTED = {
    *("backbone", "preprocessor", "tokenizer", "labels", "num_classes", "activation", "dropout"),
    *("question_first", "segment_aware"),
    *("max_segments", "max_span_width", "feature_dim", "ffnn_dim"),
}
# An encoder, the parameters of the heads on it, and further arguments of its `Checkpoint`.
_Read = tuple[keras_hub.models.Backbone, list[Parameter], dict[str, object]]


def _read_task(
    path: str, kind: type, head_of: Callable[..., tuple[list[Parameter], dict]]
) -> _Read:
    """The encoder of a task's preset, and its head, unless that was never trained."""
    with without_warning_of_new_heads():
        task = load_checked(kind, path)
    if not task.is_head_trained:
        _print_untrained(path)
        return task.backbone, [], {}
    heads, facts = head_of(path, task)
    _print_settings_left_behind(path, task)
    return task.backbone, heads, {**facts, "is_head_trained": True}


def _print_settings_left_behind(path: str, task: keras_hub.models.Task) -> None:
    """Says which settings other formats cannot hold, as far as they are not the defaults."""
    left = []
    for part in (task, task.preprocessor):
        known = inspect.signature(type(part).__init__).parameters
        left += [
            f"{name} {value}"
            for name, value in part.get_config().items()
            if name in known and name not in _CONVERTED and value != known[name].default
        ]
    if left:
        settings = ", ".join(left)
        print_line(f"{path}: these settings have no place in other formats: {settings}")


def _text_head(path: str, classifier: SpanBertTextClassifier) -> tuple[list[Parameter], dict]:
    if classifier.activation is not keras.activations.linear:
        raise MismatchError(
            f"{path}: its classifier has an activation, which other projects' have not; set "
            "activation to null"
        )
    heads = text_classifier_parameters(classifier.output_dense, classifier.backbone.hidden_dim)
    is_pair = classifier.preprocessor.is_pair
    return heads, {"labels": tuple(classifier.labels), "is_pair": is_pair}


def _token_head(path: str, classifier: SpanBertTokenClassifier) -> tuple[list[Parameter], dict]:
    heads = token_classifier_parameters(classifier.output_dense, classifier.backbone.hidden_dim)
    return heads, {"labels": tuple(classifier.labels)}


def _question_head(path: str, answerer: SpanBertQuestionAnswerer) -> tuple[list[Parameter], dict]:
    if not answerer.preprocessor.question_first:
        raise MismatchError(
            f"{path}: reads the passage first, which other projects' question answerers do "
            "not; fine-tune with records of --question-first"
        )
    width = answerer.backbone.hidden_dim
    return span_classifier_parameters(answerer.span_classifiers, width), {}


def _resolver_head(
    path: str, resolver: SpanBertCoreferenceResolver
) -> tuple[list[Parameter], dict]:
    return coreference_parameters(resolver.head), {}


# Name of a class → the class, and what reads the head of a task of it.
_HEADS = {
    kind.__name__: (kind, head_of)
    for kind, head_of in (
        (SpanBertTextClassifier, _text_head),
        (SpanBertTokenClassifier, _token_head),
        (SpanBertQuestionAnswerer, _question_head),
        (SpanBertCoreferenceResolver, _resolver_head),
    )
}


def _read_pretrained(path: str, name: str | None) -> _Read:
    """The encoder of any other preset, with the heads of pre-training, if they were trained."""
    backbone, masked_lm_head = load_encoder_and_head(path)
    if name not in (None, SpanBertMaskedLM.__name__, keras_hub.models.BertMaskedLM.__name__):
        print_line(
            f"{path}: the head of its {name} has no place in other formats: the encoder alone is "
            "converted",
        )
    if masked_lm_head is None:
        if name == SpanBertMaskedLM.__name__:
            _print_untrained(path)
        return backbone, [], {}
    heads = masked_lm_parameters(masked_lm_head, backbone.hidden_dim)
    if not isinstance(backbone, SpanBertBackbone):
        return backbone, heads, {}
    heads += further_head_parameters(add_heads(path, backbone, masked_lm_head)[0])
    return backbone, heads, {"is_head_trained": True}


def refuse_copy(path: str) -> None:
    """Refuses to convert a task's preset to such a preset, which would reset its settings.

    Raises:
        MismatchError: the preset is of one of this project's tasks, the masked LM apart.
    """
    name = task_class(path)
    if name in {*_HEADS, SpanBertRelationClassifier.__name__}:
        raise MismatchError(f"{path}: is such a preset already, of a {name}; copy the directory")


def _print_untrained(path: str) -> None:
    print_line(f"{path}: its head was never trained: left out")
