"""How an export in less than float32 changes the outputs."""

import keras
import numpy as np


def describe_difference(exact: list, other: list) -> str:
    """How far the outputs of two models differ for the same sentences.

    Args:
        exact: logits [N, classes] of the model in float32; of a regression its numbers, [N, 1].
        other: logits of the same model in another precision.
    """
    if all(values.shape[-1] == 1 for values in exact):  # whose softmax would always be 1
        differences = [np.abs(one - two) for one, two in zip(exact, other, strict=True)]
        return f"numbers differ by up to {max(map(np.max, differences)):.1e}"
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
