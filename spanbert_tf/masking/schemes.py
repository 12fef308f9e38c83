"""What a draw of each masking scheme masks, as numbers: one function draws for all of them.

No TensorFlow is needed here, so that configurations know the schemes. A package outside of this one
adds a scheme by an entry point of the group `spanbert_tf.masking_schemes`, whose name is the
scheme's and whose value is a `Scheme`.
"""

import functools
import importlib.metadata
from typing import Literal

from spanbert_tf.errors import ConfigurationError
from spanbert_tf.validation import PositiveInt, PositiveUpToOne, Section

ENTRY_POINTS = "spanbert_tf.masking_schemes"
ReplacementUnit = Literal["token", "word", "span"]
SpanStart = Literal["anchor_token", "word"]


class Scheme(Section):
    """A masking scheme (SpanBERT, sections 3.1 and 6.1).

    Attributes:
        unit: what spans are counted in.
        max_units: units of the longest span; `None`: as many as the options say.
        span_start: where a span of words begins: at the word of a token that is drawn evenly, or
            at a word that is drawn evenly; `None`: as the options say.
        spans: the records' spans that `share` of the draws take, if any: `"entities"` or
            `"noun_phrases"` of annotated records, or `"sentences"`.
        share: of the draws, in blocks that have such spans; 1 where they cover the whole block,
            since a budget could not be met otherwise.
        replaced: what one draw of 80/10/10 decides for.
    """

    unit: Literal["piece", "word"] = "word"
    max_units: PositiveInt | None = None
    span_start: SpanStart | None = None
    spans: str | None = None
    share: PositiveUpToOne = 0.5  # the paper's "50 %"; released code: --ner-masking-prob
    replaced: ReplacementUnit = "span"


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
def find_scheme(name: str) -> Scheme | None:
    """The scheme of a name; that of another package is imported now.

    Raises:
        ConfigurationError: another package's cannot be imported.
    """
    if name in SCHEMES:
        return SCHEMES[name]
    point = _entry_points().get(name)
    if point is None:
        return None
    try:
        scheme = point.load()
        problem = "" if isinstance(scheme, Scheme) else f"it is {scheme!r}, no Scheme"
    except (ImportError, AttributeError, ValueError) as error:
        problem = " ".join(str(error).split())
    if problem:
        raise ConfigurationError(
            f"masking.scheme {name}: {point.value} of {point.dist.name} cannot be loaded "
            f"({problem}); mend or remove that package"
        )
    return scheme


def _entry_points() -> dict[str, importlib.metadata.EntryPoint]:
    return {point.name: point for point in importlib.metadata.entry_points(group=ENTRY_POINTS)}
