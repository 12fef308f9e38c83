"""Lists the local files that match a pattern, through links to directories, too.

Beam's own listing leaves out such directories, links that lead nowhere, and what cannot be read.
"""

import functools
import os
import re

import data_prep.beam.storage  # noqa: F401 — imports Beam without its warnings

# isort: split
from apache_beam.io.filesystem import FileSystem

from spanbert_tf.errors import BadInputError
from spanbert_tf.files.contents import files_inside

_FIRST_WILDCARD = re.compile(r"[*?[]")


def match_local_files(pattern: str, *, follow_links: bool = False) -> dict[str, int]:
    """Sizes in bytes of the local files that match a pattern, by their paths.

    Args:
        pattern: absolute; `**` also matches `/`, and leads into linked directories but for those
            that it has come from.
        follow_links: whether links may lead out of the directory before the first wildcard.

    Raises:
        BadInputError: a link that matches leads nowhere, or out of that directory.
        OSError: a directory that may hold such files cannot be listed.
    """
    matches = re.compile(FileSystem.translate_pattern(pattern)).match
    found = _FIRST_WILDCARD.search(pattern)
    root = os.path.dirname(pattern[: found.start()] if found else pattern)
    paths = ()
    if os.path.isdir(root):
        is_searched = functools.partial(_may_hold, pattern=pattern)
        paths = files_inside(root, matches, is_searched, follow_links=follow_links)
    return {path: _size(path) for path in paths}


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
