"""Saves a pre-trained model as a preset, and takes a preset's weights over into a new one.

The preset is a `SpanBertMaskedLM`. The heads that only pre-training needs (span boundary, next
sentence) lie beside it in `pretraining_heads.npz`, one array a variable.
"""

import os
import zipfile
from collections.abc import Mapping

import keras
import keras_hub
import numpy as np
from keras_hub.src.utils import preset_utils

from spanbert_tf.errors import BadInputError, MismatchError
from spanbert_tf.models.span_bert_backbone import SpanBertBackbone
from spanbert_tf.models.span_bert_masked_lm import SpanBertMaskedLM
from spanbert_tf.models.span_bert_masked_lm_preprocessor import SpanBertMaskedLMPreprocessor
from spanbert_tf.models.span_bert_pretrainer import SpanBertPretrainer
from spanbert_tf.models.span_bert_tokenizer import SpanBertTokenizer
from spanbert_tf.models.task_presets import is_task_preset
from spanbert_tf.presets.loading import load_checked
from spanbert_tf.presets.writing import write_preset

HEADS_FILE = "pretraining_heads.npz"
_SPAN_POSITIONS = "span_boundary_head/position_embedding/embeddings"
_NEXT_SENTENCE = "next_sentence_head/kernel"
LOADED, FRESH = "taken over", "starts fresh"


def save_pretraining_preset(
    pretrainer: SpanBertPretrainer,
    tokenizer: SpanBertTokenizer,
    directory: str,
    *,
    sequence_length: int,
    facts: Mapping[str, str] | None = None,
) -> None:
    """Writes a preset directory, whole or not at all; an earlier one is replaced.

    Args:
        pretrainer: the trained model.
        tokenizer: of the records that it was trained on.
        directory: of the preset.
        sequence_length: positions of a row that the preset's preprocessor packs.
        facts: lines of the model card: what → value.

    Raises:
        BadInputError: the directory cannot be written; an earlier preset is there as it was.
    """
    preprocessor = SpanBertMaskedLMPreprocessor(tokenizer, sequence_length=sequence_length)
    masked_lm = SpanBertMaskedLM(pretrainer.backbone, preprocessor)
    masked_lm.masked_lm_head.set_weights(pretrainer.masked_lm_head.get_weights())
    arrays = {name: variable.numpy() for name, variable in _head_variables(pretrainer).items()}

    def write_heads(unfinished: str) -> None:
        if arrays:
            np.savez(os.path.join(unfinished, HEADS_FILE), **arrays)

    write_preset(
        masked_lm,
        directory,
        write_more=write_heads,
        more_bytes=sum(array.nbytes for array in arrays.values()),
        facts=facts,
    )


def load_pretrainer(preset: str) -> tuple[SpanBertPretrainer, dict[str, str]]:
    """A model with each pre-training head that a preset holds.

    Args:
        preset: of a `SpanBertBackbone`; what `from_preset` takes.

    Returns:
        The model, and what became of each part, as `load_preset_into` says it.

    Raises:
        BadInputError: a file of the preset is missing or damaged.
    """
    return add_heads(preset, *load_encoder_and_head(preset))


def add_heads(
    preset: str,
    backbone: SpanBertBackbone,
    masked_lm_head: keras_hub.layers.MaskedLMHead | None,
) -> tuple[SpanBertPretrainer, dict[str, str]]:
    """The heads of a preset on its encoder, which is loaded already.

    Args:
        preset: what `from_preset` takes.
        backbone: of the preset.
        masked_lm_head: of the preset, if it has one.

    Returns:
        As `load_pretrainer`.

    Raises:
        BadInputError: the file of the further heads is damaged.
    """
    saved = _read_heads(preset)
    table = saved.get(_SPAN_POSITIONS, np.empty((1, 1)))
    pretrainer = SpanBertPretrainer(
        backbone,
        span_boundary=_SPAN_POSITIONS in saved,
        next_sentence=_NEXT_SENTENCE in saved,
        max_span_targets=table.shape[0],
        span_position_dim=table.shape[1],
    )
    return pretrainer, _load_heads(pretrainer, masked_lm_head, saved)


def load_preset_into(pretrainer: SpanBertPretrainer, preset: str) -> dict[str, str]:
    """Gives a new model the weights of a preset, part by part.

    Args:
        pretrainer: the model; its encoder must have the preset's shape.
        preset: what `from_preset` takes.

    Returns:
        What became of each part: `LOADED`, or `FRESH` and why.

    Raises:
        BadInputError: the preset is none of a `SpanBertBackbone`, or a file of it is damaged.
        MismatchError: its encoder has another shape; the message names the first difference.
    """
    backbone, masked_lm_head = load_encoder_and_head(preset)
    if not isinstance(backbone, SpanBertBackbone):
        raise BadInputError(
            f"{preset}: no preset of a SpanBertBackbone but of a {type(backbone).__name__}; "
            "`spanbert-tf convert --from keras` makes one of it"
        )
    _check_shapes(preset, backbone, pretrainer.backbone)
    pretrainer.backbone.set_weights(backbone.get_weights())
    return _load_heads(pretrainer, masked_lm_head, _read_heads(preset))


def _check_shapes(preset: str, found: SpanBertBackbone, wanted: SpanBertBackbone) -> None:
    for name, value in wanted.get_config().items():
        is_size = name.endswith(("_size", "_dim", "_layers", "_heads", "_length", "_segments"))
        is_size = is_size or name == "position_embeddings"
        if is_size and found.get_config()[name] != value:
            raise MismatchError(
                f"{preset}: model.{name} is {found.get_config()[name]} in the preset and {value} "
                "in the configuration; set it to the preset's"
            )


def _heads(pretrainer: SpanBertPretrainer) -> list[keras.layers.Layer]:
    heads = (pretrainer.span_boundary_head, pretrainer.next_sentence_head)
    return [head for head in heads if head is not None]


def _head_variables(pretrainer: SpanBertPretrainer) -> dict[str, keras.Variable]:
    """The heads' own variables; the token embedding belongs to the encoder."""
    tied = {id(variable) for variable in pretrainer.backbone.weights}
    return {
        variable.path: variable
        for head in _heads(pretrainer)
        for variable in head.weights
        if id(variable) not in tied
    }


def load_encoder_and_head(
    preset: str,
) -> tuple[keras_hub.models.Backbone, keras_hub.layers.MaskedLMHead | None]:
    """The encoder and the masked-language-model head of a preset, in one reading.

    Args:
        preset: this project's, or one of KerasHub's BERT.

    Returns:
        The encoder, and the head, or `None` where the preset was saved without one.

    Raises:
        BadInputError: as `load_checked`.
    """
    for kind in (SpanBertMaskedLM, keras_hub.models.BertMaskedLM):
        if is_task_preset(preset, kind):
            masked_lm = load_checked(kind, preset, preprocessor=None)
            return masked_lm.backbone, masked_lm.masked_lm_head
    return load_checked(keras_hub.models.Backbone, preset), None


def _load_heads(
    pretrainer: SpanBertPretrainer,
    masked_lm_head: keras_hub.layers.MaskedLMHead | None,
    saved: dict[str, np.ndarray],
) -> dict[str, str]:
    report = {"encoder": LOADED, "masked_lm_head": f"{FRESH}: the preset has none"}
    if masked_lm_head is not None:
        pretrainer.masked_lm_head.set_weights(masked_lm_head.get_weights())
        report["masked_lm_head"] = LOADED
    variables = _head_variables(pretrainer)
    for head in _heads(pretrainer):
        own = {name: variable for name, variable in variables.items() if f"{head.name}/" in name}
        missing = [name for name in own if name not in saved]
        misfits = [name for name in own if name in saved and saved[name].shape != own[name].shape]
        if missing:
            report[head.name] = f"{FRESH}: the preset has none"
        elif misfits:
            report[head.name] = f"{FRESH}: {misfits[0]} has another shape in the preset"
        else:
            for name, variable in own.items():
                variable.assign(saved[name])
            report[head.name] = LOADED
    return report


def _read_heads(preset: str) -> dict[str, np.ndarray]:
    if not preset_utils.check_file_exists(preset, HEADS_FILE):
        return {}
    try:
        with np.load(preset_utils.get_file(preset, HEADS_FILE), allow_pickle=False) as file:
            return dict(file)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        reason = str(error).splitlines()[0]
        raise BadInputError(
            f"{preset}: {HEADS_FILE} is damaged ({reason}); copy the preset again"
        ) from error
