"""How a client packs rows of ids, as the README of an export tells it."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import keras_hub
import tensorflow as tf

from spanbert_tf.terminal import escape_controls
from spanbert_tf.text.positions import SegmentPositions

_ROWS = """## Rows of ids

{who} rows that are packed already, int32:
{inputs}.

It returns {outputs}.

The rows of the example (`pip install tokenizers`; in the version's directory):

```python
{packing}
```"""
_TOKENIZER = """from tokenizers import BertWordPieceTokenizer

tokenizer = BertWordPieceTokenizer(
    "assets.extra/assets/tokenizer/vocabulary.txt",
    lowercase={lowercase},
    strip_accents={strip_accents},
)
tokenizer.enable_truncation({length})
tokenizer.enable_padding(pad_id={pad_id})
"""
_ROWS_OF_TEXTS = """rows = tokenizer.encode_batch({texts})
inputs = {{
    "token_ids": [row.ids for row in rows],
    "segment_ids": [row.type_ids for row in rows],
    "padding_mask": [row.attention_mask for row in rows],
{note}}}"""


def describe_packing(
    who: str,
    specs: Sequence[tf.TensorSpec],
    example: Mapping[str, Any],
    outputs: str,
    packing: str,
) -> str:
    """The section of a README on rows of ids.

    Args:
        who: what takes them, and its verb.
        specs: the inputs.
        example: a row: name → ids.
        outputs: what comes out, in Markdown.
        packing: Python that makes the rows of the example.
    """
    inputs = ", ".join(f"`{spec.name}` {_shape(spec, example)}" for spec in specs)
    return _ROWS.format(who=who, inputs=inputs, outputs=outputs, packing=packing)


def _shape(spec: tf.TensorSpec, example: Mapping[str, Any]) -> str:
    """The shape of an input in words: of N rows or documents, S positions, G segments."""
    rank, ids = spec.shape.rank, example["token_ids"]
    if spec.shape.is_fully_defined():  # of a runtime that takes one row of one width
        return str(spec.shape.as_list())
    if rank == 3:
        return "[N, G, S]"
    if rank == 1:
        return "[N]"
    # Documents have positions of their own, and places in rows are fewer.
    return "[N, S]" if len(example[spec.name]) == len(ids) else "[N, any number]"


def packing_code(
    model: keras_hub.models.Task, texts: str | tuple[str, ...], names: Sequence[str] = ()
) -> str:
    """Python that makes rows of texts with `tokenizers`, for READMEs of exports.

    Args:
        model: with a preprocessor.
        texts: one text, or a pair of texts.
        names: entries of the vocabulary that stand in texts as one token each.
    """
    others = [name for name in model.input if name in SegmentPositions._fields]
    note = f"    # {', '.join(others)}: SegaBERT's positions\n" if others else ""
    more = f"tokenizer.add_special_tokens({list(names)!r})\n" if names else ""
    return tokenizer_code(model) + more + _ROWS_OF_TEXTS.format(texts=repr([texts]), note=note)


def tokenizer_code(model: keras_hub.models.Task) -> str:
    """Python that makes the model's tokenizer of `tokenizers`."""
    tokenizer = model.preprocessor.tokenizer
    return _TOKENIZER.format(
        lowercase=tokenizer.casing.lowercase,
        strip_accents=tokenizer.casing.strip_accents,
        pad_id=tokenizer.pad_token_id,
        length=row_length(model),
    )


def row_length(model: keras_hub.models.Task) -> int:
    """Positions of a row at most: those of the preset's rows, of which its training saw no more."""
    return min(model.preprocessor.sequence_length, model.backbone.max_sequence_length)


def listed(labels: Sequence[str]) -> str:
    """Names of classes in a README, whatever they contain."""
    return ", ".join(map(_as_code, map(escape_controls, labels)))


def _as_code(text: str) -> str:
    """A span of code that no run of `` ` `` in it ends."""
    runs = re.findall("`+", text)
    if not runs:
        return f"`{text}`"
    fence = "`" * (1 + max(map(len, runs)))
    return f"{fence} {text} {fence}"
