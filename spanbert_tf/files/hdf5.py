"""Checks the layout of an HDF5 file before Keras reads it.

HDF5 follows links into other files, allocates a whole chunk to read one value, and allows any depth
of nested groups. Nothing here needs TensorFlow.
"""

import math
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from spanbert_tf.errors import BadInputError, reason

if TYPE_CHECKING:
    import h5py

# Keras does not compress arrays. A copy may be compressed, but weights hardly shrink.
FREE_BYTES = 16 << 20
MAX_RATIO = 32
# An encoder of 48 layers has 2,200 groups and arrays in 6 levels.
_MOST_OBJECTS = 10_000
_MOST_LEVELS = 32
_DAMAGE = (OSError, ValueError, LookupError, TypeError, RuntimeError)  # errors of h5py
_ADVICE = "copy the preset again"


def check_layout(path: str, where: str) -> None:
    """Refuses a file of weights that refers to other files or states larger arrays than it has.

    Args:
        path: path of the file. A file that is not HDF5 is left to its reader.
        where: name of the file in errors.

    Raises:
        BadInputError: a link or an array leads to another file, there are too many groups, an array
            or its chunks are larger than the size of the file allows, or the file is damaged.
    """
    import h5py

    try:
        file = h5py.File(path)
    except _DAMAGE:
        return
    with file:
        try:
            stated = sum(_array_bytes(array, where) for array in _arrays(file, where))
        except BadInputError:
            raise
        except _DAMAGE as error:
            raise BadInputError(f"{where} is damaged ({reason(error)}); {_ADVICE}") from error
    size = os.path.getsize(path)
    if stated > FREE_BYTES + MAX_RATIO * size:
        raise BadInputError(f"{where} tells of {stated:,} bytes and has {size:,}; {_ADVICE}")


def _arrays(file: "h5py.File", where: str) -> Iterator["h5py.Dataset"]:
    """Yields all arrays of a file. h5py's `visititems` is quadratic in the number of levels."""
    import h5py

    num_objects = 0
    left = [(file, 1)]
    while left:
        group, level = left.pop()
        for name in group:
            num_objects += 1
            if num_objects > _MOST_OBJECTS or level > _MOST_LEVELS:
                raise BadInputError(
                    f"{where} has more than {_MOST_OBJECTS:,} groups and arrays, or groups in more "
                    f"than {_MOST_LEVELS} others, as no weights have; {_ADVICE}"
                )
            if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                raise BadInputError(
                    f"{where}: {name[:200]!a} is a link to another place, as Keras writes none; "
                    f"{_ADVICE}"
                )
            found = group[name]
            if isinstance(found, h5py.Group):
                left.append((found, level + 1))
            elif isinstance(found, h5py.Dataset):
                yield found


def _array_bytes(array: "h5py.Dataset", where: str) -> int:
    """Returns the size in bytes of an array."""
    import h5py

    storage = array.id.get_create_plist()
    layout = storage.get_layout()
    if layout == h5py.h5d.VIRTUAL or storage.get_external_count():
        raise BadInputError(
            f"{where}: the values of {array.name[-200:]!a} lie in another file, as Keras writes "
            f"none; {_ADVICE}"
        )
    num_bytes = math.prod(array.shape or ()) * array.dtype.itemsize
    if layout == h5py.h5d.CHUNKED:
        chunk = math.prod(storage.get_chunk()) * array.dtype.itemsize
        if chunk > FREE_BYTES + num_bytes:
            raise BadInputError(
                f"{where}: {array.name[-200:]!a} of {num_bytes:,} bytes is packed in chunks of "
                f"{chunk:,}; {_ADVICE}"
            )
    return num_bytes
