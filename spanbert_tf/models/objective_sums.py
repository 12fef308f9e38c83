"""What a model contributes to a loss: sums, so that parts of a batch can be added up."""

from typing import NamedTuple

import keras


class ObjectiveSums(NamedTuple):
    """What one objective contributes before it is divided by the number of its targets.

    Attributes:
        loss: float32 [], sum of the losses of the targets, in nats for cross-entropies.
        num_correct: float32 [], targets that are predicted right; `None` where they are numbers,
            which are not right or wrong.
        num_targets: float32 [].
    """

    loss: keras.KerasTensor
    num_correct: keras.KerasTensor | None
    num_targets: keras.KerasTensor
