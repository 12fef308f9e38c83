"""Text files that are read as a whole, compressed or not. Nothing here needs TensorFlow."""

import glob
import gzip
import os
import zlib
from typing import BinaryIO, TypeVar

from spanbert_tf.errors import BadInputError
from spanbert_tf.files.file_kinds import HEAD_SIZE, refuse_known_binary
from spanbert_tf.files.json_values import parse_json

T = TypeVar("T")

GZIP_MAGIC = b"\x1f\x8b"
# Limits of what a gzip file unpacks to, in bytes, that no text comes near: it shrinks to a third, a
# table padded with spaces or a list of like objects to a tenth.
_FREE_BYTES, _MAX_RATIO = 16 << 20, 32


def read_text_file(path: str) -> str:
    """The text of a UTF-8 file, compressed by gzip or not.

    Raises:
        BadInputError: the file cannot be read.
    """
    try:
        with open(path, "rb") as file:
            is_compressed = file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
            file.seek(0)
            content = _unpacked(path, file) if is_compressed else file.read()
        refuse_known_binary(path, content[:HEAD_SIZE], unpacked=is_compressed)
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


def _unpacked(path: str, file: BinaryIO) -> bytes:
    """What is in a gzip file, up to a limit: 1 MB of one can unpack to 1 GB.

    Raises:
        BadInputError: it unpacks to more.
    """
    limit = _FREE_BYTES + _MAX_RATIO * os.fstat(file.fileno()).st_size
    with gzip.GzipFile(fileobj=file) as unpacked:
        content = unpacked.read(limit + 1)
    if len(content) > limit:
        raise BadInputError(
            f"{path}: unpacks to more than {limit >> 20} MiB, too much for text of its size; if "
            "that is meant, unpack it (`gunzip -k FILE`) and name the unpacked file"
        )
    return content


def read_json_objects(path: str, kind: type[T]) -> list[T]:
    """The objects of a file of JSON lines, empty lines left out; see `parse_json`.

    Args:
        path: path of the file, compressed by gzip or not.
        kind: type of each line, such as a `TypedDict`.

    Raises:
        BadInputError: the file or one of its lines cannot be read.
    """
    text = read_text_file(path)
    refuse_json_list(path, text)
    lines = enumerate(text.split("\n"), start=1)
    return [parse_json(line, kind, f"{path}: line {n}") for n, line in lines if line.strip()]


def refuse_json_list(path: str, beginning: str) -> None:
    """Refuses what should be JSON lines and is a list, which is JSON as well.

    Args:
        path: path of the file, for the error.
        beginning: beginning of its text.

    Raises:
        BadInputError: it is such a file.
    """
    if beginning.lstrip().startswith("["):
        raise BadInputError(f"{path}: is a JSON list; write one JSON object a line")
