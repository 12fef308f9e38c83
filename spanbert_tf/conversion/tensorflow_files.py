"""Tensors from checkpoints of TensorFlow 1 and 2."""

import contextlib
import glob
import math
import os
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from spanbert_tf.conversion.checkpoint import Array, LazyArray, check_floats, transposed
from spanbert_tf.conversion.names import Entry
from spanbert_tf.errors import BadInputError, reason

OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"  # what checkpoints of TensorFlow 2 hold beside arrays


class TensorFile:
    """A checkpoint of TensorFlow; its tensors are read one by one.

    Args:
        prefix: path of its files without `.index`.
        path: the user's name for the directory.

    Attributes:
        where: what to call it in errors.
        shapes: name → shape of each tensor.
        dtypes: name → `tf.DType` of each tensor.

    Raises:
        BadInputError: it is damaged, or its data files lack what the index tells of.
    """

    def __init__(self, prefix: str, path: str) -> None:
        self.where = f"{path}: {os.path.basename(prefix)}.index"
        with named_damage(self.where):
            self._reader = tf.train.load_checkpoint(prefix)
            self.shapes = self._reader.get_variable_to_shape_map()
            self.dtypes = self._reader.get_variable_to_dtype_map()
        self._refuse_absurd_sizes(prefix)

    def _refuse_absurd_sizes(self, prefix: str) -> None:
        """Compares sizes first: tensors lie side by side, uncompressed, in the data files."""
        stated = 0
        for name, shape in self.shapes.items():
            dtype = self.dtypes[name]
            stated += math.prod(shape) * (1 if dtype == tf.string else dtype.size)
        held = sum(os.path.getsize(file) for file in glob.glob(f"{glob.escape(prefix)}.data-*"))
        if stated > held:
            raise BadInputError(
                f"{self.where}: tells of {stated:,} bytes of tensors, and its data files hold "
                f"{held:,}; copy all of them again"
            )

    def tensor(self, name: str) -> np.ndarray:
        """The values of a tensor, whatever its type."""
        with named_damage(self.where):
            return self._reader.get_tensor(name)

    def array(self, name: str, entry: Entry | None = None, theirs: str = "") -> Array:
        """The values of a tensor of weights, read when they are asked for.

        Args:
            name: of the tensor.
            entry: the array of a `Checkpoint` that it is, in whose layout it is returned.
            theirs: the name in the format's column of the table of arrays.
        """
        shape = tuple(self.shapes[name])
        if entry is not None:
            shape = entry.joined_shape(shape)

        def read() -> np.ndarray:
            check_floats(self.dtypes[name], name, self.where)
            return self.tensor(name).reshape(shape)

        array = LazyArray(shape, read)
        is_transposed = entry is not None and len(shape) == 2 and entry.is_transposed(theirs)
        return transposed(array) if is_transposed else array


@contextlib.contextmanager
def named_damage(where: str) -> Iterator[None]:
    """What TensorFlow says of a damaged checkpoint, as `BadInputError`."""
    try:
        yield
    except (tf.errors.OpError, RuntimeError, ValueError, IndexError) as error:
        raise BadInputError(f"{where}: is damaged ({reason(error)}); copy it again") from error
