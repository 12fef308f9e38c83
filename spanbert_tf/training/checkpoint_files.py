"""Writes the files of a checkpoint with their checksum, and checks them.

A checkpoint is a directory with two files: `state.safetensors` holds the arrays, and
`checkpoint.json` holds the step and the checksum of `state.safetensors`. `checkpoints` gives the
directory its name when both files are complete.
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
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from spanbert_tf.errors import BadInputError, reason
from spanbert_tf.files.contents import file_fault, regular_size
from spanbert_tf.files.text_files import parse_json

DESCRIPTION_FILE = "checkpoint.json"
STATE_FILE = "state.safetensors"
# Prefixes of the names of checkpoints.
STEP = "step-"
BEST = "best-"


class Description(TypedDict):
    """The content of `checkpoint.json`."""

    step: int
    sha256: str
    # Only in a best checkpoint: the metric by which it was chosen, and the metric's value.
    value: NotRequired[float]
    metric: NotRequired[str]
    # Only where frozen weights are left out: the digest of the preset that holds them.
    base: NotRequired[str]


def saved_steps(directory: str, prefix: str = STEP) -> list[int]:
    """Returns the steps of the checkpoints in a directory, oldest first."""
    pattern = re.compile(rf"{prefix}(\d{{8,}})")  # the user may keep copies under other names
    steps = []
    for name in names_in(directory):
        match = pattern.fullmatch(name)
        if match:
            steps.append(int(match[1]))
    return sorted(steps)


def names_in(directory: str) -> list[str]:
    """Lists the names in a directory; an empty list if the directory does not exist."""
    return os.listdir(directory) if os.path.isdir(directory) else []


def write_files(
    directory: str, arrays: Mapping[str, np.ndarray], facts: Mapping[str, float | str]
) -> None:
    """Writes the files of a checkpoint, and returns when they are on the disk."""
    path = os.path.join(directory, STATE_FILE)
    save_file(dict(arrays), path)
    with open(path, "rb+") as file:
        os.fsync(file.fileno())
    with open(os.path.join(directory, DESCRIPTION_FILE), "w", encoding="utf-8") as file:
        json.dump({**facts, "sha256": _sha256_of(path, arrays)}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())


def _sha256_of(path: str, arrays: Mapping[str, np.ndarray]) -> str:
    """Computes the SHA-256 of a safetensors file from its arrays.

    Only the header is read from the file.
    """
    with open(path, "rb") as file:
        length = file.read(8)
        header = file.read(int.from_bytes(length, "little"))
    digest = hashlib.sha256(length + header)
    entries = json.loads(header)  # {name: {"data_offsets": [first, last + 1], …}}
    for name in sorted(arrays, key=lambda name: entries[name]["data_offsets"]):
        flat = np.ascontiguousarray(arrays[name]).reshape(-1)
        digest.update(flat.view("uint8").data)
    return digest.hexdigest()


def read_description(directory: str) -> Description:
    """Reads `checkpoint.json`; raises `OSError` or `ValueError`."""
    path = os.path.join(directory, DESCRIPTION_FILE)
    regular_size(path)
    with open(path, encoding="utf-8") as file:
        return parse_json(file.read(), Description, DESCRIPTION_FILE)


def find_damage(directory: str) -> str | None:
    """Describes what is wrong with the files of a checkpoint; `None` if nothing is wrong.

    Raises:
        BadInputError: the files cannot be read, so nothing is known about their content.
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
