"""JSON whose shape and types are checked where it comes in, so that nothing later stumbles.

Nothing here needs TensorFlow.
"""

import dataclasses
import functools
import json
from collections.abc import Callable
from typing import Any, TypeVar

from spanbert_tf.errors import BadInputError

T = TypeVar("T")


def parse_json(text: str | bytes, kind: type[T], place: str, advice: str = "") -> T:
    """Reads JSON as what a type says: a dataclass, a `TypedDict`, `list[str]` and the like.

    Types are strict: `1` is not text, `"1"` not a number, `true` neither. Keys that the
    type does not name are passed over, unless its `__pydantic_config__` says otherwise. Halves of
    surrogate pairs, which web text has, are text, but not to a dataclass.

    Args:
        text: JSON, UTF-8.
        kind: type of the value.
        place: file, or file and line, for errors.
        advice: what to do about it, for errors.

    Raises:
        BadInputError: the text is not JSON, or of another type; the message names the place in it.
    """
    if dataclasses.is_dataclass(kind):
        return _validated(functools.partial(_adapter(kind).validate_json, text), place, advice)
    return check_json_value(_decode(text, place, advice), kind, place, advice)


def check_json_value(value: Any, kind: type[T], place: str, advice: str = "") -> T:
    """Checks a value that is decoded already; as `parse_json`.

    Args:
        value: as of `json.loads`.
        kind: what it shall be.
        place: place of the value, for errors.
        advice: what to do about it, for errors.

    Raises:
        BadInputError: it is something else; the message names the place inside.
    """
    return _validated(functools.partial(_adapter(kind).validate_python, value), place, advice)


def _validated(validate: Callable[..., T], place: str, advice: str) -> T:
    from pydantic import ValidationError

    try:
        return validate(strict=True)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)[0]
    advice = f"; {advice}" if advice else ""
    where = _where(found["loc"])
    if found["type"] == "json_invalid":
        raise BadInputError(f"{place}: not JSON ({_one_line(found['msg'])}){advice}")
    what = "is missing" if found["type"] == "missing" else _one_line(found["msg"])
    raise BadInputError(f"{place}: {where + ': ' if where else ''}{what}{advice}")


def _decode(text: str | bytes, place: str, advice: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInputError(f"{place}: not JSON ({error}){advice and '; '}{advice}") from error


@functools.cache
def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def _where(location: tuple[str | int, ...]) -> str:
    """`("data", 3, "context")` as `data[3].context`."""
    text = ""
    for part in location:
        if isinstance(part, str):
            text += f".{part if part.isidentifier() and part.isascii() else json.dumps(part)}"
        else:
            text += f"[{part}]"
    return text.removeprefix(".")


def _one_line(message: str) -> str:
    message = " ".join(message.split()).removeprefix("Invalid JSON: ").removeprefix("Input ")
    return message[:1].lower() + message[1:]
