"""Span masking as the design defines it, one token and one draw at a time, in plain Python.

Nothing of the project is imported: this is the definition that the graph code is held against.
`HashDraws` gives the very numbers of the graph, for equality bit for bit; `PseudoRandomDraws`
gives Python's, for comparisons of distributions.
"""

import bisect
import dataclasses
import random
from fractions import Fraction

WORD_64 = 2**64
GAMMA = 0x9E3779B97F4A7C15


def splitmix64(state):
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) % WORD_64
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) % WORD_64
    return state ^ (state >> 31)


class HashDraws:
    """The numbers of one row, from (seed, epoch, record)."""

    def __init__(self, seed, epoch, record_id):
        key = splitmix64((seed + 1) * GAMMA % WORD_64)
        key = splitmix64((key + epoch * GAMMA) % WORD_64)
        self.key = splitmix64((key + record_id * GAMMA) % WORD_64)

    def _bits(self, stream, counter):
        return splitmix64((self.key + ((stream << 32) + counter + 1) * GAMMA) % WORD_64)

    def anchor_and_length(self, block, draw):
        bits = self._bits(0, (block << 24) + draw)
        return Fraction(bits >> 32, 2**32), Fraction(bits % 2**32, 2**32)

    def annotated_span(self, block, draw):
        bits = self._bits(5, (block << 24) + draw)
        return Fraction(bits >> 32, 2**32), Fraction(bits % 2**32, 2**32)

    def replacement(self, unit_start):
        return Fraction(self._bits(1, unit_start) >> 32, 2**32)

    def random_token(self, position):
        return Fraction(self._bits(2, position) >> 11, 2**53)


class PseudoRandomDraws:
    """Numbers of the same kinds from Python's generator; one unit is asked for several times."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.replacements = {}

    def anchor_and_length(self, block, draw):
        return self.random.random(), self.random.random()

    def annotated_span(self, block, draw):
        return self.random.random(), self.random.random()

    def replacement(self, unit_start):
        return self.replacements.setdefault(unit_start, self.random.random())

    def random_token(self, position):
        return self.random.random()


@dataclasses.dataclass
class Rules:
    scheme: str = "geometric_spans"
    other_draws: str = "geometric_spans"  # of the schemes that take annotated spans
    rate: Fraction = Fraction(15, 100)
    p: Fraction = Fraction(1, 5)
    longest: int = 10
    unit: str = "span"
    span_start: str = "anchor_token"
    max_span_targets: int = 20
    boundary_at_special_tokens: bool = False
    mask_rate: Fraction = Fraction(8, 10)
    random_rate: Fraction = Fraction(1, 10)

    def cumulated_lengths(self):
        weights = [self.p * (1 - self.p) ** (n - 1) for n in range(1, self.longest + 1)]
        total = sum(weights)
        cumulated = [sum(weights[: n + 1]) / total for n in range(self.longest)]
        return [Fraction(round(share * 2**32), 2**32) for share in cumulated]


@dataclasses.dataclass
class Result:
    token_ids: list
    masked: list  # positions, sorted
    spans: list  # (first, last) after merging
    drawn_spans: list  # (first, last, words asked for), accepted draws before merging
    targets: list  # (position, left, right, offset) or (position, None, None, None)


def mask_row(
    token_ids, blocks, starts_word, rules, draws, unigram_thresholds, mask_id, annotated=(),
    word_starts=None,
):  # fmt: skip
    """Masks one packed row.

    blocks: [(start, length)]; starts_word(id) -> bool; annotated: [(first, last)] positions;
    word_starts: positions, in place of starts_word.
    """
    cumulated = rules.cumulated_lengths()
    masked, drawn = set(), []
    word_start_of = {}
    for number, (start, length) in enumerate(blocks):
        words = split_words(token_ids, start, length, starts_word, word_starts)
        word_start_of |= {i: word[0] for word in words for i in word}
        word_of = {i: w for w, word in enumerate(words) for i in word}
        inside = [span for span in annotated if start <= span[0] < start + length]
        budget = -(-length * rules.rate.numerator // rules.rate.denominator)
        left, draw = budget, 0
        while left:
            span, asked = None, None
            if rules.scheme in ("entities", "noun_phrases") and inside:
                # The released NERSpanMaskingScheme: no look at what is masked already.
                coin, which = draws.annotated_span(number, draw)
                if coin < Fraction(1, 2):
                    first, last = inside[int(which * len(inside))]
                    span = list(range(first, last + 1))
            if span is None:
                high, low = draws.anchor_and_length(number, draw)
                anchor, span, asked = candidate(
                    rules, high, low, start, length, words, word_of, cumulated
                )
                if anchor in masked:
                    draw += 1
                    continue
            draw += 1
            drawn.append((span[0], span[-1], asked))
            for position in span:
                if left and position not in masked:
                    masked.add(position)
                    left -= 1
    ordered = sorted(masked)
    spans = merge(ordered, blocks)
    return finish(
        token_ids, ordered, spans, drawn, blocks, word_start_of, rules, draws,
        unigram_thresholds, mask_id,
    )  # fmt: skip


def candidate(rules, high, low, start, length, words, word_of, cumulated):
    """(anchor, positions of the span, words asked for) of a draw that takes no annotated span."""
    if rules.scheme == "subwords":
        anchor = start + int(high * length)
        return anchor, [anchor], 1
    if rules.span_start == "word":
        first_word = int(high * len(words))
        anchor = words[first_word][0]
    else:
        anchor = start + int(high * length)
        first_word = word_of[anchor]
    kind = rules.scheme if rules.scheme == "whole_words" else rules.other_draws
    asked = 1 if kind == "whole_words" else bisect.bisect_right(cumulated[:-1], low) + 1
    chosen = words[first_word : first_word + asked]
    return anchor, [position for word in chosen for position in word], asked


def split_words(token_ids, start, length, starts_word, word_starts=None):
    words = []
    for position in range(start, start + length):
        if word_starts is None:
            is_start = starts_word(token_ids[position])
        else:
            is_start = position in word_starts
        if position == start or is_start:
            words.append([])
        words[-1].append(position)
    return words


def merge(ordered, blocks):
    block_starts = {start for start, _ in blocks}
    spans = []
    for position in ordered:
        if spans and spans[-1][1] == position - 1 and position not in block_starts:
            spans[-1][1] = position
        else:
            spans.append([position, position])
    return [tuple(span) for span in spans]


def finish(
    token_ids, ordered, spans, drawn, blocks, word_start_of, rules, draws, thresholds, mask_id
):
    text = {i for start, length in blocks for i in range(start, start + length)}
    replaced, targets = list(token_ids), []
    for first, last in spans:
        for position in range(first, last + 1):
            unit = {"token": position, "word": word_start_of[position], "span": first}[rules.unit]
            draw = draws.replacement(unit)
            if draw < rules.mask_rate:
                replaced[position] = mask_id
            elif draw < rules.mask_rate + rules.random_rate:
                replaced[position] = bisect.bisect_right(thresholds, draws.random_token(position))
            has_boundary = rules.boundary_at_special_tokens or {first - 1, last + 1} <= text
            if has_boundary and position - first < rules.max_span_targets:
                targets.append((position, first - 1, last + 1, position - first))
            else:
                targets.append((position, None, None, None))
    return Result(replaced, ordered, spans, drawn, targets)
