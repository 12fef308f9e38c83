"""The files of a checkpoint: written with their checksum, and checked when they are read.

A checkpoint is a directory of `state.safetensors` and `checkpoint.json`, which holds the step and
the file's checksum. No directory has such a name before it is complete.
"""

import errno
import hashlib
import json
import os
import re
from collections.abc import Mapping
from typing import NotRequired

import numpy as np
from safetensors.numpy import save_file
from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12

from spanbert_tf.errors import BadInputError, reason
from spanbert_tf.files.contents import file_fault, regular_size
from spanbert_tf.files.text_files import parse_json

DESCRIPTION_FILE, STATE_FILE = "checkpoint.json", "state.safetensors"
STEP, BEST = "step-", "best-"


class Description(TypedDict):
    """The content of `checkpoint.json`."""

    step: int
    sha256: str
    value: NotRequired[float]  # of `metric`, in one of the best
    metric: NotRequired[str]  # that chose it
    base: NotRequired[str]  # of what the weights that are left out come from


def saved_steps(directory: str, prefix: str = STEP) -> list[int]:
    """Steps of the checkpoints in a directory, oldest first; none where it is not there."""
    pattern = re.compile(rf"{prefix}(\d{{8,}})")  # other names are a user's own copies
    return sorted(int(match[1]) for match in map(pattern.fullmatch, names_in(directory)) if match)


def names_in(directory: str) -> list[str]:
    """What lies in a directory; nothing where it is not there."""
    return os.listdir(directory) if os.path.isdir(directory) else []


def write_files(
    directory: str, arrays: Mapping[str, np.ndarray], facts: Mapping[str, float | str]
) -> None:
    """Writes the files of a checkpoint, whose disk has them when this returns."""
    path = os.path.join(directory, STATE_FILE)
    save_file(dict(arrays), path)
    with open(path, "rb+") as file:
        os.fsync(file.fileno())
    with open(os.path.join(directory, DESCRIPTION_FILE), "w", encoding="utf-8") as file:
        json.dump({**facts, "sha256": _sha256_of(path, arrays)}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())


def _sha256_of(path: str, arrays: Mapping[str, np.ndarray]) -> str:
    """The checksum of a file of these arrays, of which its head alone is read again."""
    with open(path, "rb") as file:
        length = file.read(8)
        head = file.read(int.from_bytes(length, "little"))
    digest = hashlib.sha256(length + head)
    places = json.loads(head)  # {name: {"data_offsets": [first, last + 1], …}}
    for name in sorted(arrays, key=lambda name: places[name]["data_offsets"]):
        digest.update(np.ascontiguousarray(arrays[name]).reshape(-1).view("uint8"))
    return digest.hexdigest()


def read_description(directory: str) -> Description:
    """What `checkpoint.json` says; raises OSError or ValueError."""
    path = os.path.join(directory, DESCRIPTION_FILE)
    regular_size(path)
    with open(path, encoding="utf-8") as file:
        return parse_json(file.read(), Description, DESCRIPTION_FILE)


def find_damage(directory: str) -> str | None:
    """What is wrong with the files of a checkpoint, or None.

    Raises:
        BadInputError: they cannot be read, which says nothing of their content.
    """
    try:
        fault = file_fault(directory, STATE_FILE, read_description(directory)["sha256"])
        return f"{STATE_FILE} {fault}" if fault else None
    except ValueError as error:
        return reason(error)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EINVAL):  # missing, or a pipe in its place
            name = os.path.basename(error.filename or STATE_FILE)
            return f"{name} cannot be read ({reason(error)})"
        raise BadInputError(
            f"{directory}: cannot be read ({reason(error)}); mend that, or remove it to go on from "
            "the checkpoint before"
        ) from error
