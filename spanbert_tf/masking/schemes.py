"""The masking schemes, which define the span that one draw masks.

This module does not import TensorFlow, because configurations use it. Another package adds a
scheme by an entry point of the group `spanbert_tf.masking_schemes`: its name is the name of the
scheme, and its value is a `Scheme`.
"""

import functools
import importlib.metadata
from typing import Literal

from pydantic import ValidationError, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from spanbert_tf.errors import ConfigurationError
from spanbert_tf.validation import PositiveInt, PositiveUpToOne, Section, first_problem

ENTRY_POINTS = "spanbert_tf.masking_schemes"
ReplacementUnit = Literal["token", "word", "span"]
SpanStart = Literal["anchor_token", "word"]
ANNOTATED = ("entities", "noun_phrases")  # spans that cover a part of a block
MOST_ANNOTATED = 0.99  # maximum share of draws, so that the others fill any budget in time


class Scheme(Section):
    """A masking scheme (SpanBERT, sections 3.1 and 6.1).

    A run keeps the settings of a scheme of another package, and resumes with no others, since its
    configuration has only the name.

    Attributes:
        unit: unit in which the length of spans is counted.
        max_units: number of units of the longest span; `None` for the value of the options.
        span_start: start of a span of words. `"anchor_token"` draws a token evenly and starts at
            its word, `"word"` draws a word evenly. `None` for the value of the options.
        spans: kind of the records' spans that the scheme masks: `"entities"` or `"noun_phrases"`
            of annotated records, or `"sentences"`. `None` if it masks none.
        share: share of the draws that mask one of these spans, in blocks that have any. The other
            draws mask words or pieces. It is at most 0.99 for annotated spans, which may cover less
            than the budget, and can be 1 for sentences, which cover the whole block.
        replaced: unit for which one draw chooses between [MASK], a random token and no change.
    """

    unit: Literal["piece", "word"] = "word"
    max_units: PositiveInt | None = None
    span_start: SpanStart | None = None
    spans: str | None = None
    share: PositiveUpToOne = 0.5  # the paper's "50 %"; released code: --ner-masking-prob
    replaced: ReplacementUnit = "span"

    @field_validator("share")
    @classmethod
    def _check_budget_can_be_met(cls, share: float, others: ValidationInfo) -> float:
        spans = others.data.get("spans")
        if share > MOST_ANNOTATED and spans in ANNOTATED:
            raise PydanticCustomError(
                "budget",
                "Input should be {most} at most with spans={spans}: these cover a part of a block, "
                "and other draws must fill its budget",
                {"most": MOST_ANNOTATED, "spans": repr(spans)},
            )
        return share


class ChosenScheme(Scheme):
    """A scheme whose values, except `spans`, are not `None`."""

    max_units: PositiveInt
    span_start: SpanStart

    @property
    def draws_single_units(self) -> bool:
        """Whether each draw masks one unit, so that two draws mask equal or disjoint tokens."""
        return self.max_units == 1 and self.spans is None

    @property
    def draws_single_words(self) -> bool:
        """Whether each draw masks one word."""
        return self.draws_single_units and self.unit == "word"


SCHEMES = {
    "subwords": Scheme(unit="piece", max_units=1, replaced="token"),
    "whole_words": Scheme(max_units=1, replaced="word"),
    "geometric_spans": Scheme(),
    "entities": Scheme(spans="entities"),
    "noun_phrases": Scheme(spans="noun_phrases"),
}


def scheme_names() -> list[str]:
    """Returns the names of all schemes; those of other packages come last."""
    return list(SCHEMES | _entry_points())


@functools.cache
def find_scheme(name: str) -> Scheme:
    """Returns the scheme of a name, and imports it if it belongs to another package.

    Args:
        name: one of `scheme_names()`.

    Raises:
        ConfigurationError: the scheme of another package cannot be imported.
    """
    if name in SCHEMES:
        return SCHEMES[name]
    point = _entry_points()[name]
    try:
        scheme = point.load()
        problem = "" if isinstance(scheme, Scheme) else f"it is {scheme!r}, no Scheme"
    except ValidationError as error:
        keys, problem = first_problem(error)
        problem = f"{keys[0]}: {problem}"
    except (ImportError, AttributeError, ValueError) as error:
        problem = " ".join(str(error).split())
    if problem:
        package = point.dist.name if point.dist else "a package"
        raise ConfigurationError(
            f"masking.scheme {name}: {point.value} of {package} cannot be loaded "
            f"({problem}); mend or remove that package"
        )
    return scheme


def _entry_points() -> dict[str, importlib.metadata.EntryPoint]:
    return {point.name: point for point in importlib.metadata.entry_points(group=ENTRY_POINTS)}
