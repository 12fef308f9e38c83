"""The README of an export, a Jinja template.

`export_readme.md` is what all exports share. The template of a pipeline begins with
`{% extends "export_readme.md" %}` and fills in its blocks:

| block | holds |
| --- | --- |
| `description` | the model in a sentence or two |
| `signatures` | the signatures that take texts: their inputs and outputs |
| `outputs` | what the signature of packed rows returns, as the object of a sentence |
| `packing` | Python that packs the example into `inputs`, after the tokenizer was made |

A template may also set `output` and `output_shape`: the output that the program of a client reads,
and its shape. By default these are the first output and the shape that it has for the example.
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
        name: name of the model, which may hold any characters.
        **values: what `export_readme.md` and the pipeline's template show.
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
    """The description in a README, which is the paragraph after its title, in one line."""
    return " ".join(readme.split("\n\n")[1].split())


def describe_inputs(specs: Sequence[tf.TensorSpec], example: Mapping[str, Any]) -> str:
    """The names and shapes of the inputs that take packed rows.

    Args:
        specs: the inputs.
        example: a row: name → ids.
    """
    return ", ".join(f"`{spec.name}` {_shape(spec, example)}" for spec in specs)


def _shape(spec: tf.TensorSpec, example: Mapping[str, Any]) -> str:
    """The shape of an input in words: of N rows or documents, S positions, G segments."""
    if spec.shape.is_fully_defined():  # the runtime takes one row of one width
        return str(spec.shape.as_list())
    if spec.shape.rank == 3:
        return "[N, G, S]"
    if spec.shape.rank == 1:
        return "[N]"
    # The positions of a document, and the places in a row, are not as many as the ids.
    is_as_long = len(example[spec.name]) == len(example["token_ids"])
    return "[N, S]" if is_as_long else "[N, any number]"


def row_length(model: keras_hub.models.Task) -> int:
    """The largest number of positions of a row: that of the preset, as training saw no more."""
    return min(model.preprocessor.sequence_length, model.backbone.max_sequence_length)


def code_list(texts: Sequence[str]) -> str:
    """Texts, such as the names of classes, as spans of code with commas between them."""
    return ", ".join(_as_code(escape_controls(text)) for text in texts)


def _as_code(text: str) -> str:
    """A span of code that no run of `` ` `` in the text can end."""
    runs = re.findall("`+", text)
    if not runs:
        return f"`{text}`"
    fence = "`" * (1 + max(map(len, runs)))
    return f"{fence} {text} {fence}"
