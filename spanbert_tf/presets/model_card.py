"""The model card of a preset, `README.md` (Mitchell et al., 2019, in short)."""

import math
import os
from collections.abc import Mapping

import keras_hub

from spanbert_tf.models.span_bert_backbone import SpanBertBackbone
from spanbert_tf.process.lines import escape_controls
from spanbert_tf.text.vocabulary import Casing

CARD_FILE = "README.md"


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
    casing = Casing(tokenizer.lowercase, tokenizer.strip_accents).describe()
    rows = {
        **facts,
        **_pooler(backbone),
        "Vocabulary": f"{tokenizer.vocabulary_size():,} word pieces, {casing}",
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
    """What a card tells of a directory: its name, and none of the folders above, which are private.

    Args:
        path: path of a directory or a file, or a name of KerasHub's such as `hf://…`, which stays.
    """
    return path if "://" in path else os.path.basename(os.path.abspath(path)) or path


def _pooler(backbone: keras_hub.models.Backbone) -> dict[str, str]:
    """What there is to say of the pooler: that nothing has trained it."""
    if not isinstance(backbone, SpanBertBackbone) or backbone.is_pooler_trained:
        return {}
    return {
        "Pooler": "never trained (pre-training on single sequences does not): random until a task "
        "that reads it is fine-tuned"
    }


def _count_saved(backbone: keras_hub.models.Backbone) -> int:
    """Parameters in the file: adapters are part of the kernels there."""
    saved = [weight for weight in backbone.weights if "lora" not in weight.name]
    return sum(math.prod(weight.shape) for weight in saved)


def _is_size(value: object) -> bool:
    return isinstance(value, int | float | str) and not isinstance(value, bool)
