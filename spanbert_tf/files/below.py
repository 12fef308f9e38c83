"""All files below a directory, linked directories included. Nothing here needs TensorFlow."""

import os
from collections.abc import Callable, Iterable, Iterator


def files_below(
    directory: str,
    is_searched: Callable[[str], bool] = lambda directory: True,
    above: frozenset[str] = frozenset(),
) -> Iterator[str]:
    """The paths of all files below a directory, each directory's sorted by name.

    `os.walk` passes over linked directories, and over those that cannot be listed.

    Args:
        directory: path of the directory.
        is_searched: whether a directory below it is searched, by its path.
        above: real paths of the directories that it was come from; a link back is not followed.

    Raises:
        OSError: a directory cannot be listed.
    """
    place = os.path.realpath(directory)
    if place in above:
        return
    for name in sorted(os.listdir(directory)):
        path = os.path.join(directory, name)
        if not os.path.isdir(path):
            yield path
        elif is_searched(path):
            yield from files_below(path, is_searched, above | {place})


def each_once(paths: Iterable[str]) -> list[str]:
    """Of paths to one file or directory, to which links can lead by several ways, the first."""
    places: dict[str, str] = {}  # real path → path
    for path in paths:
        places.setdefault(os.path.realpath(path), path)
    return list(places.values())
