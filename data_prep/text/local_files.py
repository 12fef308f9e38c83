"""Lists the local files that match a pattern, through links to directories, too.

Beam's own listing leaves out such directories, links that lead nowhere, and what cannot be read.
"""

import os
import re
from collections.abc import Iterator

import data_prep.beam.storage  # noqa: F401 — imports Beam without its warnings

# isort: split
from apache_beam.io.filesystem import FileSystem

from spanbert_tf.errors import BadInputError

_FIRST_WILDCARD = re.compile(r"[*?[]")


def match_local_files(pattern: str) -> dict[str, int]:
    """Sizes in bytes of the local files that match a pattern, by their paths.

    Args:
        pattern: absolute; `**` also matches `/`, and leads into linked directories but for those
            that it has come from.

    Raises:
        BadInputError: a link that matches leads nowhere.
        OSError: a directory that may hold such files cannot be listed.
    """
    matches = re.compile(FileSystem.translate_pattern(pattern)).match
    found = _FIRST_WILDCARD.search(pattern)
    root = os.path.dirname(pattern[: found.start()] if found else pattern)
    paths = _walk(root, pattern, frozenset()) if os.path.isdir(root) else ()
    return {path: _size(path) for path in paths if matches(path)}


def _walk(directory: str, pattern: str, above: frozenset[str]) -> Iterator[str]:
    """Whatever lies in a directory and in those below it that may hold what is looked for."""
    place = os.path.realpath(directory)
    if place in above:  # a link led back to where we came from
        return
    for name in sorted(os.listdir(directory)):
        path = os.path.join(directory, name)
        if not os.path.isdir(path):
            yield path
        elif _may_hold(path, pattern):
            yield from _walk(path, pattern, above | {place})


def _may_hold(directory: str, pattern: str) -> bool:
    depth = directory.count("/") + 1
    start, is_whole = pattern.split("/")[:depth], pattern.count("/") < depth
    if any("**" in part for part in start):
        return True
    return not is_whole and bool(re.match(FileSystem.translate_pattern("/".join(start)), directory))


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError as error:
        if not os.path.islink(path):
            raise
        raise BadInputError(
            f"{path}: is a link to nothing ({os.readlink(path)}); mend or remove it"
        ) from error
