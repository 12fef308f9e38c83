"""Reads and writes text files and JSON. Types of JSON values are checked when they are read.

Nothing here needs TensorFlow.
"""

import dataclasses
import functools
import glob
import json
import os
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from spanbert_tf.errors import BadInputError
from spanbert_tf.files.compression import UnpackedFile
from spanbert_tf.files.contents import refuse_device
from spanbert_tf.files.kinds import HEAD_SIZE, refuse_known_binary, visible_files

T = TypeVar("T")

_ADVICE = "write the records again"


def read_text_file(path: str) -> str:
    """Reads a UTF-8 file, which may be compressed (see `compression`).

    Args:
        path: path of the file.

    Raises:
        BadInputError: the file cannot be read.
    """
    refuse_device(path)
    try:
        with open(path, "rb") as file:
            unpacked = UnpackedFile(path, file, is_limited=True)
            content = unpacked.read()
        is_compressed = unpacked.compression is not None
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
    except IsADirectoryError as error:
        names = visible_files(path, os.listdir(path))
        example = f", such as {os.path.join(path, names[0])}" if names else ""
        raise BadInputError(f"{path}: is a directory; name a file of it{example}") from error
    except OSError as error:
        raise BadInputError(f"{path}: cannot be read as UTF-8 text ({error})") from error


def is_unicode(text: str) -> bool:
    """Whether a text can be encoded as UTF-8. JSON may have halves of surrogate pairs."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def without_surrogates(text: str) -> str:
    """Replaces halves of surrogate pairs, which are no Unicode text, by `?`."""
    return text.encode("utf-8", "replace").decode()


def write_json_lines(path: str, values: Iterable[Any]) -> None:
    """Writes values as JSON, one on each line."""
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(f"{json.dumps(value)}\n" for value in values)


def read_json_lines(path: str, kind: type[T]) -> list[T]:
    """Reads a file that `write_json_lines` wrote; see `parse_json`.

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


def parse_json(text: str | bytes, kind: type[T], place: str, advice: str = "") -> T:
    """Parses JSON and checks its type: a dataclass, a `TypedDict`, `list[str]` and the like.

    Types are strict: `1` is not text, and neither `"1"` nor `true` is a number. Keys that the type
    does not have are ignored, unless its `__pydantic_config__` says otherwise. Halves of surrogate
    pairs, which occur in text from the web, are accepted except in a dataclass.

    Args:
        text: JSON, in UTF-8.
        kind: type of the value.
        place: file, or file and line, for errors.
        advice: what the user can do, for errors.

    Raises:
        BadInputError: the text is not JSON or has another type. The message names the place in it.
    """
    if dataclasses.is_dataclass(kind):
        return _validated(kind, text, place, advice, is_json=True)
    return check_json_value(_decode(text, place, advice), kind, place, advice)


def check_json_value(value: Any, kind: type[T], place: str, advice: str = "") -> T:
    """Checks the type of a decoded value; see `parse_json`.

    Args:
        value: a value as `json.loads` returns it.
        kind: type that it must have.
        place: place of the value, for errors.
        advice: what the user can do, for errors.

    Raises:
        BadInputError: it has another type. The message names the place in the value.
    """
    return _validated(kind, value, place, advice, is_json=False)


def _validated(kind: Any, value: Any, place: str, advice: str, *, is_json: bool) -> Any:
    from pydantic import ValidationError

    adapter = _adapter(kind)
    validate = adapter.validate_json if is_json else adapter.validate_python
    try:
        return validate(value, strict=True)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)[0]
    advice = f"; {advice}" if advice else ""
    where = _where(found["loc"])
    if found["type"] == "json_invalid":
        raise BadInputError(f"{place}: not JSON ({_one_line(found['msg'])}){advice}")
    what = _one_line(found["msg"])
    if found["type"] == "missing":
        what = "is missing"
    if where:
        what = f"{where}: {what}"
    raise BadInputError(f"{place}: {what}{advice}")


def _decode(text: str | bytes, place: str, advice: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        advice = f"; {advice}" if advice else ""
        raise BadInputError(f"{place}: not JSON ({error}){advice}") from error


@functools.cache
def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def _where(location: tuple[str | int, ...]) -> str:
    """Formats a place in a value: `("data", 3, "context")` as `data[3].context`."""
    text = ""
    for part in location:
        if not isinstance(part, str):
            text += f"[{part}]"
        elif part.isidentifier() and part.isascii():
            text += f".{part}"
        else:
            text += f".{json.dumps(part)}"
    return text.removeprefix(".")


def _one_line(message: str) -> str:
    message = " ".join(message.split()).removeprefix("Invalid JSON: ").removeprefix("Input ")
    return message[:1].lower() + message[1:]


def join_words(words: Sequence[str]) -> tuple[str, list[tuple[int, int]]]:
    """Joins words with spaces.

    Returns:
        The text, and for each word its first character and the one after its last.
    """
    places = []
    start = 0
    for word in words:
        places.append((start, start + len(word)))
        start += len(word) + 1
    return " ".join(words), places
