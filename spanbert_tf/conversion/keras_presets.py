"""Presets of this project and of KerasHub's BERT, read and written."""

import contextlib
import gc
import inspect
from collections.abc import Iterator
from typing import Any, NamedTuple

import keras_hub
import numpy as np

from spanbert_tf import models
from spanbert_tf.conversion.checkpoint import (
    BERT_EPSILON,
    SIZES,
    Checkpoint,
    Sizes,
    check_absolute,
    check_epsilon,
    task_head_sizes,
)
from spanbert_tf.conversion.names import (
    ENCODER,
    MASKED_LM_HEAD,
    NEXT_SENTENCE_HEAD,
    POOLER,
    SPAN_BOUNDARY_HEAD,
    read_tables,
)
from spanbert_tf.conversion.parameters import (
    Parameter,
    assign_part,
    encoder_parameters,
    part_parameters,
)
from spanbert_tf.conversion.task_heads import TASK_HEADS, TaskHead, head_layer
from spanbert_tf.errors import BadInputError, MismatchError
from spanbert_tf.layers import weights_are_loaded
from spanbert_tf.models import (
    SpanBertBackbone,
    SpanBertMaskedLM,
    SpanBertPretrainer,
    SpanBertTokenizer,
)
from spanbert_tf.presets.golden import check_outputs, encode_rows, golden_rows
from spanbert_tf.presets.preset import Preset
from spanbert_tf.presets.pretraining import add_heads, save_pretraining_preset
from spanbert_tf.presets.writing import published_name, write_preset
from spanbert_tf.terminal import print_line
from spanbert_tf.text.vocabulary import TextRules, has_accents

# The tasks that are saved as presets. A pretrainer is saved as its masked language model.
_TASKS: list[type[keras_hub.models.Task]] = [
    kind
    for kind in vars(models).values()
    if isinstance(kind, type)
    and issubclass(kind, keras_hub.models.Task)
    and kind is not SpanBertPretrainer
]
_PARTS = {head.model_class.__name__: part for part, head in TASK_HEADS.items()}
# Arguments of every task and preprocessor, which are no settings.
_LAYERS = ("backbone", "preprocessor", "tokenizer")


class _Model(NamedTuple):
    """The encoder of a preset, the parameters of its trained heads, and facts about them.

    The last three are attributes of `Checkpoint`.
    """

    encoder: keras_hub.models.Backbone
    heads: list[Parameter]
    labels: tuple[str, ...] = ()
    is_pair: bool = False
    is_head_trained: bool | None = None


@contextlib.contextmanager
def read_keras(
    path: str,
    vocabulary: str | None = None,
    lowercase: bool | None = None,
    strip_accents: bool | None = None,
) -> Iterator[Checkpoint]:
    """Opens a preset of a `SpanBertBackbone` or of KerasHub's `BertBackbone`, with its heads.

    Raises:
        BadInputError: the preset cannot be used.
        MismatchError: an option contradicts the preset, or no other format can store its model.
    """
    if vocabulary:
        raise MismatchError(f"{path}: has a vocabulary of its own; leave out --vocabulary")
    preset = Preset(path)
    name = preset.head_class
    model = _read_task(preset, _PARTS[name]) if name in _PARTS else _read_pretrained(preset, name)
    backbone = model.encoder
    tokenizer = preset.tokenizer
    check_outputs(preset, backbone, tokenizer)
    text_rules = _text_rules(tokenizer)
    for given, own in (
        (lowercase, text_rules.lowercase),
        (strip_accents, text_rules.strip_accents),
    ):
        if given not in (None, own):
            raise MismatchError(f"{path}: its text is {text_rules.describe()}")
    parameters = encoder_parameters(backbone) + part_parameters(POOLER, backbone) + model.heads
    yield Checkpoint(
        path,
        _sizes(backbone),
        {parameter.name: parameter.lazy() for parameter in parameters},
        tokenizer.get_vocabulary(),
        text_rules,
        word_segmentation=getattr(tokenizer, "word_segmentation", None),
        spacy_model=getattr(tokenizer, "spacy_model", None),
        labels=model.labels,
        is_pair=model.is_pair,
        approximates_gelu=isinstance(backbone, keras_hub.models.BertBackbone),
        is_head_trained=model.is_head_trained,
    )


def _sizes(backbone: keras_hub.models.Backbone) -> dict[str, Any]:
    """Returns the arguments of `SpanBertBackbone` for an encoder of ours or of KerasHub's."""
    sizes = {name: getattr(backbone, name) for name in SIZES}
    sizes["layer_norm_epsilon"] = getattr(backbone, "layer_norm_epsilon", BERT_EPSILON)
    sizes["position_embeddings"] = getattr(backbone, "position_embeddings", "absolute")
    for size in read_tables(sizes["position_embeddings"]):
        sizes[size] = getattr(backbone, size)
    attention_dropout = getattr(backbone, "attention_dropout", None)
    if attention_dropout is not None:
        sizes["attention_dropout"] = attention_dropout
    return sizes


def _text_rules(tokenizer: keras_hub.tokenizers.WordPieceTokenizer) -> TextRules:
    """Returns how a tokenizer of ours or of KerasHub's normalizes text."""
    if isinstance(tokenizer, SpanBertTokenizer):
        return tokenizer.text_rules
    # KerasHub's own presets state that accents are kept even if their models were trained without
    # them. So the setting is believed only if the vocabulary has accents.
    keeps_accents = not tokenizer.strip_accents and any(
        has_accents(piece) for piece in tokenizer.get_vocabulary()
    )
    return TextRules(tokenizer.lowercase, tokenizer.lowercase and not keeps_accents)


def _read_task(preset: Preset, part: str) -> _Model:
    """Reads the encoder of a task's preset, and the head if it was trained."""
    head = TASK_HEADS[part]
    task = preset.task(head.model_class)
    if not task.is_head_trained:
        _print_untrained(preset)
        return _Model(task.backbone, [])
    preprocessor = task.preprocessor
    if preprocessor is None:
        raise BadInputError(
            f"{preset}: was saved without a preprocessor, which states how text is read; save the "
            f"{type(task).__name__} with its preprocessor"
        )
    head.check(preset, task)
    _print_settings_left_behind(preset, task, head)
    return _Model(
        task.backbone,
        part_parameters(part, head_layer(task)),
        labels=tuple(getattr(task, "labels", ())),
        is_pair=getattr(preprocessor, "is_pair", False),
        is_head_trained=True,
    )


def _print_settings_left_behind(
    preset: Preset, task: keras_hub.models.Task, head: TaskHead
) -> None:
    """Prints the settings that other formats cannot store, unless they have the default values."""
    kept = (*_LAYERS, *head.stored)
    left = []
    for part in (task, task.preprocessor):
        arguments = inspect.signature(type(part).__init__).parameters
        for name, value in part.get_config().items():
            if name in arguments and name not in kept and value != arguments[name].default:
                left.append(f"{name} {value}")
    if left:
        settings = ", ".join(left)
        print_line(f"{preset}: these settings have no place in other formats: {settings}")


def _read_pretrained(preset: Preset, name: str | None) -> _Model:
    """Reads the encoder of any other preset, and the heads of pre-training if they were trained.

    Args:
        preset: the preset.
        name: class of the task in the preset, or `None` for an encoder.
    """
    backbone, masked_lm_head = preset.encoder_and_masked_lm_head()
    if name not in (None, SpanBertMaskedLM.__name__, keras_hub.models.BertMaskedLM.__name__):
        print_line(
            f"{preset}: the head of its {name} has no place in other formats: only the encoder is "
            "converted",
        )
    if masked_lm_head is None:
        if name == SpanBertMaskedLM.__name__:
            _print_untrained(preset)
        return _Model(backbone, [])
    heads = part_parameters(MASKED_LM_HEAD, masked_lm_head)
    if not isinstance(backbone, SpanBertBackbone):
        return _Model(backbone, heads)
    pretrainer = add_heads(preset, backbone, masked_lm_head)
    for part in (SPAN_BOUNDARY_HEAD, NEXT_SENTENCE_HEAD):
        head = getattr(pretrainer, part)
        if head is not None:
            heads += part_parameters(part, head)
    return _Model(backbone, heads, is_head_trained=True)


def refuse_copy(path: str) -> None:
    """Raises `MismatchError` for a task's preset: a copy by `convert` would lose its settings."""
    preset = Preset(path)
    for kind in _TASKS:
        if preset.holds(kind):
            raise MismatchError(
                f"{preset}: is such a preset already, of a {kind.__name__}; copy the directory"
            )


def _print_untrained(preset: Preset) -> None:
    """Prints that the head of a preset is left out."""
    print_line(f"{preset}: its head was never trained: left out")


def write_keras(checkpoint: Checkpoint, directory: str, *, overwrite: bool = False) -> list[str]:
    """Writes a preset of the task whose head the checkpoint has, a masked LM, or an encoder.

    Of several tasks the first is written.

    Returns:
        The parts of the checkpoint that the preset has no place for.

    Raises:
        BadInputError: the directory exists or cannot be written.
        MismatchError: the task has no model with SegaBERT's positions.
    """
    found = checkpoint.found_parts()
    heads = {part: TASK_HEADS[part] for part in found if part in TASK_HEADS}
    for part, head in heads.items():
        if not head.reads_indices:
            check_absolute(checkpoint, f"a preset with its {part}")
    tokenizer = SpanBertTokenizer(
        checkpoint.vocabulary,
        word_segmentation=checkpoint.word_segmentation,
        spacy_model=checkpoint.spacy_model,
        **checkpoint.text_rules._asdict(),
    )
    backbone = _encoder_of(checkpoint)
    facts = {"Converted from": published_name(checkpoint.path)}
    if heads:
        part = next(iter(heads))
        task = heads[part].new_model(checkpoint, backbone, tokenizer)
        assign_part(part, head_layer(task), checkpoint)
        _note_trained(task, checkpoint)
        write_preset(task, directory, facts=facts, overwrite=overwrite)
        return [name for name in found if name not in (ENCODER, POOLER, part)]
    if MASKED_LM_HEAD not in found:
        write_preset(backbone, directory, tokenizer=tokenizer, facts=facts, overwrite=overwrite)
        return [part for part in found if part not in (ENCODER, POOLER)]
    _write_pretrainer(checkpoint, backbone, tokenizer, directory, facts, overwrite=overwrite)
    return []


def _write_pretrainer(
    checkpoint: Checkpoint,
    backbone: SpanBertBackbone,
    tokenizer: SpanBertTokenizer,
    directory: str,
    facts: dict[str, str],
    *,
    overwrite: bool,
) -> None:
    """Writes the preset of a masked LM, with the heads of pre-training that are there.

    Args:
        checkpoint: the checkpoint.
        backbone: its encoder.
        tokenizer: its tokenizer.
        directory: directory of the preset.
        facts: facts for the preset's README.
        overwrite: whether an earlier preset may be replaced.
    """
    found = checkpoint.found_parts()
    sizes = task_head_sizes(backbone.hidden_dim, checkpoint.arrays)
    pretrainer = SpanBertPretrainer(
        backbone,
        span_boundary=SPAN_BOUNDARY_HEAD in found,
        next_sentence=NEXT_SENTENCE_HEAD in found,
        # 0 without such a head, and then not used.
        max_span_targets=sizes["max_span_targets"] or 1,
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


def _note_trained(task: keras_hub.models.Task, checkpoint: Checkpoint) -> None:
    """Sets whether the head of a task was trained.

    If the source does not say, the head counts as trained when a bias is not 0: in a new head all
    biases are 0.
    """
    if checkpoint.is_head_trained is not None:
        task.is_head_trained = checkpoint.is_head_trained
        return
    encoder_ids = {id(weight) for weight in task.backbone.weights}
    biases = [
        weight
        for weight in task.weights
        if id(weight) not in encoder_ids and weight.path.endswith(("bias", "beta"))
    ]
    task.is_head_trained = any(np.any(bias.numpy()) for bias in biases)


def write_keras_bert(
    checkpoint: Checkpoint, directory: str, *, overwrite: bool = False
) -> list[str]:
    """Writes a preset of KerasHub's own BERT, which KerasHub loads without this project.

    Returns:
        The parts of the checkpoint that the preset has no place for.

    Raises:
        BadInputError: the directory exists or cannot be written.
        MismatchError: KerasHub's BERT cannot compute the model.
    """
    check_epsilon(checkpoint, "KerasHub's BERT")
    check_absolute(checkpoint, "KerasHub's BERT")
    found = checkpoint.found_parts()
    backbone = _stock_encoder_of(checkpoint)
    text_rules = checkpoint.text_rules
    tokenizer = keras_hub.models.BertTokenizer(
        checkpoint.vocabulary,
        lowercase=text_rules.lowercase,
        strip_accents=text_rules.strip_accents,
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
    """Builds the encoder. If the checkpoint has no pooler, its weights are new."""
    return _encoder(SpanBertBackbone, checkpoint, checkpoint.sizes)


def _stock_encoder_of(checkpoint: Checkpoint) -> keras_hub.models.BertBackbone:
    """Builds the encoder as KerasHub's `BertBackbone`."""
    sizes = {name: checkpoint.sizes[name] for name in SIZES}
    return _encoder(keras_hub.models.BertBackbone, checkpoint, sizes)


def _encoder(
    kind: type[keras_hub.models.Backbone], checkpoint: Checkpoint, sizes: Sizes
) -> keras_hub.models.Backbone:
    """Builds an encoder of a class with the weights of a checkpoint."""
    has_pooler = POOLER in checkpoint.found_parts()
    with weights_are_loaded(has_pooler):
        backbone = kind(**sizes)
    assign_part(ENCODER, backbone, checkpoint)
    if has_pooler:
        assign_part(POOLER, backbone, checkpoint)
    return backbone


def print_gelu_difference(checkpoint: Checkpoint, whose: str) -> None:
    """Prints how far the outputs of an encoder with the tanh GELU are from the exact ones.

    Args:
        checkpoint: checkpoint of the encoder.
        whose: the encoder that approximates the GELU, such as `"KerasHub's BERT"`.
    """
    tokenizer = SpanBertTokenizer(checkpoint.vocabulary, **checkpoint.text_rules._asdict())
    rows = golden_rows(tokenizer)
    exact_outputs = encode_rows(_encoder_of(checkpoint), rows)
    gc.collect()  # frees the first model, which is part of reference cycles
    approximate_outputs = encode_rows(_stock_encoder_of(checkpoint), rows)
    difference = 0.0
    for exact, approximate in zip(exact_outputs, approximate_outputs, strict=True):
        difference = max(difference, float(np.abs(exact - approximate).max()))
    print_line(
        f"{whose} approximates the GELU: its outputs differ by up to {difference:.1e} from those "
        "of the exact encoder, on three sentences"
    )
