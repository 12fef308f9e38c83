"""Loads and saves the presets of a pretrainer, with the heads that only pre-training needs.

These heads are saved as one array for each variable, beside the files of a `SpanBertMaskedLM`.
"""

import os
from typing import TYPE_CHECKING, Self

import keras
import keras_hub
import numpy as np

from spanbert_tf.files.preset import HEADS_FILE, PresetFiles
from spanbert_tf.layers import weights_are_loaded
from spanbert_tf.models.mixins import MixinBase
from spanbert_tf.models.span_bert_task import SpanBertTask

if TYPE_CHECKING:  # these modules need TensorFlow, and a pretrainer on JAX does not
    from spanbert_tf.models.span_bert_masked_lm import SpanBertMaskedLM
    from spanbert_tf.models.span_bert_tokenizer import SpanBertTokenizer

HEAD_ARGUMENTS = ("span_boundary", "next_sentence", "max_span_targets", "span_position_dim")
# Outcomes for a head when a preset is loaded.
LOADED = "taken over"
FRESH = "starts fresh"


class PretrainerPresets(MixinBase):
    """Mixin of the pretrainer; name it before the other base classes."""

    def to_masked_lm(
        self, tokenizer: "SpanBertTokenizer", sequence_length: int | None = None
    ) -> "SpanBertMaskedLM":
        """Returns the masked-language model in this model, to predict, save or export.

        Args:
            tokenizer: tokenizer of the records on which this model was trained.
            sequence_length: number of positions of a row of its preprocessor; by default the
                maximum of the encoder.

        Returns:
            A `SpanBertMaskedLM` with this model's encoder and a copy of its head.
        """
        from spanbert_tf.models.span_bert_masked_lm import SpanBertMaskedLM
        from spanbert_tf.models.span_bert_masked_lm_preprocessor import (
            SpanBertMaskedLMPreprocessor,
        )

        length = sequence_length or self.backbone.max_sequence_length
        preprocessor = SpanBertMaskedLMPreprocessor(tokenizer, sequence_length=length)
        with weights_are_loaded():
            masked_lm = SpanBertMaskedLM(self.backbone, preprocessor)
        masked_lm.masked_lm_head.set_weights(self.masked_lm_head.get_weights())
        masked_lm.is_head_trained = self.is_head_trained
        return masked_lm

    def save_to_preset(
        self, preset_dir: str, max_shard_size: float = 10, *, tokenizer: "SpanBertTokenizer"
    ) -> None:
        """Writes the preset of a `SpanBertMaskedLM`, and the further heads of this model.

        `spanbert-tf export`, the options `--initial-preset` and `--preset`, and `from_preset` of
        every task of this project take the preset.

        Args:
            preset_dir: directory of the preset.
            max_shard_size: limit of the size of a file of the encoder's weights, in GiB.
            tokenizer: tokenizer of the records on which this model was trained.
        """
        self.to_masked_lm(tokenizer).save_to_preset(preset_dir, max_shard_size=max_shard_size)
        write_heads(head_arrays(self), preset_dir)

    @classmethod
    def from_preset(
        cls, preset: str | os.PathLike | PresetFiles, load_weights: bool = True, **kwargs
    ) -> Self:
        """Loads the encoder and the pre-training heads of a preset.

        Args:
            preset: a directory, another name that KerasHub knows, or a preset.
            load_weights: whether to load weights; otherwise all weights are random.
            **kwargs: arguments of the class that override the preset's, and `dtype`.
        """
        from spanbert_tf.models.span_bert_masked_lm import SpanBertMaskedLM

        preset = PresetFiles.of(preset)
        options = dict(preset.head_options)
        for name in HEAD_ARGUMENTS:
            if name in kwargs:
                options[name] = kwargs.pop(name)
        loaded = SpanBertMaskedLM.from_preset(
            preset, load_weights=load_weights, preprocessor=None, **kwargs
        )
        pretrainer = cls(loaded.backbone, **options)
        if load_weights:
            load_heads(pretrainer, loaded.masked_lm_head, preset.heads)
            pretrainer.is_head_trained = loaded.is_head_trained
        return pretrainer


def write_heads(arrays: dict[str, np.ndarray], directory: str) -> None:
    """Writes the result of `head_arrays` into the directory of a preset."""
    if arrays:
        path = os.path.join(directory, HEADS_FILE)
        np.savez(path, **arrays)  # type: ignore[arg-type]  # no array is named `allow_pickle`


def head_arrays(pretrainer: SpanBertTask) -> dict[str, np.ndarray]:
    """Returns the values of the heads' own variables by their paths."""
    return {name: variable.numpy() for name, variable in _head_variables(pretrainer).items()}


def assign_rows(target: keras.layers.Layer, source: keras.layers.Layer) -> None:
    """Copies the weights of a layer, without rows beyond the vocabulary of the target."""
    for own, saved in zip(target.weights, source.weights, strict=True):
        own.assign(saved[: own.shape[0]])


def load_heads(
    pretrainer: SpanBertTask,
    masked_lm_head: keras_hub.layers.MaskedLMHead | None,
    saved: dict[str, np.ndarray],
) -> dict[str, str]:
    """Copies the heads of a preset to a new model.

    Args:
        pretrainer: the model.
        masked_lm_head: head of the preset's masked-language model; `None` if it has none.
        saved: arrays of the preset's further heads, see `PresetFiles.heads`.

    Returns:
        The outcome for each part: `LOADED`, or `FRESH` with the reason.
    """
    report = {"encoder": LOADED, "masked_lm_head": f"{FRESH}: the preset has none"}
    if masked_lm_head is not None:
        assign_rows(pretrainer.masked_lm_head, masked_lm_head)
        report["masked_lm_head"] = LOADED
    variables = _head_variables(pretrainer)
    for head in _heads(pretrainer):
        own = {name: variable for name, variable in variables.items() if f"{head.name}/" in name}
        missing = [name for name in own if name not in saved]
        output_bias = f"{head.name}/bias"
        if output_bias in own and not missing:  # the preset may have a larger vocabulary
            num_entries = pretrainer.backbone.vocabulary_size
            saved = saved | {output_bias: saved[output_bias][:num_entries]}
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


def _heads(pretrainer: SpanBertTask) -> list[keras.layers.Layer]:
    heads = (pretrainer.span_boundary_head, pretrainer.next_sentence_head)
    return [head for head in heads if head is not None]


def _head_variables(pretrainer: SpanBertTask) -> dict[str, keras.Variable]:
    """Returns the heads' own variables by their paths, without the token embedding."""
    tied = {id(variable) for variable in pretrainer.backbone.weights}
    variables = {}
    for head in _heads(pretrainer):
        for variable in head.weights:
            if id(variable) not in tied:
                variables[variable.path] = variable
    return variables
