"""The heads that only pre-training needs, as a preset keeps them: one array a variable."""

import os

import keras
import keras_hub
import numpy as np

from spanbert_tf.files.preset_files import HEADS_FILE
from spanbert_tf.models.span_bert_task import SpanBertTask

LOADED, FRESH = "taken over", "starts fresh"  # what became of a head of a preset


def write_heads(arrays: dict[str, np.ndarray], directory: str) -> None:
    """Writes what `head_arrays` returned into the directory of a preset."""
    if arrays:
        np.savez(os.path.join(directory, HEADS_FILE), **arrays)


def head_arrays(pretrainer: SpanBertTask) -> dict[str, np.ndarray]:
    """The values of the heads' own variables, by their paths."""
    return {name: variable.numpy() for name, variable in _head_variables(pretrainer).items()}


def assign_rows(target: keras.layers.Layer, source: keras.layers.Layer) -> None:
    """Copies a layer's weights to another one, without rows beyond the other's vocabulary."""
    for own, found in zip(target.weights, source.weights, strict=True):
        own.assign(found[: own.shape[0]])


def load_heads(
    pretrainer: SpanBertTask,
    masked_lm_head: keras_hub.layers.MaskedLMHead | None,
    saved: dict[str, np.ndarray],
) -> dict[str, str]:
    """Gives a new model the heads of a preset.

    Args:
        pretrainer: the model.
        masked_lm_head: masked-language-model head of the preset, if it has one.
        saved: its further heads, as `read_heads` returned them.

    Returns:
        What became of each part: `LOADED`, or `FRESH` and why.
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
        if output_bias in own and not missing:  # an entry each, or more
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
    """The heads' own variables; the token embedding belongs to the encoder."""
    tied = {id(variable) for variable in pretrainer.backbone.weights}
    return {
        variable.path: variable
        for head in _heads(pretrainer)
        for variable in head.weights
        if id(variable) not in tied
    }
