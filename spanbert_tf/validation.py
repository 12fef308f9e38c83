"""Base class and checks of the sections of configurations, which are pydantic models.

The type and range of a key are declared with its field, and pydantic describes what is wrong with a
value. The first error becomes a message of one line.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError
from pydantic_core import PydanticCustomError

from spanbert_tf.errors import BadInputError, ConfigurationError

NotNegativeInt = Annotated[int, Field(ge=0)]
PositiveInt = Annotated[int, Field(ge=1)]
NotNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]
PositiveUpToOne = Annotated[float, Field(gt=0, le=1)]

# A number, or a list of two of them. The tags choose the type whose errors are told.
_ONE = "one number"
_TWO = "two numbers"
_Number = TypeVar("_Number")
OneOrTwo = Annotated[
    Annotated[_Number, Tag(_ONE)]
    | Annotated[list[_Number], Field(min_length=2, max_length=2), Tag(_TWO)],
    Discriminator(lambda value: _TWO if isinstance(value, list) else _ONE),
]

_CONFLICT = "conflict"
_MAX_DIVISOR = 1 << 20


class Section(BaseModel):
    """Base class of the sections. Integers are accepted as floats; no other type is converted."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)

    def replace(self, **changes: Any) -> Self:
        """Returns a copy with other values, which are checked.

        Raises:
            ConfigurationError: a value has the wrong type, is out of range or does not fit others.
        """
        return validated(type(self), dict(self) | changes)


Model = TypeVar("Model", bound=Section)


def validated(
    kind: type[Model],
    values: Mapping[str, Any],
    *,
    section: str = "",
    place: Callable[[Sequence[str]], str] = lambda keys: "",
) -> Model:
    """Makes a model from values, which are checked.

    Args:
        kind: class of the model.
        values: values of its fields. Those of sections are sections or mappings.
        section: key of the model in the configuration, if it is a section.
        place: takes the keys that an error names; returns the beginning of the message, such as
            `"my.yaml: line 7: "`.

    Raises:
        ConfigurationError: a value has the wrong type, is out of range or does not fit others.
    """
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        keys, problem = first_problem(error, section)
        raise ConfigurationError(f"{place(keys)}{keys[0]}: {problem}") from error


def first_problem(error: ValidationError, section: str = "") -> tuple[list[str], str]:
    """Returns the keys that the first error names, and a description of the problem."""
    first: Any = error.errors(include_url=False)[0]
    # Indices in lists are omitted: a list is on one line.
    path = [name for name in first["loc"] if isinstance(name, str) and name not in (_ONE, _TWO)]
    if section:
        path.insert(0, section)
    if first["type"] == _CONFLICT:
        context = first["ctx"]
        keys = [".".join((*path, key)) for key in context["keys"]]
        return keys, f"{context['problem']}; for example --set {context['fix']}"
    problem = first["msg"]
    _, should, wanted = problem.partition(" should ")
    if should:
        problem = f"{first['input']!r} must {wanted}"
    return [".".join(path)], problem


def conflict(problem: str, *keys: str, fix: str) -> PydanticCustomError:
    """Makes the error that the validator of a model raises if values do not fit together.

    Args:
        problem: description of the problem; it follows the first key in the message.
        *keys: keys of the values, relative to the model.
        fix: `key=value` that would fit, for `--set`.
    """
    return PydanticCustomError(
        _CONFLICT, "{problem}", {"problem": problem, "keys": keys, "fix": fix}
    )


def largest_divisor(number: int, limit: int) -> int:
    """Finds the largest divisor of a number that is at most `limit` (and 2^20).

    Messages suggest it. The second limit bounds the time of the search for absurdly large numbers.
    """
    start = min(number, limit, _MAX_DIVISOR)
    return next(divisor for divisor in range(start, 0, -1) if number % divisor == 0)


def whole_number(name: str, value: Any, least: int | None = None) -> int:
    """Converts an argument to `int`; integers of NumPy are accepted.

    Args:
        name: name of the argument, for errors.
        value: the argument.
        least: smallest value that is allowed, if there is one.

    Raises:
        BadInputError: the value is not an integer, or is less than `least`.
    """
    try:
        number = operator.index(value)
    except TypeError as error:
        raise BadInputError(f"{name}: must be a whole number, not {value!r}") from error
    if least is not None and number < least:
        raise BadInputError(f"{name}: {number} is less than {least}")
    return number
