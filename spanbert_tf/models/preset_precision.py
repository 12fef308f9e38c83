"""Presets name no mixed precision: their weights are in float32, and who loads them chooses.

KerasHub 0.32 could not load a task whose preset names one: it asks whether the policy's name is a
float dtype, and Keras 3.15 raises an error for names that are no dtype.
"""

import contextlib
from collections.abc import Iterator

import keras


@contextlib.contextmanager
def without_mixed_precision(model: keras.Model) -> Iterator[None]:
    """For a time, layers in mixed precision compute in the dtype of their weights.

    Args:
        model: the model; its weights stay as they are.
    """
    mixed = [
        (layer, layer.dtype_policy)
        for layer in model._flatten_layers()
        if layer.dtype_policy.name.startswith("mixed_")
    ]
    try:
        for layer, policy in mixed:
            layer.dtype_policy = policy.variable_dtype
        yield
    finally:
        for layer, policy in mixed:
            layer.dtype_policy = policy


class SavesWithoutMixedPrecision:
    """Base of backbone and tasks; name it before KerasHub's class."""

    def save_to_preset(self, preset_dir: str, max_shard_size: float | None = 10) -> None:
        """Writes a preset, whose description names the dtype of the weights alone.

        Args:
            preset_dir: directory of the preset.
            max_shard_size: in GiB; larger encoders are saved in several files. `None`: in one.
        """
        with without_mixed_precision(self):
            super().save_to_preset(preset_dir, max_shard_size=max_shard_size)
