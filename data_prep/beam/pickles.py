"""Loads pickles of a few classes from the work directory of `prepare pretraining`.

A directory that a killed command seems to have left may come from somebody else, and a pickle can
call any function. Therefore only classes that the caller names are loaded. They are tuples and data
classes, whose constructors run no other code.
"""

import pickle
from collections.abc import Iterable
from typing import Any, BinaryIO

# Errors that may be raised when bytes are loaded that are no such pickle. Python's documentation of
# `pickle` names some of them.
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
        classes: the classes that are allowed, besides Python's numbers, bytes, strings, lists,
            tuples and dictionaries.

    Raises:
        pickle.UnpicklingError: the pickle names another class or a function, or is damaged.
    """
    return _Unpickler(file, classes).load()


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: BinaryIO, classes: Iterable[type]) -> None:
        super().__init__(file)
        self._classes = {(each.__module__, each.__qualname__): each for each in classes}

    def find_class(self, module: str, name: str) -> Any:
        """Returns a class that is allowed."""
        if (module, name) not in self._classes:
            raise pickle.UnpicklingError(f"{module}.{name} does not belong here")
        return self._classes[module, name]
