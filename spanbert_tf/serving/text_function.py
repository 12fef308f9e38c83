"""The export of a task that is one function of texts, and of places in them."""

import dataclasses
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from spanbert_tf.serving.server_files import Manual
from spanbert_tf.serving.warmup import Request

_BATCH_SIZES = (1, 8)
_LONG = 200  # repetitions of a text


@dataclasses.dataclass(frozen=True)
class TextFunction:
    """A `ServedModule` with `serving_default` alone.

    Attributes:
        function: tensors, one for each of `about.inputs`, string [N] or numbers int32 [N, …] → a
            dict of tensors [N, …].
        about: what the README says.
    """

    function: Callable[..., dict[str, tf.Tensor]]
    about: Manual

    def signatures(self) -> dict[str, tuple[Callable, list[tf.TensorSpec]]]:
        """Name → function and its inputs."""
        specs = []
        for name, example in self.about.inputs.items():
            values = np.asarray(example)
            dtype = tf.int32 if values.dtype.kind == "i" else tf.string
            specs.append(tf.TensorSpec([None, *values.shape[1:]], dtype, name=name))
        return {"serving_default": (self.function, specs)}

    def warmup_requests(self) -> list[Request]:
        """The README's example, single and in batches, and long ones."""
        return [
            (
                "serving_default",
                {name: _batch(example[0], size, times) for name, example in inputs.items()},
            )
            for inputs in [self.about.inputs]
            for times in (1, _LONG)
            for size in _BATCH_SIZES
        ]

    def manual(self) -> Manual:
        """What the export's README says."""
        return self.about


def _batch(example: str | list[int], size: int, times: int) -> np.ndarray:
    """Copies of an example, a text so many times as long; numbers are places near its begin."""
    if isinstance(example, str):
        return np.full([size], " ".join([example] * times))
    return np.tile(np.array(example, "int32"), (size, 1))
