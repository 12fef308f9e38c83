"""What a step of training takes of a device's memory, and what to do where that is too much."""

import keras

from spanbert_tf.errors import ConfigurationError
from spanbert_tf.layers import TransformerEncoder


def set_recompute(model: keras.Model, recompute: str) -> None:
    """Has the encoder's layers computed again for their gradients, or not; call it before `fit`.

    Args:
        model: any task.
        recompute: `layers` or `none`.

    Raises:
        ConfigurationError: `layers`, of a model that has none of this project.
    """
    layers = [part for part in model._flatten_layers() if isinstance(part, TransformerEncoder)]
    if recompute == "layers" and not layers:
        raise ConfigurationError(
            f"training.recompute: is {recompute}, and {type(model).__name__} has no transformer "
            "layers of this project; set it to none"
        )
    for layer in layers:
        layer.recompute = recompute == "layers"
