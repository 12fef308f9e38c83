"""Writes a preset directory, whole or not at all, with its description and its checks."""

import math
from collections.abc import Callable, Mapping

import keras_hub

from spanbert_tf.files.outputs import OutputKind
from spanbert_tf.files.writing import check_space, write_directory
from spanbert_tf.presets.golden import GOLDEN_FILE, write_golden
from spanbert_tf.presets.model_card import CARD_FILE, write_model_card

PRESET_KIND = OutputKind(
    "a preset",
    GOLDEN_FILE,
    (
        CARD_FILE,
        *(f"{name}.json" for name in ("config", "metadata", "task", "tokenizer", "preprocessor")),
        "pretraining_heads.npz",
        "*.weights.h5",
        "*.weights.json",
        "assets/tokenizer/vocabulary.txt",
    ),
)

# Bytes besides the numbers: for each variable in HDF5 (2,500 to 5,000 measured), and for the
# vocabulary and the configurations.
_HDF5_ENTRY, _TEXT_FILES = 8192, 4 << 20


def write_preset(
    model: keras_hub.models.Task | keras_hub.models.Backbone,
    directory: str,
    *,
    tokenizer: keras_hub.tokenizers.Tokenizer | None = None,
    write_more: Callable[[str], None] | None = None,
    more_bytes: int = 0,
    facts: Mapping[str, str] | None = None,
    max_shard_size: float = 10,
    of_run: bool = False,
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
        max_shard_size: in GiB; larger encoders are saved in several files.
        of_run: whether the directory belongs to a run, which replaces the preset that lies there.
        overwrite: whether an earlier preset may be replaced.

    Raises:
        BadInputError: the directory exists or cannot be written; what was there is as it was.
    """

    def write(unfinished: str) -> None:
        num_bytes = sum(math.prod(weight.shape) * 4 for weight in model.weights)  # float32
        num_bytes += len(model.weights) * _HDF5_ENTRY + _TEXT_FILES + more_bytes
        check_space(unfinished, num_bytes)
        model.save_to_preset(unfinished, max_shard_size=max_shard_size)
        if tokenizer is not None:
            tokenizer.save_to_preset(unfinished)
        if write_more is not None:
            write_more(unfinished)
        read_by = tokenizer or model.preprocessor.tokenizer
        write_golden(unfinished, getattr(model, "backbone", model), read_by)
        write_model_card(unfinished, model, read_by, facts or {})

    write_directory(directory, write, PRESET_KIND, overwrite=overwrite, of_run=of_run)
