"""The JSON lines that lie beside a task's rows. Nothing here needs TensorFlow."""

import json
from collections.abc import Iterable
from typing import Any, TypeVar

from spanbert_tf.errors import BadInputError
from spanbert_tf.files.json_values import parse_json

T = TypeVar("T")
_ADVICE = "write the records again"


def write_json_lines(path: str, values: Iterable[Any]) -> None:
    """Writes a value a line."""
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(f"{json.dumps(value)}\n" for value in values)


def read_json_lines(path: str, kind: type[T]) -> list[T]:
    """The value of each line; see `parse_json`.

    Args:
        path: path of the file.
        kind: type of each line, such as a `TypedDict`.

    Raises:
        BadInputError: the file or one of its lines cannot be read.
    """
    try:
        with open(path, encoding="utf-8") as file:
            return [
                parse_json(line, kind, f"{path}: line {number}", _ADVICE)
                for number, line in enumerate(file, start=1)
            ]
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError(f"{path}: cannot be read ({error}); {_ADVICE}") from error
