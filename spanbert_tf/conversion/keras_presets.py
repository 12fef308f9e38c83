"""Presets of this project and of KerasHub's BERT, written."""

import keras_hub
import numpy as np

from spanbert_tf.conversion.checkpoint import (
    COREFERENCE,
    ENCODER,
    MASKED_LM_HEAD,
    NEXT_SENTENCE_HEAD,
    POOLER,
    SIZES,
    SPAN_BOUNDARY_HEAD,
    SPAN_CLASSIFIERS,
    SPAN_POSITIONS,
    TEXT_CLASSIFIER,
    TOKEN_CLASSIFIER,
    Checkpoint,
    check_absolute,
    check_epsilon,
)
from spanbert_tf.conversion.coreference import coreference_parameters
from spanbert_tf.conversion.coreference_variables import head_settings
from spanbert_tf.conversion.parameters import (
    Parameter,
    assign_parameters,
    encoder_parameters,
    further_head_parameters,
    masked_lm_parameters,
    pooler_parameters,
    span_classifier_parameters,
    text_classifier_parameters,
    token_classifier_parameters,
)
from spanbert_tf.models import (
    SpanBertBackbone,
    SpanBertCoreferenceResolver,
    SpanBertCoreferenceResolverPreprocessor,
    SpanBertPretrainer,
    SpanBertQuestionAnswerer,
    SpanBertQuestionAnswererPreprocessor,
    SpanBertTextClassifier,
    SpanBertTextClassifierPreprocessor,
    SpanBertTokenClassifier,
    SpanBertTokenClassifierPreprocessor,
    SpanBertTokenizer,
)
from spanbert_tf.models.span_bert_task import SpanBertTask
from spanbert_tf.presets.pretraining import save_pretraining_preset
from spanbert_tf.presets.writing import encode_rows, golden_rows, published_name, write_preset
from spanbert_tf.process.lines import print_line

_WIDTH_OF_LARGE = 1024


def write_keras(checkpoint: Checkpoint, directory: str, *, overwrite: bool = False) -> list[str]:
    """Writes a preset of this project.

    Of a `SpanBertQuestionAnswerer` with the question first, of a `SpanBertTextClassifier`, of a
    `SpanBertTokenClassifier`, of a `SpanBertCoreferenceResolver` or of a `SpanBertMaskedLM`, if
    their heads are there, else of the encoder.

    Args:
        checkpoint: what to write.
        directory: directory of the preset.
        overwrite: whether an earlier preset may be replaced.

    Returns:
        The parts that the preset does not hold.

    Raises:
        MismatchError: a task that has no SegaBERT here has SegaBERT's positions.
    """
    found = checkpoint.found_parts()
    for part in (TOKEN_CLASSIFIER, COREFERENCE):
        if part in found:
            check_absolute(checkpoint, f"a preset with its {part}")
    tokenizer = SpanBertTokenizer(checkpoint.vocabulary, **checkpoint.casing._asdict())
    backbone = SpanBertBackbone(**checkpoint.sizes)
    _assign_encoder(backbone, checkpoint)
    facts = {"Converted from": published_name(checkpoint.path)}
    for part, make_task in _TASKS.items():
        if part in found:
            task, parameters = make_task(checkpoint, backbone, tokenizer)
            assign_parameters(parameters, checkpoint.arrays)
            _note_trained(task, checkpoint)
            write_preset(task, directory, facts=facts, overwrite=overwrite)
            return [name for name in found if name not in (ENCODER, POOLER, part)]
    if MASKED_LM_HEAD not in found:
        write_preset(backbone, directory, tokenizer=tokenizer, facts=facts, overwrite=overwrite)
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
    assign_parameters(parameters + further_head_parameters(pretrainer), checkpoint.arrays)
    _note_trained(pretrainer, checkpoint)
    save_pretraining_preset(
        pretrainer,
        tokenizer,
        directory,
        sequence_length=backbone.max_sequence_length,
        facts=facts,
        overwrite=overwrite,
    )
    return []


def _note_trained(task: SpanBertTask, checkpoint: Checkpoint) -> None:
    """Marks a head that the source says is trained, or any of whose biases has moved from 0.

    (Other formats do not say; in a new head all biases are 0.)
    """
    of_encoder = {id(weight) for weight in task.backbone.weights}
    has_moved = any(
        np.any(weight.numpy())
        for weight in task.weights
        if id(weight) not in of_encoder and weight.path.endswith(("bias", "beta"))
    )
    known = checkpoint.is_head_trained
    task.is_head_trained = has_moved if known is None else known


def _question_answerer(
    checkpoint: Checkpoint, backbone: SpanBertBackbone, tokenizer: SpanBertTokenizer
) -> tuple[SpanBertQuestionAnswerer, list[Parameter]]:
    preprocessor = SpanBertQuestionAnswererPreprocessor(
        tokenizer,
        sequence_length=backbone.max_sequence_length,
        question_first=True,
        segment_aware=backbone.position_embeddings != "absolute",
    )
    answerer = SpanBertQuestionAnswerer(backbone, preprocessor)
    return answerer, span_classifier_parameters(answerer.span_classifiers, backbone.hidden_dim)


def _coreference_resolver(
    checkpoint: Checkpoint, backbone: SpanBertBackbone, tokenizer: SpanBertTokenizer
) -> tuple[SpanBertCoreferenceResolver, list[Parameter]]:
    """A resolver with the original's settings, as far as shapes do not tell them."""
    width = backbone.hidden_dim
    settings = head_settings(width, checkpoint.arrays)
    # Of 3 segments SpanBERT large has 512 positions, all others 384 (experiments.conf).
    longest = 512 if width >= _WIDTH_OF_LARGE else 384
    length = {11: 128, 5: 256}.get(settings["max_segments"], longest)
    preprocessor = SpanBertCoreferenceResolverPreprocessor(
        tokenizer, min(length, backbone.max_sequence_length)
    )
    resolver = SpanBertCoreferenceResolver(backbone, preprocessor, **settings)
    return resolver, coreference_parameters(resolver.head)


def _text_classifier(
    checkpoint: Checkpoint, backbone: SpanBertBackbone, tokenizer: SpanBertTokenizer
) -> tuple[SpanBertTextClassifier, list[Parameter]]:
    preprocessor = SpanBertTextClassifierPreprocessor(
        tokenizer,
        backbone.max_sequence_length,
        is_pair=checkpoint.is_pair,
        segment_aware=backbone.position_embeddings != "absolute",
    )
    classifier = SpanBertTextClassifier(
        backbone,
        len(checkpoint.labels),
        preprocessor,
        dropout=backbone.dropout,
        labels=checkpoint.labels,
    )
    return classifier, text_classifier_parameters(classifier.output_dense, backbone.hidden_dim)


def _token_classifier(
    checkpoint: Checkpoint, backbone: SpanBertBackbone, tokenizer: SpanBertTokenizer
) -> tuple[SpanBertTokenClassifier, list[Parameter]]:
    preprocessor = SpanBertTokenClassifierPreprocessor(tokenizer, backbone.max_sequence_length)
    classifier = SpanBertTokenClassifier(
        backbone, checkpoint.labels, preprocessor, dropout=backbone.dropout
    )
    return classifier, token_classifier_parameters(classifier.output_dense, backbone.hidden_dim)


# Part of a checkpoint → the task that it is the head of, and its parameters.
_TASKS = {
    SPAN_CLASSIFIERS: _question_answerer,
    TEXT_CLASSIFIER: _text_classifier,
    TOKEN_CLASSIFIER: _token_classifier,
    COREFERENCE: _coreference_resolver,
}


def write_keras_bert(
    checkpoint: Checkpoint, directory: str, *, overwrite: bool = False
) -> list[str]:
    """Writes a preset of KerasHub's own BERT, which loads without this project.

    KerasHub's BERT has the tanh approximation of the GELU; see `print_gelu_difference`.

    Args:
        checkpoint: what to write.
        directory: directory of the preset.
        overwrite: whether an earlier preset may be replaced.

    Returns:
        The parts that the preset does not hold.

    Raises:
        MismatchError: LayerNorm's epsilon is not the one that KerasHub's BERT has, or it has
            SegaBERT's positions.
    """
    check_epsilon(checkpoint, "KerasHub's BERT")
    check_absolute(checkpoint, "KerasHub's BERT")
    found = checkpoint.found_parts()
    backbone = _stock_backbone(checkpoint)
    _assign_encoder(backbone, checkpoint)
    tokenizer = keras_hub.models.BertTokenizer(checkpoint.vocabulary, **checkpoint.casing._asdict())
    facts = {"Converted from": published_name(checkpoint.path)}
    if MASKED_LM_HEAD in found:
        length = backbone.max_sequence_length
        preprocessor = keras_hub.models.BertMaskedLMPreprocessor(tokenizer, sequence_length=length)
        masked_lm = keras_hub.models.BertMaskedLM(backbone, preprocessor)
        parameters = masked_lm_parameters(masked_lm.masked_lm_head, backbone.hidden_dim)
        assign_parameters(parameters, checkpoint.arrays)
        write_preset(masked_lm, directory, facts=facts, overwrite=overwrite)
    else:
        write_preset(backbone, directory, tokenizer=tokenizer, facts=facts, overwrite=overwrite)
    return [part for part in found if part not in (ENCODER, POOLER, MASKED_LM_HEAD)]


def _assign_encoder(backbone: keras_hub.models.Backbone, checkpoint: Checkpoint) -> None:
    parameters = encoder_parameters(backbone)
    if POOLER in checkpoint.found_parts():
        parameters += pooler_parameters(backbone)
    assign_parameters(parameters, checkpoint.arrays)


def print_gelu_difference(checkpoint: Checkpoint) -> None:
    """Prints how far the outputs of KerasHub's BERT are from those of the exact encoder.

    Args:
        checkpoint: the weights of both.
    """
    exact_encoder = SpanBertBackbone(**checkpoint.sizes)
    tanh_encoder = _stock_backbone(checkpoint)
    for encoder in (exact_encoder, tanh_encoder):
        _assign_encoder(encoder, checkpoint)
    tokenizer = SpanBertTokenizer(checkpoint.vocabulary, **checkpoint.casing._asdict())
    rows = golden_rows(tokenizer)
    pairs = zip(encode_rows(exact_encoder, rows), encode_rows(tanh_encoder, rows), strict=True)
    difference = max(float(np.abs(exact - approximate).max()) for exact, approximate in pairs)
    print_line(
        f"KerasHub's BERT approximates the GELU: its outputs differ by up to {difference:.1e} from "
        "those of the exact encoder, on three sentences"
    )


def _stock_backbone(checkpoint: Checkpoint) -> keras_hub.models.BertBackbone:
    sizes = {name: checkpoint.sizes[name] for name in SIZES}
    return keras_hub.models.BertBackbone(**sizes)
