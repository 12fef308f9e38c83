"""Pickles of a few classes, in the work folder of `prepare pretraining`.

A folder that a killed command seems to have left may come from somebody else, and a pickle can name
any function to be called. So only classes that the caller names are loaded. They are tuples and
data classes, which do nothing when they are made.
"""

import pickle
from collections.abc import Iterable
from typing import Any, BinaryIO

# What loading bytes that are no such pickle may raise (Python's documentation of `pickle` names
# some of them).
PICKLE_ERRORS = (
    pickle.UnpicklingError,
    AttributeError,
    EOFError,
    IndexError,
    KeyError,
    MemoryError,
    OverflowError,
    TypeError,
    ValueError,
)


def load_pickle(file: BinaryIO, classes: Iterable[type] = ()) -> Any:
    """Loads the next pickle of a file.

    Args:
        file: the file.
        classes: the classes that its objects may have, besides Python's numbers, bytes, texts,
            lists, tuples and dictionaries.

    Raises:
        pickle.UnpicklingError: the pickle has another class or function, or is damaged.
    """
    return _Unpickler(file, classes).load()


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: BinaryIO, classes: Iterable[type]) -> None:
        super().__init__(file)
        self._classes = {(each.__module__, each.__qualname__): each for each in classes}

    def find_class(self, module: str, name: str) -> Any:
        """Returns one of the classes."""
        if (module, name) not in self._classes:
            raise pickle.UnpicklingError(f"{module}.{name} does not belong here")
        return self._classes[module, name]
