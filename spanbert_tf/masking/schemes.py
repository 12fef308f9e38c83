"""What a draw of each masking scheme masks, as numbers: one function draws for all of them.

No TensorFlow is needed here, so that configurations know the schemes.
"""

from typing import Literal, NamedTuple

ReplacementUnit = Literal["token", "word", "span"]
SpanStart = Literal["anchor_token", "word"]


class Scheme(NamedTuple):
    """A masking scheme (SpanBERT, sections 3.1 and 6.1).

    Attributes:
        unit: what spans are counted in.
        max_units: units of the longest span; `None`: as many as the options say.
        span_start: where a span of words begins: at the word of a token that is drawn evenly, or
            at a word that is drawn evenly; `None`: as the options say.
        spans: name of the records' list of spans that `share` of the draws take, if any.
        share: of the draws, in blocks that have such spans.
        replaced: what one draw of 80/10/10 decides for.
    """

    unit: Literal["piece", "word"] = "word"
    max_units: int | None = None
    span_start: SpanStart | None = None
    spans: str | None = None
    share: float = 0.5  # the paper's "50 %"; released code: --ner-masking-prob
    replaced: ReplacementUnit = "span"


SCHEMES = {
    "subwords": Scheme(unit="piece", max_units=1, replaced="token"),
    "whole_words": Scheme(max_units=1, replaced="word"),
    "geometric_spans": Scheme(),
    "entities": Scheme(spans="entities"),
    "noun_phrases": Scheme(spans="noun_phrases"),
}
