"""Presets of this project and of KerasHub's BERT, read and written."""

import contextlib
import gc
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import keras_hub
import numpy as np

from spanbert_tf import models
from spanbert_tf.conversion.checkpoint import (
    BERT_EPSILON,
    SIZES,
    Checkpoint,
    check_absolute,
    check_epsilon,
    head_dimensions,
    read_tables,
)
from spanbert_tf.conversion.names import (
    COREFERENCE,
    ENCODER,
    MASKED_LM_HEAD,
    NEXT_SENTENCE_HEAD,
    POOLER,
    SPAN_BOUNDARY_HEAD,
    SPAN_CLASSIFIERS,
    TOKEN_CLASSIFIER,
)
from spanbert_tf.conversion.parameters import (
    Parameter,
    assign_part,
    encoder_parameters,
    part_parameters,
)
from spanbert_tf.errors import MismatchError
from spanbert_tf.layers import weights_are_loaded
from spanbert_tf.models import (
    SpanBertBackbone,
    SpanBertCoreferenceResolver,
    SpanBertCoreferenceResolverPreprocessor,
    SpanBertMaskedLM,
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
from spanbert_tf.presets.golden import check_outputs, encode_rows, golden_rows
from spanbert_tf.presets.preset import Preset
from spanbert_tf.presets.pretraining import add_heads, save_pretraining_preset
from spanbert_tf.presets.writing import published_name, write_preset
from spanbert_tf.terminal import print_line
from spanbert_tf.text.vocabulary import Casing, has_accents

# The tasks whose settings a preset holds. The preset of a pretrainer is that of its masked LM.
_TASKS = [
    kind
    for kind in vars(models).values()
    if isinstance(kind, type)
    and issubclass(kind, keras_hub.models.Task)
    and kind is not SpanBertPretrainer
]
_TASK_OF_PART = {
    kind.checkpoint_part: kind for kind in _TASKS if getattr(kind, "checkpoint_part", "")
}
_PARTS = {kind.__name__: part for part, kind in _TASK_OF_PART.items()}
# Arguments of tasks and their preprocessors that a conversion keeps, or that arrays tell.
_CONVERTED = {
    *("backbone", "preprocessor", "tokenizer", "labels", "num_classes", "activation", "dropout"),
    *("question_first", "segment_aware"),
    *("max_segments", "max_span_width", "feature_dim", "ffnn_dim"),
}
_POOLINGS = {"cls": "[CLS] without the pooler", "mean": "the mean of the tokens"}
_WIDTH_OF_LARGE = 1024
# An encoder, the parameters of the heads on it, and further arguments of its `Checkpoint`.
_Read = tuple[keras_hub.models.Backbone, list[Parameter], dict[str, object]]


@contextlib.contextmanager
def read_keras(
    path: str,
    vocabulary: None = None,
    lowercase: bool | None = None,
    strip_accents: bool | None = None,
) -> Iterator[Checkpoint]:
    """Reads a preset of a `SpanBertBackbone` or of KerasHub's `BertBackbone`, heads included."""
    if vocabulary:
        raise MismatchError(f"{path}: has a vocabulary of its own; leave out --vocabulary")
    preset = Preset(path)
    name = preset.head_class
    if name in _PARTS:
        backbone, heads, facts = _read_task(preset, _PARTS[name])
    else:
        backbone, heads, facts = _read_pretrained(preset, name)
    facts["approximates_gelu"] = isinstance(backbone, keras_hub.models.BertBackbone)
    tokenizer = preset.tokenizer
    check_outputs(preset, backbone, tokenizer)
    sizes = {name: getattr(backbone, name) for name in SIZES}
    sizes["layer_norm_epsilon"] = getattr(backbone, "layer_norm_epsilon", BERT_EPSILON)
    sizes["position_embeddings"] = getattr(backbone, "position_embeddings", "absolute")
    for size in read_tables(sizes["position_embeddings"]):
        sizes[size] = getattr(backbone, size)
    if (rate := getattr(backbone, "attention_dropout", None)) is not None:
        sizes["attention_dropout"] = rate
    casing = _casing(tokenizer)
    is_other_case = lowercase not in (None, casing.lowercase)
    if is_other_case or strip_accents not in (None, casing.strip_accents):
        raise MismatchError(f"{path}: its text is {casing.describe()}")
    parameters = encoder_parameters(backbone) + part_parameters(POOLER, backbone) + heads
    arrays = {parameter.name: parameter.lazy() for parameter in parameters}
    yield Checkpoint(path, sizes, arrays, tokenizer.get_vocabulary(), casing, **facts)


def _casing(tokenizer: keras_hub.tokenizers.WordPieceTokenizer) -> Casing:
    """What a tokenizer of ours or of KerasHub does to text."""
    if isinstance(tokenizer, SpanBertTokenizer):
        return tokenizer.casing
    # KerasHub's own presets say that accents are kept where their models were trained without; so
    # there entries with accents tell.
    keeps_accents = not tokenizer.strip_accents and any(
        map(has_accents, tokenizer.get_vocabulary())
    )
    return Casing(tokenizer.lowercase, tokenizer.lowercase and not keeps_accents)


def _read_task(preset: Preset, part: str) -> _Read:
    """The encoder of a task's preset, and its head, unless that was never trained."""
    task = preset.task(_TASK_OF_PART[part])
    if not task.is_head_trained:
        _print_untrained(preset)
        return task.backbone, [], {}
    facts = _facts_of_task(preset, task)
    _print_settings_left_behind(preset, task)
    heads = part_parameters(part, _head_of(task))
    return task.backbone, heads, {**facts, "is_head_trained": True}


def _head_of(task: SpanBertTask) -> keras.layers.Layer:
    """The layer that is the head of a task which other projects have as well."""
    return task.head if task.dense_head is None else getattr(task, task.dense_head.layer)


def _facts_of_task(preset: Preset, task: SpanBertTask) -> dict[str, object]:
    """What a `Checkpoint` tells of a task beside arrays; refuses what no other project has."""
    if isinstance(task, SpanBertQuestionAnswerer) and not task.preprocessor.question_first:
        raise MismatchError(
            f"{preset}: reads the passage first, which other projects' question answerers do "
            "not; fine-tune with records of --question-first"
        )
    if isinstance(task, SpanBertTokenClassifier):
        return {"labels": tuple(task.labels)}
    if not isinstance(task, SpanBertTextClassifier):
        return {}
    if task.activation is not keras.activations.linear:
        raise MismatchError(
            f"{preset}: its classifier has an activation, which other projects' have not; set "
            "activation to null"
        )
    if task.pooling != "pooler":
        raise MismatchError(
            f"{preset}: its classifier reads {_POOLINGS[task.pooling]}, and other projects' read "
            "the pooler; fine-tune with classifier.pooling=pooler"
        )
    return {"labels": tuple(task.labels), "is_pair": task.preprocessor.is_pair}


def _print_settings_left_behind(preset: Preset, task: keras_hub.models.Task) -> None:
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
        print_line(f"{preset}: these settings have no place in other formats: {settings}")


def _read_pretrained(preset: Preset, name: str | None) -> _Read:
    """The encoder of any other preset, with the heads of pre-training, if they were trained."""
    backbone, masked_lm_head = preset.encoder_and_masked_lm_head()
    if name not in (None, SpanBertMaskedLM.__name__, keras_hub.models.BertMaskedLM.__name__):
        print_line(
            f"{preset}: the head of its {name} has no place in other formats: the encoder alone is "
            "converted",
        )
    if masked_lm_head is None:
        if name == SpanBertMaskedLM.__name__:
            _print_untrained(preset)
        return backbone, [], {}
    heads = part_parameters(MASKED_LM_HEAD, masked_lm_head)
    if not isinstance(backbone, SpanBertBackbone):
        return backbone, heads, {}
    pretrainer = add_heads(preset, backbone, masked_lm_head)
    for part in (SPAN_BOUNDARY_HEAD, NEXT_SENTENCE_HEAD):
        head = getattr(pretrainer, part)
        if head is not None:
            heads += part_parameters(part, head)
    return backbone, heads, {"is_head_trained": True}


def refuse_copy(path: str) -> None:
    """Refuses to convert a task's preset to such a preset, which would reset its settings."""
    preset = Preset(path)
    for kind in _TASKS:
        if preset.holds(kind):
            raise MismatchError(
                f"{preset}: is such a preset already, of a {kind.__name__}; copy the directory"
            )


def _print_untrained(preset: Preset) -> None:
    print_line(f"{preset}: its head was never trained: left out")


def write_keras(checkpoint: Checkpoint, directory: str, *, overwrite: bool = False) -> list[str]:
    """Writes a preset of the first task whose head is there, a masked LM or an encoder."""
    found = checkpoint.found_parts()
    for part in (TOKEN_CLASSIFIER, COREFERENCE):
        if part in found:
            check_absolute(checkpoint, f"a preset with its {part}")
    tokenizer = SpanBertTokenizer(checkpoint.vocabulary, **checkpoint.casing._asdict())
    backbone = _encoder_of(checkpoint)
    facts = {"Converted from": published_name(checkpoint.path)}
    for part in found:
        if part in _TASK_OF_PART:
            task = _new_task(part, checkpoint, backbone, tokenizer)
            assign_part(part, _head_of(task), checkpoint)
            _note_trained(task, checkpoint)
            write_preset(task, directory, facts=facts, overwrite=overwrite)
            return [name for name in found if name not in (ENCODER, POOLER, part)]
    if MASKED_LM_HEAD not in found:
        write_preset(backbone, directory, tokenizer=tokenizer, facts=facts, overwrite=overwrite)
        return [part for part in found if part not in (ENCODER, POOLER)]
    sizes = head_dimensions(backbone.hidden_dim, checkpoint.arrays)
    pretrainer = SpanBertPretrainer(
        backbone,
        span_boundary=SPAN_BOUNDARY_HEAD in found,
        next_sentence=NEXT_SENTENCE_HEAD in found,
        max_span_targets=sizes["max_span_targets"] or 1,  # 0: there is no such head
        span_position_dim=sizes["span_position_dim"] or 1,
    )
    for part in (MASKED_LM_HEAD, SPAN_BOUNDARY_HEAD, NEXT_SENTENCE_HEAD):
        if part in found:
            assign_part(part, getattr(pretrainer, part), checkpoint)
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


def _new_task(
    part: str, checkpoint: Checkpoint, backbone: SpanBertBackbone, tokenizer: SpanBertTokenizer
) -> SpanBertTask:
    """The task that a part is the head of, with new weights in the head."""
    length = backbone.max_sequence_length
    segment_aware = backbone.position_embeddings != "absolute"
    if part == SPAN_CLASSIFIERS:
        preprocessor = SpanBertQuestionAnswererPreprocessor(
            tokenizer, sequence_length=length, question_first=True, segment_aware=segment_aware
        )
        return SpanBertQuestionAnswerer(backbone, preprocessor)
    if part == COREFERENCE:
        return _coreference_resolver(checkpoint, backbone, tokenizer)
    settings = {"dropout": backbone.dropout, "labels": checkpoint.labels}
    if part == TOKEN_CLASSIFIER:
        preprocessor = SpanBertTokenClassifierPreprocessor(tokenizer, length)
        return SpanBertTokenClassifier(backbone, preprocessor=preprocessor, **settings)
    preprocessor = SpanBertTextClassifierPreprocessor(
        tokenizer,
        length,
        is_pair=checkpoint.is_pair,
        segment_aware=segment_aware,
    )
    return SpanBertTextClassifier(backbone, len(checkpoint.labels), preprocessor, **settings)


def _coreference_resolver(
    checkpoint: Checkpoint, backbone: SpanBertBackbone, tokenizer: SpanBertTokenizer
) -> SpanBertCoreferenceResolver:
    """A resolver with the original's settings, as far as shapes do not tell them."""
    width = backbone.hidden_dim
    sizes = head_dimensions(width, checkpoint.arrays)
    names = ("max_span_width", "feature_dim", "ffnn_dim", "max_segments")
    settings = {name: sizes[name] for name in names}
    # Of 3 segments SpanBERT large has 512 positions, all others 384 (experiments.conf).
    longest = 512 if width >= _WIDTH_OF_LARGE else 384
    length = {11: 128, 5: 256}.get(settings["max_segments"], longest)
    preprocessor = SpanBertCoreferenceResolverPreprocessor(
        tokenizer, min(length, backbone.max_sequence_length)
    )
    return SpanBertCoreferenceResolver(backbone, preprocessor, **settings)


def write_keras_bert(
    checkpoint: Checkpoint, directory: str, *, overwrite: bool = False
) -> list[str]:
    """Writes a preset of KerasHub's own BERT, which loads without this project."""
    check_epsilon(checkpoint, "KerasHub's BERT")
    check_absolute(checkpoint, "KerasHub's BERT")
    found = checkpoint.found_parts()
    backbone = _stock_encoder_of(checkpoint)
    casing = checkpoint.casing
    tokenizer = keras_hub.models.BertTokenizer(
        checkpoint.vocabulary, lowercase=casing.lowercase, strip_accents=casing.strip_accents
    )
    facts = {"Converted from": published_name(checkpoint.path)}
    if MASKED_LM_HEAD in found:
        length = backbone.max_sequence_length
        preprocessor = keras_hub.models.BertMaskedLMPreprocessor(tokenizer, sequence_length=length)
        with weights_are_loaded():
            masked_lm = keras_hub.models.BertMaskedLM(backbone, preprocessor)
        assign_part(MASKED_LM_HEAD, masked_lm.masked_lm_head, checkpoint)
        write_preset(masked_lm, directory, facts=facts, overwrite=overwrite)
    else:
        write_preset(backbone, directory, tokenizer=tokenizer, facts=facts, overwrite=overwrite)
    return [part for part in found if part not in (ENCODER, POOLER, MASKED_LM_HEAD)]


def _encoder_of(checkpoint: Checkpoint) -> SpanBertBackbone:
    """The encoder; where the checkpoint has no pooler, a new one."""
    return _encoder(SpanBertBackbone, checkpoint, checkpoint.sizes)


def _stock_encoder_of(checkpoint: Checkpoint) -> keras_hub.models.BertBackbone:
    """The same as KerasHub's."""
    sizes = {name: checkpoint.sizes[name] for name in SIZES}
    return _encoder(keras_hub.models.BertBackbone, checkpoint, sizes)


def _encoder(
    kind: type[keras_hub.models.Backbone], checkpoint: Checkpoint, sizes: Mapping[str, Any]
) -> keras_hub.models.Backbone:
    has_pooler = POOLER in checkpoint.found_parts()
    with weights_are_loaded(has_pooler):
        backbone = kind(**sizes)
    assign_part(ENCODER, backbone, checkpoint)
    if has_pooler:
        assign_part(POOLER, backbone, checkpoint)
    return backbone


def print_gelu_difference(checkpoint: Checkpoint, whose: str) -> None:
    """Prints how far an encoder's outputs are from those with the exact GELU.

    Args:
        checkpoint: of the encoder.
        whose: whose encoder approximates it, such as `"KerasHub's BERT"`.
    """
    tokenizer = SpanBertTokenizer(checkpoint.vocabulary, **checkpoint.casing._asdict())
    rows, outputs = golden_rows(tokenizer), []
    for make in (_encoder_of, _stock_encoder_of):
        gc.collect()  # one at a time: models hold themselves in circles
        outputs.append(encode_rows(make(checkpoint), rows))
    pairs = zip(*outputs, strict=True)
    difference = max(float(np.abs(exact - approximate).max()) for exact, approximate in pairs)
    print_line(
        f"{whose} approximates the GELU: its outputs differ by up to {difference:.1e} from those "
        "of the exact encoder, on three sentences"
    )
