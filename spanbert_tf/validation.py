"""Dataclasses that check their values when they are made: types, and ranges beside the fields.

pydantic checks; the errors say it in this project's words, with the key that a user wrote.
"""

import dataclasses
import math
import types
import typing
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Self

from pydantic import ConfigDict, Field, ModelWrapValidatorHandler, ValidationError, model_validator
from pydantic.dataclasses import dataclass

from spanbert_tf.errors import ConfigurationError

NotNegativeInt = Annotated[int, Field(ge=0)]
PositiveInt = Annotated[int, Field(ge=1)]
NotNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]
PositiveUpToOne = Annotated[float, Field(gt=0, le=1)]

_RANGE_ERRORS = {"greater_than", "greater_than_equal", "less_than", "less_than_equal"}


class InvalidValueError(ConfigurationError):
    """A value of a section has the wrong type, is out of range, or does not fit another one.

    Args:
        key: key of the value, as seen from the section.
        problem: what is wrong; it follows the key.
        section: key of the section, where it is known.
        beside: keys of the other values that matter here, as seen from the section.
        fix: `key=value` that would fit, for `--set`.
    """

    def __init__(
        self,
        key: str,
        problem: str,
        *,
        section: str = "",
        beside: Sequence[str] = (),
        fix: str = "",
    ) -> None:
        self.keys = (key, *beside)
        self.problem = f"{problem}; for example --set {fix}" if fix else problem
        super().__init__(f"{section}.{key}{self.problem}" if section else f"{key}{self.problem}")


@dataclass(frozen=True, config=ConfigDict(strict=True, extra="forbid", allow_inf_nan=False))
class Section:
    """Base of the sections of a configuration: `@pydantic.dataclasses.dataclass(frozen=True)`.

    Whole numbers pass for numbers; nothing else is converted. `dataclasses.replace` checks, too.

    Raises:
        InvalidValueError: a value has the wrong type or is out of range.
    """

    section: ClassVar[str] = ""  # a class that is made directly names its section in errors

    @model_validator(mode="wrap")
    @classmethod
    def _say_what_is_wrong(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return handler(values)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
        names = [field.name for field in dataclasses.fields(cls)]
        # An argument is found by its name or, where it was given without, by its place.
        argument = first["loc"][0] if first["loc"] else None
        name = dict(enumerate(names)).get(argument, argument)
        if name not in names:
            raise TypeError(f"{cls.__name__}: {first['msg']}: {name}")
        annotation = typing.get_type_hints(cls, include_extras=True)[name]
        raise InvalidValueError(name, _problem(annotation, first), section=cls.section)

    def as_dict(self) -> dict[str, Any]:
        """The values, those of sections as dictionaries."""
        return dataclasses.asdict(self)


def largest_divisor(number: int, limit: int) -> int:
    """The largest divisor of a number that is not above a limit: what would fit in its place."""
    small = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    divisors = (*small, *(number // divisor for divisor in small))
    return max(divisor for divisor in divisors if divisor <= limit)


def _problem(annotation: Any, error: Any) -> str:
    value = error["input"]
    if error["type"] in _RANGE_ERRORS:
        (bound,) = error["ctx"].values()
        return f": {type(bound)(value)} is {_outside(_bounds(annotation))}"
    if len(error["loc"]) > 1:  # an item of a list
        annotation = typing.get_args(_without_bounds(annotation))[0]
    return f" must be {_describe(annotation)}, not {value!r}"


def _bounds(annotation: Any) -> dict[str, Any]:
    """The limits in an annotation, at any depth: `{"ge": 0, "lt": 1}`."""
    found: dict[str, Any] = {}
    for field in getattr(annotation, "__metadata__", ()):
        for limit in field.metadata:
            found |= dataclasses.asdict(limit)
    for part in typing.get_args(annotation):
        found |= _bounds(part)
    return {name: limit for name, limit in found.items() if name in ("ge", "gt", "le", "lt")}


def _outside(bounds: dict[str, Any]) -> str:
    words = {
        ("ge",): "less than {ge}",
        ("gt",): "not more than {gt}",
        ("ge", "lt"): "not from {ge} to below {lt}",
        ("gt", "lt"): "not between {gt} and {lt}",
        ("ge", "le"): "not from {ge} to {le}",
        ("gt", "le"): "not more than {gt} and at most {le}",
    }
    return words[tuple(sorted(bounds, key="ge gt le lt".index))].format(**bounds)


def _without_bounds(annotation: Any) -> Any:
    is_annotated = typing.get_origin(annotation) is Annotated
    return typing.get_args(annotation)[0] if is_annotated else annotation


def _describe(annotation: Any) -> str:
    annotation = _without_bounds(annotation)
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_describe(part) for part in parts)
    if origin is typing.Literal:
        return " or ".join(parts)
    if origin is list:
        return f"a list, each entry {_describe(parts[0])}"
    return {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: "text",
        types.NoneType: "null",
    }[annotation]
