"""What exports of tasks are made of: one function of texts, and rows of long ones in chunks.

N texts, R rows of all of them, C of a chunk.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from spanbert_tf.serving.exporting import ServedModule
from spanbert_tf.serving.server_files import Manual

MAX_ROWS = 32  # what `predict` takes at once by default


@dataclasses.dataclass(frozen=True)
class TextFunction(ServedModule):
    """The export of a task that is one function of texts, and of places in them.

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

    def manual(self) -> Manual:
        """What the export's README says."""
        return self.about


def map_row_chunks(
    function: Callable[[tf.Tensor], object],
    rows: object,
    dtypes: object,
    max_rows: int | tf.Tensor = MAX_ROWS,
) -> object:
    """Applies a function to chunks of rows, one after the other, in a graph or not.

    So the memory that long texts take is bounded.

    Args:
        function: what `rows` is, of tensors [C, …] → a structure of tensors [C, …].
        rows: a structure of tensors [R, …].
        dtypes: structure of the types that the function returns.
        max_rows: C at most. Chunks have the same size, and the last row may be repeated for that.

    Returns:
        What the function returns, of tensors [R, …].
    """
    num_rows = tf.shape(tf.nest.flatten(rows)[0])[0]
    num_chunks = tf.maximum(-(-num_rows // max_rows), 1)  # the function has a say on no rows, too
    size = -(-num_rows // num_chunks)  # C

    def of_chunk(number: tf.Tensor) -> object:
        taken = tf.minimum(number * size + tf.range(size), num_rows - 1)
        return function(tf.nest.map_structure(lambda values: tf.gather(values, taken), rows))

    chunks = tf.map_fn(
        of_chunk, tf.range(num_chunks), parallel_iterations=1, fn_output_signature=dtypes
    )

    def joined(values: tf.Tensor) -> tf.Tensor:
        shape = tf.concat([[num_chunks * size], tf.shape(values)[2:]], axis=0)
        return tf.reshape(values, shape)[:num_rows]

    return tf.nest.map_structure(joined, chunks)
