"""Presets of this project and of KerasHub's BERT, in and out."""

import keras_hub
import numpy as np

from spanbert_tf.conversion.checkpoint import (
    BERT_EPSILON,
    ENCODER,
    MASKED_LM_HEAD,
    NEXT_SENTENCE_HEAD,
    POOLER,
    SPAN_BOUNDARY_HEAD,
    SPAN_CLASSIFIERS,
    SPAN_POSITIONS,
    Checkpoint,
    check_epsilon,
)
from spanbert_tf.conversion.parameters import (
    Parameter,
    assign_parameters,
    encoder_parameters,
    masked_lm_parameters,
    next_sentence_parameters,
    pooler_parameters,
    span_boundary_parameters,
    span_classifier_parameters,
)
from spanbert_tf.errors import MismatchError
from spanbert_tf.models import (
    SpanBertBackbone,
    SpanBertPretrainer,
    SpanBertQuestionAnswerer,
    SpanBertQuestionAnswererPreprocessor,
    SpanBertTokenizer,
)
from spanbert_tf.models.task_presets import is_task_preset
from spanbert_tf.presets.golden import encode_rows, golden_rows
from spanbert_tf.presets.loading import load_checked, load_preset
from spanbert_tf.presets.pretraining import (
    add_heads,
    load_encoder_and_head,
    save_pretraining_preset,
)
from spanbert_tf.presets.writing import write_preset
from spanbert_tf.question_answering.settings import AnsweringSettings

_SIZES = (
    "vocabulary_size",
    "num_layers",
    "num_heads",
    "hidden_dim",
    "intermediate_dim",
    "max_sequence_length",
    "num_segments",
    "dropout",
)


def read_keras(path: str, vocabulary: None = None, lowercase: bool | None = None) -> Checkpoint:
    """Reads a preset of a `SpanBertBackbone` or of KerasHub's `BertBackbone`, heads included.

    Args:
        path: what `from_preset` takes.
        vocabulary: must be `None`: a preset has its own.
        lowercase: checked against the preset, if given.

    Raises:
        BadInputError: the preset cannot be used.
        MismatchError: it has SegaBERT's positions, or another casing, or it answers questions and
            reads the passage first, as no other project's classes do.
    """
    if vocabulary:
        raise MismatchError(f"{path}: has a vocabulary of its own; leave out --vocabulary")
    backbone, heads = _load(path)
    tokenizer = load_preset(keras_hub.models.Tokenizer, path)
    sizes = {name: getattr(backbone, name) for name in _SIZES}
    sizes["layer_norm_epsilon"] = getattr(backbone, "layer_norm_epsilon", BERT_EPSILON)
    if getattr(backbone, "position_embeddings", "absolute") != "absolute":
        raise MismatchError(
            f"{path}: has SegaBERT's positions, which no other project's format can hold"
        )
    if lowercase not in (None, tokenizer.lowercase):
        raise MismatchError(f"{path}: its tokenizer has lowercase={tokenizer.lowercase}")
    parameters = encoder_parameters(backbone) + pooler_parameters(backbone) + heads
    arrays = {parameter.name: parameter.to_array() for parameter in parameters}
    return Checkpoint(path, sizes, arrays, tokenizer.get_vocabulary(), tokenizer.lowercase)


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
    backbone, masked_lm_head = load_encoder_and_head(path)
    heads = []
    if masked_lm_head is not None:
        heads += masked_lm_parameters(masked_lm_head, backbone.hidden_dim)
    if isinstance(backbone, SpanBertBackbone):
        heads += _further_head_parameters(add_heads(path, backbone, masked_lm_head)[0])
    return backbone, heads


def _further_head_parameters(pretrainer: SpanBertPretrainer) -> list[Parameter]:
    width, parameters = pretrainer.backbone.hidden_dim, []
    if pretrainer.span_boundary_head is not None:
        parameters += span_boundary_parameters(pretrainer.span_boundary_head, width)
    if pretrainer.next_sentence_head is not None:
        parameters += next_sentence_parameters(pretrainer.next_sentence_head, width)
    return parameters


def write_keras(checkpoint: Checkpoint, directory: str) -> list[str]:
    """Writes a preset of this project.

    Of a `SpanBertQuestionAnswerer` with the question first or of a `SpanBertMaskedLM`, if their
    heads are there, else of the encoder.

    Args:
        checkpoint: what to write.
        directory: of the preset.

    Returns:
        The parts that the preset does not hold.
    """
    found = checkpoint.found_parts()
    tokenizer = SpanBertTokenizer(checkpoint.vocabulary, lowercase=checkpoint.lowercase)
    backbone = SpanBertBackbone(**checkpoint.sizes)
    _assign_encoder(backbone, checkpoint)
    facts = {"Converted from": checkpoint.path}
    if SPAN_CLASSIFIERS in found:
        _write_question_answerer(checkpoint, backbone, tokenizer, directory)
        return [part for part in found if part not in (ENCODER, POOLER, SPAN_CLASSIFIERS)]
    if MASKED_LM_HEAD not in found:
        write_preset(backbone, directory, tokenizer=tokenizer, facts=facts)
        return [part for part in found if part not in (ENCODER, POOLER)]
    table = checkpoint.arrays.get(SPAN_POSITIONS, np.empty((1, 1)))
    pretrainer = SpanBertPretrainer(
        backbone,
        span_boundary=SPAN_BOUNDARY_HEAD in found,
        next_sentence=NEXT_SENTENCE_HEAD in found,
        max_span_targets=table.shape[0],
        span_position_dim=table.shape[1],
    )
    parameters = masked_lm_parameters(pretrainer.masked_lm_head, backbone.hidden_dim)
    assign_parameters(parameters + _further_head_parameters(pretrainer), checkpoint.arrays)
    save_pretraining_preset(
        pretrainer,
        tokenizer,
        directory,
        sequence_length=backbone.max_sequence_length,
        facts=facts,
    )
    return []


def _write_question_answerer(
    checkpoint: Checkpoint,
    backbone: SpanBertBackbone,
    tokenizer: SpanBertTokenizer,
    directory: str,
) -> None:
    preprocessor = SpanBertQuestionAnswererPreprocessor(
        tokenizer, sequence_length=backbone.max_sequence_length, question_first=True
    )
    answerer = SpanBertQuestionAnswerer(backbone, preprocessor)
    parameters = span_classifier_parameters(answerer.span_classifiers, backbone.hidden_dim)
    assign_parameters(parameters, checkpoint.arrays)

    facts = {"Converted from": checkpoint.path}
    write_preset(answerer, directory, write_more=AnsweringSettings().save, facts=facts)


def write_keras_bert(checkpoint: Checkpoint, directory: str) -> list[str]:
    """Writes a preset of KerasHub's own BERT, which loads without this project.

    Prints how far its outputs are from those of the exact encoder: KerasHub's BERT has the tanh
    approximation of the GELU.

    Args:
        checkpoint: what to write.
        directory: of the preset.

    Returns:
        The parts that the preset does not hold.

    Raises:
        MismatchError: LayerNorm's epsilon is not the one that KerasHub's BERT has.
    """
    check_epsilon(checkpoint, "KerasHub's BERT")
    found = checkpoint.found_parts()
    sizes = {name: checkpoint.sizes[name] for name in _SIZES}
    backbone = keras_hub.models.BertBackbone(**sizes)
    _assign_encoder(backbone, checkpoint)
    tokenizer = keras_hub.models.BertTokenizer(
        checkpoint.vocabulary, lowercase=checkpoint.lowercase
    )
    facts = {"Converted from": checkpoint.path}
    if MASKED_LM_HEAD in found:
        length = backbone.max_sequence_length
        preprocessor = keras_hub.models.BertMaskedLMPreprocessor(tokenizer, sequence_length=length)
        masked_lm = keras_hub.models.BertMaskedLM(backbone, preprocessor)
        parameters = masked_lm_parameters(masked_lm.masked_lm_head, backbone.hidden_dim)
        assign_parameters(parameters, checkpoint.arrays)
        write_preset(masked_lm, directory, facts=facts)
    else:
        write_preset(backbone, directory, tokenizer=tokenizer, facts=facts)
    _print_gelu_difference(checkpoint, backbone)
    return [part for part in found if part not in (ENCODER, POOLER, MASKED_LM_HEAD)]


def _assign_encoder(backbone: keras_hub.models.Backbone, checkpoint: Checkpoint) -> None:
    parameters = encoder_parameters(backbone)
    if POOLER in checkpoint.found_parts():
        parameters += pooler_parameters(backbone)
    assign_parameters(parameters, checkpoint.arrays)


def _print_gelu_difference(checkpoint: Checkpoint, tanh_encoder: keras_hub.models.Backbone) -> None:
    exact_encoder = SpanBertBackbone(**checkpoint.sizes)
    _assign_encoder(exact_encoder, checkpoint)
    tokenizer = SpanBertTokenizer(checkpoint.vocabulary, lowercase=checkpoint.lowercase)
    rows = golden_rows(tokenizer)
    pairs = zip(encode_rows(exact_encoder, rows), encode_rows(tanh_encoder, rows), strict=True)
    difference = max(float(np.abs(exact - approximate).max()) for exact, approximate in pairs)
    print(
        f"KerasHub's BERT approximates the GELU: its outputs differ by up to {difference:.1e} from "
        "those of the exact encoder, on three sentences"
    )
