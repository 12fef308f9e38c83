"""Finds exports and loads them."""

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_text  # noqa: F401 - registers the operations of exports that take texts

from spanbert_tf.errors import BadInputError, reason
from spanbert_tf.files.contents import check_own_files
from spanbert_tf.serving.description import Description, read_description

SAVED_MODEL_FILE = "saved_model.pb"


class LoadedExport(NamedTuple):
    """A version of an export.

    Attributes:
        description: what it says of itself.
        signatures: name → function, which takes its inputs by their names and returns a dict of
            tensors.
    """

    description: Description
    signatures: Mapping[str, Callable[..., Any]]


def load_export(directory: str) -> LoadedExport:
    """Loads a version of an export.

    Args:
        directory: directory of the version.

    Raises:
        BadInputError: it was not written by `export`, or is damaged, or has files that cannot be
            opened safely.
    """
    check_own_files(directory)
    description = read_description(directory)
    try:
        loaded = tf.saved_model.load(directory)
        return LoadedExport(description, loaded.signatures)
    except (OSError, ValueError, KeyError, RuntimeError, tf.errors.OpError) as error:
        raise BadInputError(f"{directory}: cannot be loaded ({reason(error)})") from error


def is_version(directory: str) -> bool:
    """Whether a directory is a version of an export."""
    return os.path.isfile(os.path.join(directory, SAVED_MODEL_FILE))


def versions_of(directory: str) -> list[str]:
    """Returns the names of the versions in the directory of an export, the highest last.

    Raises:
        OSError: it cannot be read.
    """
    names = [
        name
        for name in os.listdir(directory)
        if name.isdecimal() and is_version(os.path.join(directory, name))
    ]
    return sorted(names, key=int)


def find_version(path: str | os.PathLike) -> str | None:
    """Returns the version of an export that a path names, or the highest in the directory that it
    names; `None` if it names no export.
    """
    directory = os.path.abspath(path)
    if is_version(directory):
        return directory
    try:
        versions = versions_of(directory)
    except OSError:
        return None
    return os.path.join(directory, versions[-1]) if versions else None
