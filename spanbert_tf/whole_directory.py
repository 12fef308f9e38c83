"""Directories that appear whole or not at all. Nothing here needs TensorFlow."""

import os
import shutil
from collections.abc import Callable

from spanbert_tf.errors import BadInputError


def write_directory(directory: str, write: Callable[[str], None]) -> None:
    """Writes a directory aside and renames it to its name, in place of an earlier one.

    Args:
        directory: its final name.
        write: is called with the name of an empty directory, and fills it.

    Raises:
        BadInputError: it cannot be written; an earlier directory is there as it was.
    """
    unfinished = f"{directory}.incomplete"
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        os.makedirs(unfinished)
        write(unfinished)
        _replace_directory(unfinished, directory)
    except OSError as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise BadInputError(
            f"{directory}: cannot be written ({reason}); free some space"
        ) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _replace_directory(source: str, target: str) -> None:
    """Renames a directory to the name of one that may exist."""
    earlier = f"{target}.replaced"
    shutil.rmtree(earlier, ignore_errors=True)
    if os.path.isdir(target):
        os.rename(target, earlier)
    try:
        os.rename(source, target)
    except OSError:
        if os.path.isdir(earlier):
            os.rename(earlier, target)
        raise
    shutil.rmtree(earlier, ignore_errors=True)
