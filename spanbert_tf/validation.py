"""Sections of configurations: pydantic models, whose first error is said in one line.

A key's type and range stand beside its field, in pydantic's words; so does what is wrong with it.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from spanbert_tf.errors import BadInputError, ConfigurationError

NotNegativeInt = Annotated[int, Field(ge=0)]
PositiveInt = Annotated[int, Field(ge=1)]
NotNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]
PositiveUpToOne = Annotated[float, Field(gt=0, le=1)]

_CONFLICT = "conflict"
_MAX_DIVISOR = 1 << 20


class Section(BaseModel):
    """Base of the sections: whole numbers pass for numbers, nothing else is converted."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)

    def replace(self, **changes: Any) -> Self:
        """The same with other values, which are checked.

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
    """A model of checked values; the first error is one of the user's.

    Args:
        kind: what to make.
        values: by the names of its fields; those of sections are sections or mappings.
        section: key of what is made, where it is a section.
        place: of what an error is about, from the keys that it names: `"my.yaml: line 7: "`.

    Raises:
        ConfigurationError: a value has the wrong type, is out of range or does not fit others.
    """
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        keys, problem = first_problem(error, section)
        raise ConfigurationError(f"{place(keys)}{keys[0]}: {problem}") from error


def first_problem(error: ValidationError, section: str = "") -> tuple[list[str], str]:
    """The keys that the first error is about, and what is wrong with the first of them."""
    first: Any = error.errors(include_url=False)[0]
    # Not the place in a list: it stands in one line.
    path = [section] * bool(section) + [name for name in first["loc"] if isinstance(name, str)]
    if first["type"] == _CONFLICT:
        said = first["ctx"]
        keys = [".".join((*path, key)) for key in said["keys"]]
        return keys, f"{said['problem']}; for example --set {said['fix']}"
    _, should, wanted = first["msg"].partition(" should ")
    return [".".join(path)], f"{first['input']!r} must {wanted}" if should else first["msg"]


def conflict(problem: str, *keys: str, fix: str) -> PydanticCustomError:
    """What a model's validator raises where values do not fit together.

    Args:
        problem: what is wrong; it follows the first key.
        *keys: of the values, as seen from the model.
        fix: `key=value` that would fit, for `--set`.
    """
    return PydanticCustomError(
        _CONFLICT, "{problem}", {"problem": problem, "keys": keys, "fix": fix}
    )


def largest_divisor(number: int, limit: int) -> int:
    """The largest divisor of a number that is not above a limit: what would fit in its place.

    Nor above 2^20, so that a number with digits too many takes no hours.
    """
    start = min(number, limit, _MAX_DIVISOR)
    return next(divisor for divisor in range(start, 0, -1) if number % divisor == 0)


def whole_number(name: str, value: Any, least: int | None = None) -> int:
    """An argument of a function as Python's integer; NumPy's are such, too.

    Raises:
        BadInputError: it is none, or less than `least`.
    """
    try:
        number = operator.index(value)
    except TypeError as error:
        raise BadInputError(f"{name}: must be a whole number, not {value!r}") from error
    if least is not None and number < least:
        raise BadInputError(f"{name}: {number} is less than {least}")
    return number
