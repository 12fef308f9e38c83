"""Saves a pre-trained model as a preset, and copies a preset's weights into a new model.

The preset is a `SpanBertMaskedLM`. The heads that only pre-training needs (span boundary, next
sentence) lie beside it in `pretraining_heads.npz`, one array a variable.
"""

import functools
import os
from collections.abc import Mapping

import keras_hub

from spanbert_tf.errors import BadInputError, MismatchError
from spanbert_tf.files.preset import PresetFiles
from spanbert_tf.models.pretraining_heads import (
    assign_rows,
    head_arrays,
    load_heads,
    write_heads,
)
from spanbert_tf.models.span_bert_backbone import SpanBertBackbone
from spanbert_tf.models.span_bert_pretrainer import SpanBertPretrainer
from spanbert_tf.models.span_bert_tokenizer import SpanBertTokenizer
from spanbert_tf.presets.preset import Preset
from spanbert_tf.presets.writing import write_preset

# Settings of an encoder that may differ from those with which its weights were trained.
_FREE = {
    "name",
    "trainable",
    "dtype",
    "dropout",
    "attention_dropout",
    "lora_rank",
    "lora_alpha",
    "lora_targets",
}


def save_pretraining_preset(
    pretrainer: SpanBertPretrainer,
    tokenizer: SpanBertTokenizer,
    directory: str,
    *,
    sequence_length: int,
    facts: Mapping[str, str] | None = None,
    overwrite: bool = False,
) -> None:
    """Writes a preset directory, whole or not at all.

    Args:
        pretrainer: the trained model.
        tokenizer: tokenizer of the records that it was trained on.
        directory: directory of the preset.
        sequence_length: positions of a row that the preset's preprocessor packs.
        facts: lines of the model card: what → value.
        overwrite: as for `write_preset`.

    Raises:
        BadInputError: the directory exists or cannot be written; what was there is as it was.
    """
    arrays = head_arrays(pretrainer)
    write_preset(
        pretrainer.to_masked_lm(tokenizer, sequence_length),
        directory,
        write_more=functools.partial(write_heads, arrays),
        more_bytes=sum(array.nbytes for array in arrays.values()),
        facts=facts,
        overwrite=overwrite,
    )


def add_heads(
    preset: PresetFiles,
    backbone: SpanBertBackbone,
    masked_lm_head: keras_hub.layers.MaskedLMHead | None,
) -> SpanBertPretrainer:
    """Loads a model with all pre-training heads of a preset, on its encoder.

    Args:
        preset: the preset.
        backbone: encoder of the preset.
        masked_lm_head: masked-language-model head of the preset, if it has one.

    Raises:
        BadInputError: the file of the further heads is damaged.
    """
    pretrainer = SpanBertPretrainer(backbone, **preset.head_options)
    load_heads(pretrainer, masked_lm_head, preset.heads)
    return pretrainer


def load_preset_into(
    pretrainer: SpanBertPretrainer, preset: str | os.PathLike | Preset
) -> dict[str, str]:
    """Gives a new model the weights of a preset, part by part.

    Args:
        pretrainer: the model; its encoder must have the preset's shape.
        preset: the preset, or its name.

    Returns:
        What became of each part: `LOADED`, or `FRESH` and why.

    Raises:
        BadInputError: the preset has no `SpanBertBackbone`, or one of its files is damaged.
        MismatchError: its encoder has another shape or epsilon; the message names the first
            difference.
    """
    preset = Preset.of(preset)
    backbone, masked_lm_head = preset.encoder_and_masked_lm_head()
    if not isinstance(backbone, SpanBertBackbone):
        raise BadInputError(
            f"{preset}: no preset of a SpanBertBackbone but of a {type(backbone).__name__}; "
            "convert it with `spanbert-tf convert --from keras`"
        )
    _check_settings(preset, backbone, pretrainer.backbone)
    assign_rows(pretrainer.backbone, backbone)
    # The heads were trained together, or none of them was.
    further = {} if masked_lm_head is None else preset.heads
    return load_heads(pretrainer, masked_lm_head, further)


def _check_settings(preset: Preset, found: SpanBertBackbone, wanted: SpanBertBackbone) -> None:
    """Refuses an encoder of other settings than those which the weights were trained with."""
    settings = found.get_config()
    for name, value in wanted.get_config().items():
        if name == "vocabulary_size":
            _check_vocabulary_size(preset, found.vocabulary_size, value)
        elif name not in _FREE and settings.get(name) != value:
            raise MismatchError(
                f"{preset}: model.{name} is {settings.get(name)} in the preset and {value} "
                "in the configuration; set it to the preset's"
            )


def _check_vocabulary_size(preset: Preset, num_rows: int, num_entries: int) -> None:
    """Embeddings are often padded: rows beyond the vocabulary are left out."""
    if num_rows < num_entries:
        raise MismatchError(
            f"{preset}: its token embedding has {num_rows} rows, the records' vocabulary "
            f"{num_entries} entries; write the records with the preset's vocabulary"
        )
