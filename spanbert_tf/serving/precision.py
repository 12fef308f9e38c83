"""Exports in less than float32, and how that changes the outputs."""

import keras
import keras_hub
import numpy as np

from spanbert_tf.presets.loading import load_checked, load_preset


def in_precision(kind: type, preset: str, precision: str) -> keras_hub.models.Task:
    """Loads a model in a precision.

    Args:
        kind: its class.
        preset: what `from_preset` takes.
        precision: `"bfloat16"`: weights and computations. `"int8"`: Keras' dynamic quantization of
            the dense layers, whose weights take a quarter of the space.

    Raises:
        BadInputError: the preset cannot be used.
    """
    if precision == "bfloat16":
        return load_preset(kind, preset, dtype="bfloat16")
    model = load_checked(kind, preset)
    model.quantize("int8", filters=_is_dense)
    return model


def _is_dense(layer: keras.layers.Layer) -> bool:
    return isinstance(layer, keras.layers.Dense | keras.layers.EinsumDense)


def describe_difference(exact: list, other: list) -> str:
    """How far the outputs of two models differ for the same sentences.

    Args:
        exact: logits [N, classes] of the model in float32.
        other: logits of the same model in another precision.
    """
    difference, num_same, num_all = 0.0, 0, 0
    for logits in zip(exact, other, strict=True):
        expected, actual = (
            keras.ops.convert_to_numpy(keras.ops.softmax(keras.ops.cast(values, "float32")))
            for values in logits
        )
        difference = max(difference, float(np.abs(expected - actual).max()))
        num_same += int((expected.argmax(-1) == actual.argmax(-1)).sum())
        num_all += len(expected)
    return (
        f"probabilities differ by up to {difference:.1e}; {num_same} of {num_all} most probable "
        "outputs are the same"
    )
