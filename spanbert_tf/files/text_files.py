"""Text files that are read as a whole, compressed or not. Nothing here needs TensorFlow."""

import glob
import gzip
import zlib
from typing import TypeVar

from spanbert_tf.errors import BadInputError
from spanbert_tf.files.json_values import parse_json

T = TypeVar("T")

GZIP_MAGIC = b"\x1f\x8b"


def read_text_file(path: str) -> str:
    """The text of a UTF-8 file, compressed by gzip or not.

    Raises:
        BadInputError: the file cannot be read.
    """
    try:
        with open(path, "rb") as file:
            content = file.read()
        if content.startswith(GZIP_MAGIC):
            content = gzip.decompress(content)
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = 1 + error.object[: error.start].count(b"\n")
        raise BadInputError(
            f"{path}: line {line}: cannot be read as UTF-8 text ({error.reason}); convert the file"
        ) from error
    except FileNotFoundError as error:
        advice = "; patterns are not taken here, one file is" if glob.has_magic(path) else ""
        raise BadInputError(f"{path}: no such file{advice}") from error
    except (OSError, EOFError, zlib.error) as error:
        raise BadInputError(f"{path}: cannot be read as UTF-8 text ({error})") from error


def read_json_objects(path: str, kind: type[T]) -> list[T]:
    """The objects of a file of JSON lines, empty lines left out; see `parse_json`.

    Args:
        path: path of the file, compressed by gzip or not.
        kind: type of each line, such as a `TypedDict`.

    Raises:
        BadInputError: the file or one of its lines cannot be read.
    """
    lines = enumerate(read_text_file(path).split("\n"), start=1)
    return [parse_json(line, kind, f"{path}: line {n}") for n, line in lines if line.strip()]
