"""Reads tensors from checkpoints of TensorFlow 1 and 2."""

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

OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"  # a tensor that only TensorFlow 2 writes


class TensorFile:
    """A checkpoint of TensorFlow, whose tensors are read one by one.

    Args:
        prefix: path of the checkpoint's files without `.index`.
        path: the user's name for the directory.

    Attributes:
        where: name of the checkpoint in errors.
        shapes: name → shape of each tensor.
        dtypes: name → `tf.DType` of each tensor.

    Raises:
        BadInputError: the checkpoint is damaged, or its data files are shorter than the index says.
    """

    def __init__(self, prefix: str, path: str) -> None:
        self.where = f"{path}: {os.path.basename(prefix)}.index"
        with named_damage(self.where):
            self._reader = tf.train.load_checkpoint(prefix)
            self.shapes = self._reader.get_variable_to_shape_map()
            self.dtypes = self._reader.get_variable_to_dtype_map()
        self._refuse_absurd_sizes(prefix)

    def _refuse_absurd_sizes(self, prefix: str) -> None:
        """Raises `BadInputError` if the index states more bytes of tensors than the files have.

        A damaged index could otherwise make TensorFlow allocate any amount of memory. The data
        files contain the tensors uncompressed, one after another.
        """
        stated = 0
        for name, shape in self.shapes.items():
            dtype = self.dtypes[name]
            smallest_size = 1 if dtype == tf.string else dtype.size
            stated += math.prod(shape) * smallest_size
        held = sum(os.path.getsize(file) for file in glob.glob(f"{glob.escape(prefix)}.data-*"))
        if stated > held:
            raise BadInputError(
                f"{self.where}: tells of {stated:,} bytes of tensors, and its data files hold "
                f"{held:,}; copy all of them again"
            )

    def tensor(self, name: str) -> np.ndarray:
        """Returns the values of a tensor of any dtype."""
        with named_damage(self.where):
            return self._reader.get_tensor(name)

    def array(self, name: str, entry: Entry | None = None, theirs: str = "") -> Array:
        """Returns a tensor of weights as an array that is read when it is used.

        Args:
            name: name of the tensor.
            entry: its entry in the table of arrays. The result has the layout of a `Checkpoint`.
                `None`: the layout is not changed.
            theirs: name of the entry in this format.

        Raises:
            BadInputError: when the array is read, and is damaged or not of floating-point numbers.
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
    """Raises TensorFlow's errors for a damaged checkpoint as `BadInputError`."""
    try:
        yield
    except (tf.errors.OpError, RuntimeError, ValueError, IndexError) as error:
        raise BadInputError(f"{where}: is damaged ({reason(error)}); copy it again") from error
