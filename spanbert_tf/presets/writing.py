"""Writes a preset directory whole or not at all, described and with what checks it later."""

import math
from collections.abc import Callable, Mapping

import keras_hub

from spanbert_tf.disk_space import check_space
from spanbert_tf.presets.golden import write_golden
from spanbert_tf.presets.model_card import write_model_card
from spanbert_tf.whole_directory import write_directory

# Bytes beside the numbers: of each variable in HDF5 (2,500 to 5,000 measured), of the vocabulary
# and the configurations.
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
) -> None:
    """Writes a preset, its model card and its golden outputs; an earlier preset is replaced.

    Args:
        model: a task with its preprocessor, or a backbone.
        directory: of the preset.
        tokenizer: of a backbone.
        write_more: is called with the unfinished directory.
        more_bytes: that `write_more` writes at most.
        facts: lines of the model card: what → value.
        max_shard_size: in GiB; larger encoders are saved in several files.

    Raises:
        BadInputError: the directory cannot be written; an earlier preset is there as it was.
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

    write_directory(directory, write)
