"""Renders the README of an export from Jinja templates.

All exports share `export_readme.md`. The template of a pipeline begins with
`{% extends "export_readme.md" %}` and fills in its blocks:

| block | content |
| --- | --- |
| `description` | the model in a sentence or two |
| `signatures` | the signatures that take texts: their inputs and outputs |
| `outputs` | what the signature of packed rows returns, as the object of a sentence |
| `packing` | Python code that packs the example into `inputs`, after the tokenizer was made |

A template may also set `output` and `output_shape`: the output that the client's program reads, and
its shape. By default these are the first output and its shape for the example.
"""

import json
import os
import re
import shlex
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
import keras_hub
import tensorflow as tf

from spanbert_tf.terminal import escape_controls, escape_lines

BASE_TEMPLATE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "export_readme.md")


def render_readme(template: str, name: str, **values: object) -> str:
    """Renders the README of an export.

    Args:
        template: path of the pipeline's template, or `BASE_TEMPLATE`.
        name: name of the model. It may have any characters.
        **values: values for `export_readme.md` and the pipeline's template.
    """
    folders = [os.path.dirname(template), os.path.dirname(BASE_TEMPLATE)]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folders),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"code": code_list, "json": json.dumps}
    text = environment.get_template(os.path.basename(template)).render(
        name=escape_controls(name),
        path=escape_controls(shlex.quote(f"/models/{name}")),
        name_in_url=urllib.parse.quote(name, safe=""),
        quoted_name=json.dumps(name, ensure_ascii=False),
        **values,
    )
    return escape_lines(text)


def description_of(readme: str) -> str:
    """Returns the description in a README, the paragraph after its title, as one line."""
    return " ".join(readme.split("\n\n")[1].split())


def describe_inputs(specs: Sequence[tf.TensorSpec], example: Mapping[str, Any]) -> str:
    """Lists the names and shapes of the inputs that take packed rows.

    Args:
        specs: specs of the inputs.
        example: an example row: name → ids.
    """
    return ", ".join(f"`{spec.name}` {_shape(spec, example)}" for spec in specs)


def _shape(spec: tf.TensorSpec, example: Mapping[str, Any]) -> str:
    """Returns the shape of an input. N rows or documents, S positions, G segments."""
    if spec.shape.is_fully_defined():  # the runtime takes one row of a fixed length
        return str(spec.shape.as_list())
    if spec.shape.rank == 3:
        return "[N, G, S]"
    if spec.shape.rank == 1:
        return "[N]"
    # Some inputs have another length than the ids, such as the positions of masks.
    if len(example[spec.name]) == len(example["token_ids"]):
        return "[N, S]"
    return "[N, any number]"


def row_length(model: keras_hub.models.Task) -> int:
    """Returns the largest number of positions of a row: as in training, which the preset states."""
    return min(model.preprocessor.sequence_length, model.backbone.max_sequence_length)


def code_list(texts: Sequence[str]) -> str:
    """Formats texts, such as the names of classes, as code spans separated by commas."""
    return ", ".join(_as_code(escape_controls(text)) for text in texts)


def _as_code(text: str) -> str:
    """Formats a text as a code span. Its fence is longer than any run of `` ` `` in the text."""
    runs = re.findall("`+", text)
    if not runs:
        return f"`{text}`"
    fence = "`" * (1 + max(map(len, runs)))
    return f"{fence} {text} {fence}"
