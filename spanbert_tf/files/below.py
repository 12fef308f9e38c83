"""All files below a directory, linked directories included. Nothing here needs TensorFlow."""

import os
from collections.abc import Callable, Iterable, Iterator

from spanbert_tf.errors import BadInputError

_MOST_SHOWN = 20


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


def files_inside(
    folder: str,
    is_taken: Callable[[str], bool],
    is_searched: Callable[[str], bool] = lambda directory: True,
    *,
    follow_links: bool,
) -> list[str]:
    """The files below a folder that are taken; a link that leads out of it only if asked for.

    A folder may come from somebody else, with a link to what is private on this machine.

    Args:
        folder: path of the folder, which may be a link itself.
        is_taken: whether a file is taken, by its path.
        is_searched: as for `files_below`.
        follow_links: whether links may lead out of the folder.

    Raises:
        BadInputError: links lead out of the folder; the message names them.
        OSError: a directory cannot be listed.
    """
    out = []

    def stays(path: str) -> bool:
        if follow_links or not os.path.islink(path) or is_inside(path, folder):
            return True
        out.append(path)
        return False

    paths = files_below(folder, lambda directory: is_searched(directory) and stays(directory))
    found = [path for path in paths if is_taken(path) and stays(path)]
    refuse_links(out, folder)
    return found


def is_inside(path: str, folder: str) -> bool:
    """Whether a path is inside a folder, wherever links lead."""
    place = os.path.realpath(folder)
    return os.path.commonpath([place, os.path.realpath(path)]) == place


def refuse_links(paths: list[str], folder: str) -> None:
    """Raises `BadInputError` if there are such paths, which lead out of the folder."""
    if paths:
        shown = [f"{path} -> {os.path.realpath(path)}" for path in paths[:_MOST_SHOWN]]
        shown += [f"{len(paths) - _MOST_SHOWN} more"] * (len(paths) > _MOST_SHOWN)
        raise BadInputError(
            f"{folder}: links lead out of it ({', '.join(shown)}); remove them, or give "
            "--follow-links if what they lead to is to be read"
        )


def each_once(paths: Iterable[str]) -> list[str]:
    """Of paths to one file or directory, to which links can lead by several ways, the first."""
    places: dict[str, str] = {}  # real path → path
    for path in paths:
        places.setdefault(os.path.realpath(path), path)
    return list(places.values())
