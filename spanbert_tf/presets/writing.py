"""Writes a preset directory, whole or not at all, with its model card and `golden.json`.

`README.md` is the model card (Mitchell et al., 2019, in short).
"""

import math
import os
import tempfile
from collections.abc import Callable, Mapping

import keras_hub

from spanbert_tf.files.output import Output
from spanbert_tf.files.paths import is_remote
from spanbert_tf.files.preset import CARD_FILE, PRESET_KIND
from spanbert_tf.models.keras_hub_presets import preset_bytes
from spanbert_tf.models.span_bert_backbone import SpanBertBackbone, was_trained
from spanbert_tf.presets.golden import write_golden
from spanbert_tf.terminal import escape_controls
from spanbert_tf.text.languages import DEFAULT_LANGUAGE
from spanbert_tf.text.vocabulary import TextRules
from spanbert_tf.text.word_segmentation import describe_segmentation


def write_preset(
    model: keras_hub.models.Task | keras_hub.models.Backbone,
    directory: str,
    *,
    tokenizer: keras_hub.tokenizers.Tokenizer | None = None,
    write_more: Callable[[str], None] | None = None,
    more_bytes: int = 0,
    facts: Mapping[str, str] | None = None,
    overwrite: bool = False,
) -> None:
    """Writes a preset, its model card and its golden outputs.

    Args:
        model: a task with its preprocessor, or a backbone.
        directory: directory of the preset.
        tokenizer: tokenizer to save with a backbone; a task brings its own.
        write_more: is called with the unfinished directory.
        more_bytes: bytes that `write_more` writes at most.
        facts: lines of the model card: what → value.
        overwrite: whether an earlier preset may be replaced.

    Raises:
        BadInputError: the directory exists or cannot be written; what was there is as it was.
    """
    with Output(directory, PRESET_KIND, overwrite=overwrite).written() as unfinished:
        _check_space(unfinished, preset_bytes(model) + more_bytes)
        model.save_to_preset(unfinished)
        if tokenizer is not None:
            tokenizer.save_to_preset(unfinished)
        if write_more is not None:
            write_more(unfinished)
        read_by = tokenizer or model.preprocessor.tokenizer
        write_golden(unfinished, getattr(model, "backbone", model), read_by)
        write_model_card(unfinished, model, read_by, facts or {})


def _check_space(directory: str, num_bytes: int) -> None:
    """Raises an `OSError` unless a file of a size can be written to a directory.

    HDF5 ends the process with a segmentation fault when it cannot write what it has buffered, and
    a file system's own count of free bytes knows nothing of quotas and limits.
    """
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, max(num_bytes, 1))
            return
        chunk = bytes(1 << 20)
        for start in range(0, num_bytes, len(chunk)):
            file.write(chunk[: num_bytes - start])


def write_model_card(
    directory: str,
    model: keras_hub.models.Task | keras_hub.models.Backbone,
    tokenizer: keras_hub.tokenizers.Tokenizer,
    facts: Mapping[str, str],
) -> None:
    """Writes the card of a preset.

    Args:
        directory: directory of the preset.
        model: the model that was saved.
        tokenizer: the tokenizer that was saved.
        facts: what → value: where the weights are from, configuration, data, steps, losses.
    """
    backbone = getattr(model, "backbone", model)
    language = getattr(tokenizer, "language", DEFAULT_LANGUAGE)  # KerasHub's own have none
    text_rules = TextRules(tokenizer.lowercase, tokenizer.strip_accents, language).describe()
    segmentation = getattr(tokenizer, "word_segmentation", None)
    if segmentation is not None:
        text_rules += f", {describe_segmentation(segmentation, language)}"
    rows = {
        **facts,
        **_pooler(backbone),
        "Vocabulary": f"{tokenizer.vocabulary_size():,} word pieces, {text_rules}",
        "Parameters of the encoder": f"{_count_saved(backbone):,}",
        **{
            name: str(value)
            for name, value in backbone.get_config().items()
            if name != "name" and _is_size(value)
        },
    }
    cells = {name: escape_controls(value).replace("|", "\\|") for name, value in rows.items()}
    table = "\n".join(f"| {name} | {value} |" for name, value in cells.items())
    module = "spanbert_tf.models" if isinstance(backbone, SpanBertBackbone) else "keras_hub.models"
    text = f"""---
library_name: keras-hub
license: other  # fill in: the licence of these weights
---

# {type(model).__name__}

| | |
| --- | --- |
{table}

```python
import {module.split(".")[0]}.models

model = {module}.{type(model).__name__}.from_preset("path/of/this/directory")
```

Intended use, limits, and the licence of the text that it was trained on: fill in.
`golden.json` holds checksums of the weights and the outputs for three sentences.
"""
    with open(os.path.join(directory, CARD_FILE), "w", encoding="utf-8") as file:
        file.write(text)


def published_name(path: str) -> str:
    """Returns the name of a directory for a model card.

    It leaves out the parent folders, which may be private.

    Args:
        path: path of a directory or a file, or a name of KerasHub's such as `hf://…`, which stays.
    """
    return path if is_remote(path) else os.path.basename(os.path.abspath(path)) or path


def _pooler(backbone: keras_hub.models.Backbone) -> dict[str, str]:
    """Returns a row of the card if the pooler was never trained."""
    if was_trained(backbone.pooled_dense.bias):
        return {}
    return {
        "Pooler": "never trained (pre-training on single sequences does not): random until a task "
        "that reads it is fine-tuned"
    }


def _count_saved(backbone: keras_hub.models.Backbone) -> int:
    """Counts the parameters in the file."""
    return sum(math.prod(weight.shape) for weight in backbone.weights)


def _is_size(value: object) -> bool:
    return isinstance(value, int | float | str) and not isinstance(value, bool)
