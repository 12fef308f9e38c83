"""The options of masking: which tokens to mask, how many, and how to replace them."""

import math
from fractions import Fraction
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from spanbert_tf.errors import ConfigurationError
from spanbert_tf.masking.schemes import (
    SCHEMES,
    ChosenScheme,
    ReplacementUnit,
    SpanStart,
    find_scheme,
    scheme_names,
)
from spanbert_tf.validation import OneOrTwo, PositiveInt, Section, conflict, validated

_SECTION = "masking"  # of a configuration, as errors name it
_Share = Annotated[float, Field(gt=0, lt=1)]


def _known(scheme: str) -> str:
    # Searching all installed packages takes a while, so the schemes of this package come first.
    if scheme not in SCHEMES and scheme not in scheme_names():
        names = " or ".join(scheme_names())
        raise PydanticCustomError("scheme", "Input should be {names}", {"names": names})
    find_scheme(scheme)  # raises an error if the scheme of another package cannot be imported
    return scheme


class MaskingOptions(Section):
    """The parameters of dynamic masking; the defaults are SpanBERT's (paper, section 3.1).

    Attributes:
        scheme: name of the scheme, which defines what a draw masks. `"subwords"`: one word piece;
            `"whole_words"`: one word; `"geometric_spans"`: a span of whole words; `"entities"` or
            `"noun_phrases"`: an annotated span in half of the draws, and `other_draws` in the
            others (section 6.1). Another package may define further schemes, see
            `spanbert_tf.masking.schemes`.
        rate: share of the tokens of a block to mask. The number of tokens is rounded up. Two
            shares, such as `[0.3, 0.15]`, are those of the first and the last step of the schedule
            (`training.schedule_steps`); the rate changes evenly between them (Ankner et al.,
            2023). Held-out records have the last one.
        other_draws: what `"entities"` and `"noun_phrases"` mask in draws without an annotated span:
            `"geometric_spans"` (as the released commands, and the default) or `"whole_words"` (as
            the text of the paper). Other schemes refuse it.
        geometric_p: parameter of the geometric distribution of span lengths, in words.
        max_span_length: number of words of the longest span. The distribution is truncated here and
            renormalized.
        mask_token_rate: share of units that become [MASK].
        random_token_rate: share of units that become random tokens. The rest stays unchanged.
        replacement_unit: unit for which one draw chooses by these rates: `"token"`, `"word"` or
            `"span"`; `null` for the unit of the scheme.
        span_start: start of spans of words and of single words. `"anchor_token"` draws a token
            evenly and starts at its word, so that long words are masked more often (as the
            released code, and the default unless the scheme has another); `"word"` draws a word
            evenly (as the text of the paper). `"subwords"` refuses it.
        random_tokens: distribution of random tokens. `"unigrams"`: that of the training text
            (SpanBERT, 3.1); `"uniform"`: all entries of the vocabulary alike, including special
            tokens (as the code of BERT and of SegaBERT).
        max_span_targets: maximum number of SBO targets of a span, counted from its start; the
            default is that of the original code.
        boundary_at_special_tokens: whether [CLS] and [SEP] may be the boundary of a span.
    """

    scheme: Annotated[str, AfterValidator(_known)] = "geometric_spans"
    rate: OneOrTwo[_Share] = 0.15
    other_draws: Literal["geometric_spans", "whole_words"] | None = None
    geometric_p: _Share = 0.2
    max_span_length: PositiveInt = 10
    mask_token_rate: Annotated[float, Field(ge=0, le=1)] = 0.8
    random_token_rate: Annotated[float, Field(ge=0, le=1)] = 0.1
    replacement_unit: ReplacementUnit | None = None
    span_start: SpanStart | None = None
    random_tokens: Literal["unigrams", "uniform"] = "unigrams"
    max_span_targets: PositiveInt = 20
    boundary_at_special_tokens: bool = False

    @model_validator(mode="after")
    def _check_what_depends(self) -> Self:
        scheme = find_scheme(self.scheme)
        if self.span_start is not None and scheme.unit == "piece":
            self._refuse("span_start", "which draws single word pieces, not words")
        if self.other_draws is not None and scheme.spans is None:
            self._refuse("other_draws", "which takes no annotated spans beside others")
        rest = 1 - self.mask_token_rate
        if self.random_token_rate > rest + 1e-12:
            raise conflict(
                f"{self.random_token_rate} is not from 0 to 1 - mask_token_rate",
                "random_token_rate",
                "mask_token_rate",
                fix=f"{_SECTION}.random_token_rate={rest:.12g}",
            )
        return self

    def _refuse(self, key: str, why: str) -> None:
        raise conflict(
            f"{getattr(self, key)} has no effect with {_SECTION}.scheme={self.scheme}, {why}",
            key,
            "scheme",
            fix=f"{_SECTION}.{key}=null",
        )

    @classmethod
    def of(cls, masking: "str | dict | MaskingOptions") -> "MaskingOptions":
        """Converts the name of a scheme, or a dict of fields, to options.

        Raises:
            ConfigurationError: the argument has another type, or a value cannot be used.
        """
        if isinstance(masking, str):
            masking = {"scheme": masking}
        if isinstance(masking, dict):
            return validated(cls, masking, section=_SECTION)
        if not isinstance(masking, cls):
            raise ConfigurationError(
                f"{_SECTION} must be a scheme's name, a dict or MaskingOptions, not {masking!r}"
            )
        return masking

    @property
    def chosen_scheme(self) -> ChosenScheme:
        """The scheme, whose `None` values are replaced by the values of these options."""
        scheme = find_scheme(self.scheme)
        limit = 1 if self.other_draws == "whole_words" else self.max_span_length
        return ChosenScheme(
            unit=scheme.unit,
            max_units=scheme.max_units or limit,
            span_start=self.span_start or scheme.span_start or "anchor_token",
            spans=scheme.spans,
            share=scheme.share,
            replaced=self.replacement_unit or scheme.replaced,
        )

    @property
    def has_schedule(self) -> bool:
        """Whether the rate changes from step to step."""
        return isinstance(self.rate, list)

    @property
    def exact_rates(self) -> tuple[Fraction, Fraction]:
        """The rates of the first and of the last step, as the decimal fractions that were written.

        0.15 is 3/20, not a binary float.
        """
        first, last = self.rate if isinstance(self.rate, list) else (self.rate, self.rate)
        return Fraction(str(first)), Fraction(str(last))

    @property
    def at_last_rate(self) -> Self:
        """These options with the last rate alone."""
        return self.replace(rate=self.rate[-1]) if isinstance(self.rate, list) else self

    def budget(self, num_tokens: int) -> int:
        """Tokens to mask in a block at the last rate: ceil(rate · num_tokens), in integers."""
        return math.ceil(self.exact_rates[-1] * num_tokens)

    def num_slots(self, sequence_length: int, num_blocks: int = 1) -> int:
        """Prediction slots K of a packed row: the largest budget that a row can have.

        Args:
            sequence_length: S; [CLS], and a [SEP] after each block, are not masked.
            num_blocks: G. Each block is rounded up, so each beyond the first can need a slot more.
        """
        num_tokens = sequence_length - 1 - num_blocks
        return math.ceil(max(self.exact_rates) * num_tokens) + num_blocks - 1

    def span_length_probabilities(self) -> list[Fraction]:
        """Geo(p) cut at the longest span and renormalized: P(1), P(2), … in exact fractions."""
        p = Fraction(str(self.geometric_p))
        lengths = range(1, self.chosen_scheme.max_units + 1)
        weights = [p * (1 - p) ** (length - 1) for length in lengths]
        return [weight / sum(weights) for weight in weights]
