"""The masking schemes: what one draw masks, as the settings of one function.

No TensorFlow is needed here, so that configurations know the schemes. A package outside of this one
adds a scheme by an entry point of the group `spanbert_tf.masking_schemes`, whose name is the
scheme's and whose value is a `Scheme`.
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
MOST_ANNOTATED = 0.99  # of the draws, so that the others fill any budget in good time


class Scheme(Section):
    """A masking scheme (SpanBERT, sections 3.1 and 6.1).

    Attributes:
        unit: what spans are counted in.
        max_units: units of the longest span; `None`: as many as the options say.
        span_start: where a span of words begins: at the word of a token that is drawn evenly, or
            at a word that is drawn evenly; `None`: as the options say.
        spans: the records' spans that `share` of the draws take, if any: `"entities"` or
            `"noun_phrases"` of annotated records, or `"sentences"`.
        share: how many of the draws take one of these spans, in blocks that have any; the others
            take words or pieces. 1 is for sentences, which cover the whole block; annotated spans
            may cover less than the budget, which others must fill: 0.99 at most.
        replaced: what one draw of 80/10/10 decides for.
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
    """A scheme with a value in place of each `None` but that of `spans`."""

    max_units: PositiveInt
    span_start: SpanStart

    @property
    def draws_single_units(self) -> bool:
        """Whether each draw masks one unit, so that two draws mask the same tokens or none."""
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
    """The names of all schemes, those of other packages behind this one's."""
    return list(SCHEMES | _entry_points())


@functools.cache
def find_scheme(name: str) -> Scheme:
    """The scheme of one of `scheme_names()`; that of another package is imported now.

    Raises:
        ConfigurationError: another package's cannot be imported.
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
