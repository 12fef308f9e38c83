"""Masks of the graph against the plain-Python definition, and what must hold for any text."""

import collections
import itertools
from fractions import Fraction
from typing import ClassVar

import hypothesis
import hypothesis.strategies as st
import masking_oracle
import numpy as np
import pytest
import tensorflow as tf

from spanbert_tf.errors import ConfigurationError
from spanbert_tf.masking import AnnotatedSpans, Blocks, MaskingOptions, SpanMasker
from spanbert_tf.masking.random_bits import row_keys
from spanbert_tf.masking.schemes import SCHEMES as KNOWN_SCHEMES
from spanbert_tf.masking.selection import find_owners
from spanbert_tf.masking.spans import Candidates, draw_candidates, find_words

# [PAD] [UNK] [CLS] [SEP] [MASK], 20 words, 15 continuations.
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCABULARY += [f"word{n}" for n in range(20)] + [f"##piece{n}" for n in range(15)]
PAD, CLS, SEP, MASK = 0, 2, 3, 4
COUNTS = [0, 3, 0, 0, 0] + [7 * n + 1 for n in range(35)]
SEED = 11


def starts_word(token_id):
    return not VOCABULARY[token_id].startswith("##")


def unigram_thresholds():
    total, cumulated, thresholds = sum(COUNTS), 0, []
    for count in COUNTS:
        cumulated += count
        thresholds.append(Fraction((cumulated << 53) // total, 2**53))
    return thresholds


def pack(segments, width):
    """[CLS] first [SEP] (second [SEP]) and padding; (row, [(start, length)])."""
    row, blocks = [CLS], []
    for segment in segments:
        blocks.append((len(row), len(segment)))
        row += [*segment, SEP]
    return row + [PAD] * (width - len(row)), blocks


def run_graph(
    rows, blocks, options, num_slots, record_ids, epochs=None, annotated=None, eager=False,
    starts=None,
):  # fmt: skip
    masker = SpanMasker.from_vocabulary(VOCABULARY, COUNTS, options, SEED)
    epochs = [0] * len(rows) if epochs is None else epochs

    def mask():
        packed = Blocks(
            tf.constant(rows, tf.int32),
            tf.constant([[start for start, _ in row] for row in blocks], tf.int64),
            tf.constant([[length for _, length in row] for row in blocks], tf.int64),
        )
        return masker(
            packed,
            tf.constant(epochs, tf.int64),
            tf.constant(list(record_ids), tf.int64),
            num_slots,
            annotated,
            starts_word=None if starts is None else tf.constant(starts),
        )

    batch = mask() if eager else tf.function(mask)()
    return {name: value.numpy() for name, value in batch.items()}


# What one draw of 80/10/10 decides for, where the options do not say otherwise: subwords as BERT,
# whole words as words, spans as section 3.1 of the paper says.
OWN_UNITS = {
    "subwords": "token",
    "whole_words": "word",
    "geometric_spans": "span",
    "entities": "span",
    "noun_phrases": "span",
}


def rules_of(options):
    return masking_oracle.Rules(
        scheme=options.scheme,
        other_draws=options.other_draws or "geometric_spans",
        rate=Fraction(str(options.rate)),
        p=Fraction(str(options.geometric_p)),
        longest=options.max_span_length,
        unit=options.replacement_unit or OWN_UNITS[options.scheme],
        span_start=options.span_start or "anchor_token",
        max_span_targets=options.max_span_targets,
        boundary_at_special_tokens=options.boundary_at_special_tokens,
        mask_rate=Fraction(round(options.mask_token_rate * 2**32), 2**32),
        random_rate=Fraction(
            round((options.mask_token_rate + options.random_token_rate) * 2**32), 2**32
        )
        - Fraction(round(options.mask_token_rate * 2**32), 2**32),
    )


def check_against_oracle(batch, index, result):
    used = batch["mask_weights"][index] == 1
    assert batch["token_ids"][index].tolist() == result.token_ids
    assert batch["mask_positions"][index][used].tolist() == result.masked
    assert not batch["mask_positions"][index][~used].any()
    features = zip(
        batch["mask_positions"][index],
        batch["span_left_positions"][index],
        batch["span_right_positions"][index],
        batch["span_offsets"][index],
        batch["span_weights"][index],
        strict=True,
    )
    found = [
        (p, left, right, offset) if weight else (p, None, None, None)
        for p, left, right, offset, weight in features
    ]
    assert found[: len(result.masked)] == result.targets
    assert all(entry == (0, None, None, None) for entry in found[len(result.masked) :])


def random_segment(random, length):
    return [random.randrange(5, len(VOCABULARY)) for _ in range(length)]


SCHEMES = {
    "spanbert": MaskingOptions(),
    "spans_from_words": MaskingOptions(span_start="word", replacement_unit="word"),
    "boundary_at_special_tokens": MaskingOptions(boundary_at_special_tokens=True, rate=0.5),
    "few_span_targets": MaskingOptions(max_span_targets=2, rate=0.3, geometric_p=0.05),
    "whole_words": MaskingOptions(scheme="whole_words"),
    "evenly_drawn_words": MaskingOptions(scheme="whole_words", span_start="word", rate=0.4),
    "subwords": MaskingOptions(scheme="subwords"),
    "nearly_all_subwords": MaskingOptions(scheme="subwords", rate=0.98, replacement_unit="word"),
    "half_of_all": MaskingOptions(rate=0.5, max_span_length=3),
    "nearly_all": MaskingOptions(rate=0.99, mask_token_rate=0.2, random_token_rate=0.7),
}


@pytest.mark.parametrize(
    ("name", "num_segments"),
    [
        *((name, 1) for name in SCHEMES),
        ("spanbert", 2),
        ("subwords", 2),
        *(
            pytest.param(name, 2, marks=pytest.mark.slow)
            for name in SCHEMES
            if name not in ("spanbert", "subwords")
        ),
    ],
)
@pytest.mark.quick_cases(4)
def test_equals_the_definition_bit_for_bit(name, num_segments):
    options = SCHEMES[name]
    random = masking_oracle.random.Random(name)
    width = 131
    rows, blocks = [], []
    for row in range(40):
        longest = (width - 1 - num_segments) // num_segments
        lengths = [0 if row == 0 else random.randint(1, longest) for _ in range(num_segments)]
        packed, block = pack([random_segment(random, n) for n in lengths], width)
        rows.append(packed)
        blocks.append(block)
    num_slots = options.num_slots(width, num_segments)
    record_ids = [random.randrange(2**63) for _ in rows]
    epochs = [random.randrange(50) for _ in rows]
    batch = run_graph(rows, blocks, options, num_slots, record_ids, epochs)
    for index, row in enumerate(rows):
        draws = masking_oracle.HashDraws(SEED, epochs[index], record_ids[index])
        check_against_oracle(
            batch,
            index,
            masking_oracle.mask_row(
                row,
                blocks[index],
                starts_word,
                rules_of(options),
                draws,
                unigram_thresholds(),
                MASK,
            ),
        )


@pytest.mark.parametrize(
    ("name", "num_segments"),
    [(name, segments) for name in SCHEMES for segments in (1, 2)],
)
@pytest.mark.quick_cases(5)
def test_words_that_are_given_are_those_of_the_definition(name, num_segments):
    """Borders of words at any pieces, as a segmenter finds them: `##` does not matter."""
    options = SCHEMES[name]
    random = masking_oracle.random.Random(f"{name} {num_segments}")
    width = 83
    rows, blocks, starts = [], [], []
    for row in range(24):
        longest = (width - 1 - num_segments) // num_segments
        lengths = [0 if row == 0 else random.randint(1, longest) for _ in range(num_segments)]
        packed, block = pack([random_segment(random, n) for n in lengths], width)
        rows.append(packed)
        blocks.append(block)
        in_text = {i for start, length in block for i in range(start, start + length)}
        share = random.random()
        starts.append([i not in in_text or random.random() < share for i in range(width)])
    num_slots = options.num_slots(width, num_segments)
    batch = run_graph(rows, blocks, options, num_slots, range(24), starts=starts)
    for index, row in enumerate(rows):
        result = masking_oracle.mask_row(
            row,
            blocks[index],
            None,
            rules_of(options),
            masking_oracle.HashDraws(SEED, 0, index),
            unigram_thresholds(),
            MASK,
            word_starts={i for i, begins in enumerate(starts[index]) if begins},
        )
        check_against_oracle(batch, index, result)


def test_words_of_the_vocabulary_given_as_words_change_nothing():
    random = masking_oracle.random.Random(3)
    packed = [pack([random_segment(random, 40)], 42) for _ in range(20)]
    rows, blocks = ([row[column] for row in packed] for column in (0, 1))
    starts = [[starts_word(token_id) for token_id in row] for row in rows]
    for options in (MaskingOptions(), MaskingOptions(scheme="whole_words")):
        num_slots = options.num_slots(42, 1)
        found = run_graph(rows, blocks, options, num_slots, range(20), starts=starts)
        expected = run_graph(rows, blocks, options, num_slots, range(20))
        for key, values in expected.items():
            np.testing.assert_array_equal(found[key], values)


ANNOTATED_SCHEMES = {
    "entities": MaskingOptions(scheme="entities"),
    "noun_phrases": MaskingOptions(scheme="noun_phrases", geometric_p=0.4, rate=0.5),
    "entities_and_words": MaskingOptions(scheme="entities", other_draws="whole_words"),
    "the_papers_text": MaskingOptions(
        scheme="noun_phrases", other_draws="whole_words", span_start="word"
    ),
}


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(
    "name, num_segments",
    [
        ("entities", 1),
        ("noun_phrases", 2),
        ("entities_and_words", 2),
        ("the_papers_text", 1),
    ],
)
def test_annotated_spans_equal_the_definition(name, num_segments):
    options = ANNOTATED_SCHEMES[name]
    random = masking_oracle.random.Random(5)
    rows = [
        [random_segment(random, random.randint(4, 44)) for _ in range(num_segments)]
        for _ in range(24)
    ]
    check_rows_of_blocks(rows, options, random)


def check_rows_of_blocks(rows, options, random, eager=False):
    """Rows of as many segments each, some words of which are annotated, against the definition."""
    width = 1 + max(sum(len(segment) + 1 for segment in row) for row in rows)
    packed = [pack(row, width) for row in rows]
    token_ids, blocks = ([row[column] for row in packed] for column in (0, 1))
    spans = [annotate_words(random, *row) for row in packed]
    batch = run_graph(
        token_ids,
        blocks,
        options,
        options.num_slots(width, len(rows[0])),
        range(len(rows)),
        annotated=annotated_spans(spans, blocks) if options.chosen_scheme.spans else None,
        eager=eager,
    )
    for index, row in enumerate(token_ids):
        draws = masking_oracle.HashDraws(SEED, 0, index)
        result = masking_oracle.mask_row(
            row, blocks[index], starts_word, rules_of(options), draws, unigram_thresholds(), MASK,
            spans[index],
        )  # fmt: skip
        check_against_oracle(batch, index, result)


def annotate_words(random, row, blocks):
    """Some runs of one to three words of each block, [(first, last)]."""
    found = []
    for start, length in blocks:
        words = masking_oracle.split_words(row, start, length, starts_word)
        while words:
            size = random.randint(1, 3)
            taken, words = words[:size], words[size:]
            if random.random() < 0.6:
                found.append((taken[0][0], taken[-1][-1]))
    return found


def annotated_spans(spans, blocks):
    longest = max(1, *map(len, spans))
    counts = [
        [sum(start <= first < start + length for first, _ in found) for start, length in block]
        for found, block in zip(spans, blocks, strict=True)
    ]
    firsts = [list(itertools.accumulate([0, *row[:-1]])) for row in counts]
    padded = np.array([found + [(0, 0)] * (longest - len(found)) for found in spans], np.int64)
    return AnnotatedSpans(
        tf.constant(padded[:, :, 0]),
        tf.constant(padded[:, :, 1]),
        tf.constant(firsts, tf.int64)[..., tf.newaxis],
        tf.constant(counts, tf.int64)[..., tf.newaxis],
    )


texts = st.lists(st.integers(5, len(VOCABULARY) - 1), min_size=0, max_size=38)


@hypothesis.settings(max_examples=25)
@hypothesis.given(
    rows=st.integers(3, 6).flatmap(
        lambda num_blocks: st.lists(
            st.lists(texts, min_size=num_blocks, max_size=num_blocks), min_size=2, max_size=4
        )
    ),
    scheme=st.sampled_from(list(KNOWN_SCHEMES)),
    rate=st.sampled_from([0.15, 0.6]),
    seed=st.integers(0, 2**32),
)
def test_a_row_has_any_number_of_blocks(rows, scheme, rate, seed):
    options = MaskingOptions(scheme=scheme, rate=rate)
    check_rows_of_blocks(rows, options, masking_oracle.random.Random(seed), eager=True)


@hypothesis.settings(max_examples=60)
@hypothesis.given(
    segments=st.lists(texts, min_size=1, max_size=2),
    scheme=st.sampled_from(["subwords", "whole_words", "geometric_spans"]),
    rate=st.sampled_from([0.1, 0.15, 0.4]),
    record_id=st.integers(0, 2**63 - 1),
)
def test_invariants_hold_for_any_text(segments, scheme, rate, record_id):
    options = MaskingOptions(scheme=scheme, rate=rate)
    width = 82
    row, blocks = pack(segments, width)
    num_slots = options.num_slots(width, len(segments))
    batch = run_graph([row], [blocks], options, num_slots, [record_id], eager=True)
    used = batch["mask_weights"][0] == 1
    positions = batch["mask_positions"][0][used]

    text = {i for start, length in blocks for i in range(start, start + length)}
    assert set(positions.tolist()) <= text, "a special token or padding is masked"
    for start, length in blocks:
        inside = ((positions >= start) & (positions < start + length)).sum()
        assert inside == -(
            -length * Fraction(str(rate)).numerator // Fraction(str(rate)).denominator
        )

    restored = batch["token_ids"][0].copy()
    restored[positions] = batch["mask_ids"][0][used]
    assert restored.tolist() == row, "the original tokens cannot be restored from the batch"

    if scheme != "subwords":
        starts = {start for start, _ in blocks}
        masked = set(positions.tolist())
        for position in masked:
            if position - 1 not in masked or position in starts:
                assert position in starts or starts_word(row[position]), "a span cuts a word's head"


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("scheme", ["geometric_spans", "whole_words"])
def test_masks_do_not_depend_on_the_batch(scheme):
    options = MaskingOptions(scheme=scheme)
    random = masking_oracle.random.Random(3)
    packed = [pack([random_segment(random, random.randint(1, 60))], 64) for _ in range(12)]
    ids = list(range(100, 112))

    def mask(order):
        return run_graph(
            [packed[i][0] for i in order],
            [packed[i][1] for i in order],
            options,
            options.num_slots(64),
            [ids[i] for i in order],
        )

    whole = mask(range(12))
    shuffled = [7, 3, 11, 0]
    part = mask(shuffled)
    for name, values in part.items():
        np.testing.assert_array_equal(values, whole[name][shuffled], err_msg=name)


def test_epoch_seed_and_record_change_the_masks():
    random = masking_oracle.random.Random(4)
    row, blocks = pack([random_segment(random, 60)], 64)
    options = MaskingOptions()
    batch = run_graph([row] * 3, [blocks] * 3, options, options.num_slots(64), [1, 1, 2], [0, 1, 0])
    rows = {tuple(positions) for positions in batch["mask_positions"]}
    assert len(rows) == 3


@pytest.mark.parametrize("rate, lengths", [(0.15, (100, 180, 200, 20, 1)), (0.29, (100, 7))])
def test_budget_is_exact_where_float32_rounds_up(rate, lengths):
    options = MaskingOptions(rate=rate)
    for length in lengths:
        exact = -(-length * round(rate * 100) // 100)
        assert options.budget(length) == exact
        row, blocks = pack([[5] * length], length + 2)
        # A slot more than is needed shows a token more.
        batch = run_graph([row], [blocks], options, exact + 1, [9], eager=True)
        assert batch["mask_weights"].sum() == exact


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("rate", [0.20000000000000007, 1e-20, 1 - 1e-16])
def test_budget_is_exact_for_rates_of_many_digits(rate):
    """Products with their denominators have more than 63 bits."""
    lengths = (1, 2, 97, 500)
    rows, blocks = zip(*(pack([[5] * length], 502) for length in lengths), strict=True)
    options = MaskingOptions(rate=rate)
    batch = run_graph(rows, blocks, options, options.num_slots(502), range(4))
    exact = [-(-length * Fraction(str(rate)) // 1) for length in lengths]
    assert batch["mask_weights"].sum(axis=1).tolist() == exact


def sample(options, num_rows, length):
    """(graph's batch, oracle's results from Python's generator) on the same text."""
    random = masking_oracle.random.Random(1)
    packed = [pack([random_segment(random, length)], length + 2) for _ in range(num_rows)]
    rows, blocks = [row for row, _ in packed], [block for _, block in packed]
    batch = run_graph(rows, blocks, options, options.num_slots(length + 2), range(num_rows))
    results = [
        masking_oracle.mask_row(
            row, block, starts_word, rules_of(options), masking_oracle.PseudoRandomDraws(n),
            unigram_thresholds(), MASK,
        )
        for n, (row, block) in enumerate(packed)
    ]  # fmt: skip
    return batch, results, rows


def spans_of(positions):
    return masking_oracle.merge(positions.tolist(), [])


def assert_same_distribution(first, second, name):
    """Two-sample chi-square over the values that are common enough; 5 standard deviations."""
    counts = [collections.Counter(first), collections.Counter(second)]
    common = [value for value in counts[0] | counts[1] if counts[0][value] + counts[1][value] >= 20]
    totals = [sum(count.values()) for count in counts]
    statistic = 0.0
    for value in common:
        pooled = (counts[0][value] + counts[1][value]) / sum(totals)
        for count, total in zip(counts, totals, strict=True):
            statistic += (count[value] - pooled * total) ** 2 / (pooled * total)
    freedom = max(len(common) - 1, 1)
    assert statistic < freedom + 5 * (2 * freedom) ** 0.5, f"{name}: {statistic:.1f} of {freedom}"


@pytest.fixture(scope="module")
def geometric_sample():
    return sample(MaskingOptions(), 2500, 110)


def test_span_lengths_and_starts_are_distributed_as_defined(geometric_sample):
    batch, results, _ = geometric_sample
    graph_spans = [spans_of(positions) for positions in batch["mask_positions"]]
    oracle_spans = [result.spans for result in results]
    for name, measure in (
        ("length of merged spans", lambda first, last: last - first + 1),
        ("start of spans", lambda first, last: first),
        ("end of spans", lambda first, last: last),
    ):
        assert_same_distribution(
            [measure(*span) for spans in graph_spans for span in spans],
            [measure(*span) for spans in oracle_spans for span in spans],
            name,
        )
    assert_same_distribution(map(len, graph_spans), map(len, oracle_spans), "spans a block")


def test_replacement_is_drawn_once_a_span(geometric_sample):
    batch, results, rows = geometric_sample
    kinds = {"graph": collections.Counter(), "oracle": collections.Counter()}
    for number, row in enumerate(rows):
        for source, ids, spans in (
            ("graph", batch["token_ids"][number], spans_of(batch["mask_positions"][number])),
            ("oracle", results[number].token_ids, results[number].spans),
        ):
            for first, last in spans:
                tokens, original = list(ids[first : last + 1]), row[first : last + 1]
                if MASK in tokens:
                    assert set(tokens) == {MASK}, "a span is partly [MASK]"
                    kinds[source]["mask"] += 1
                elif last - first >= 3:  # long enough to tell random from unchanged
                    kinds[source]["kept" if tokens == original else "random"] += 1
                else:
                    kinds[source]["short"] += 1
    num_spans = sum(kinds["graph"].values())
    share = kinds["graph"]["mask"] / num_spans
    assert abs(share - 0.8) < 5 * (0.8 * 0.2 / num_spans) ** 0.5
    assert_same_distribution(kinds["graph"].elements(), kinds["oracle"].elements(), "replacement")


@pytest.mark.parametrize(
    "random_tokens, weights", [("unigrams", COUNTS), ("uniform", [1] * len(VOCABULARY))]
)
def test_random_tokens_follow_the_distribution_asked_for(random_tokens, weights):
    options = MaskingOptions(
        mask_token_rate=0.0, random_token_rate=1.0, random_tokens=random_tokens
    )
    random = masking_oracle.random.Random(1)
    packed = [pack([random_segment(random, 110)], 112) for _ in range(600)]
    rows, blocks = zip(*packed, strict=True)
    batch = run_graph(rows, blocks, options, options.num_slots(112), range(600))
    drawn = [
        row[position]
        for row, positions in zip(batch["token_ids"], batch["mask_positions"], strict=True)
        for position in positions
    ]
    counts = collections.Counter(drawn)
    statistic, freedom = 0.0, 0
    for token_id, weight in enumerate(weights):
        expected = len(drawn) * weight / sum(weights)
        assert expected or not counts[token_id]
        if expected > 5:
            statistic += (counts[token_id] - expected) ** 2 / expected
            freedom += 1
    assert statistic < freedom + 5 * (2 * freedom) ** 0.5


def draw_spans(options, num_rows, length, annotated=None, tokens=None):
    """(anchor, first, last) of 40 draws for each of `num_rows` blocks, of one-piece words."""
    row, block = pack([tokens or [5] * length], length + 2)
    blocks = Blocks(
        tf.constant([row] * num_rows),
        tf.fill([num_rows, 1], tf.constant(block[0][0], tf.int64)),
        tf.fill([num_rows, 1], tf.constant(length, tf.int64)),
    )
    begins_word = tf.constant([starts_word(n) for n in range(len(VOCABULARY))])
    words = find_words(blocks, tf.gather(begins_word, blocks.token_ids))
    keys = row_keys(SEED, tf.zeros(num_rows, tf.int64), tf.range(num_rows, dtype=tf.int64))
    draws = tf.range(40, dtype=tf.int64)
    candidates = draw_candidates(blocks, words, keys, draws, options, annotated)
    row_starts = tf.range(num_rows, dtype=tf.int64)[:, tf.newaxis, tf.newaxis] * (length + 2)
    return [(positions - row_starts).numpy().ravel() for positions in candidates[:3]]


def annotate(num_rows, spans):
    """The same spans, [(first, last)] in positions, in each of some rows of one block."""
    starts, ends = (
        tf.constant([column] * num_rows, tf.int64) for column in zip(*spans, strict=True)
    )
    counts = tf.fill([num_rows, 1, 1], tf.constant(len(spans), tf.int64))
    return AnnotatedSpans(starts, ends, tf.zeros_like(counts), counts)


@pytest.mark.parametrize(
    "options",
    [
        MaskingOptions(scheme="whole_words"),
        MaskingOptions(scheme="geometric_spans"),
        MaskingOptions(scheme="entities"),
        MaskingOptions(scheme="noun_phrases", other_draws="whole_words"),
    ],
    ids=lambda options: options.scheme,
)
@pytest.mark.parametrize(
    "span_start, share", [(None, 4 / 5), ("anchor_token", 4 / 5), ("word", 1 / 2)]
)
def test_long_words_come_as_often_as_span_start_says(options, span_start, share):
    """Words of one piece and of four in turn: four tokens of five lie in the long ones."""
    options = options.replace(span_start=span_start)
    tokens = [5, 6, 25, 26, 27] * 10
    _, first, last = draw_spans(options, 100, len(tokens), tokens=tokens)
    is_long = (first - 1) % 5 == 1
    assert abs(is_long.mean() - share) < 5 * (share * (1 - share) / len(first)) ** 0.5
    if options.chosen_scheme.max_units == 1:
        assert set(last[is_long] - first[is_long]) == {3}
        assert set(last[~is_long] - first[~is_long]) == {0}


def test_each_scheme_replaces_by_its_own_unit():
    found = {name: MaskingOptions(scheme=name).chosen_scheme.replaced for name in KNOWN_SCHEMES}
    assert found == OWN_UNITS


def test_half_of_the_draws_take_an_annotated_span():
    """And what is drawn does not tell how long the other draws are, nor which span is taken."""
    options = MaskingOptions(scheme="entities")
    annotated = annotate(500, [(201, 220), (301, 325)])  # longer than any other span
    _, first, last = draw_spans(options, 500, 400, annotated)
    lengths = last - first + 1
    is_annotated = lengths > 10
    assert abs(is_annotated.mean() - 1 / 2) < 5 * (1 / 4 / len(first)) ** 0.5
    assert set(zip(first[is_annotated], last[is_annotated], strict=True)) == {
        (201, 220),
        (301, 325),
    }
    share = (first[is_annotated] == 201).mean()
    assert abs(share - 1 / 2) < 5 * (1 / 4 / is_annotated.sum()) ** 0.5
    others = lengths[~is_annotated & (first <= 390)]
    for length, probability in enumerate(options.span_length_probabilities(), 1):
        share = float(probability)
        bound = 5 * (share * (1 - share) / len(others)) ** 0.5
        assert abs((others == length).mean() - share) < bound


@pytest.mark.parametrize("by_an_earlier_round", [False, True])
def test_the_rest_of_an_entity_is_masked_when_its_first_token_is(by_an_earlier_round):
    """The released `mask_entity` takes an entity whatever of it is masked already."""
    draws = [  # anchor, first, last, whether it is an annotated span
        (1, 1, 1, False),
        (9, 1, 4, True),  # its anchor is another draw's and says nothing
        (3, 3, 6, False),  # drawn again: token 3 is masked by now
        (5, 4, 7, False),
    ]
    anchors, starts, ends, is_annotated = (
        tf.constant([[column]]) for column in zip(*draws, strict=True)
    )
    spans = [tf.cast(positions, tf.int64) for positions in (anchors, starts, ends)]
    row, ((start, length),) = pack([[5] * 8], 10)
    blocks = Blocks(
        tf.constant([row]), tf.constant([[start]], tf.int64), tf.constant([[length]], tf.int64)
    )
    masked = tf.constant([[position == 1 for position in range(10)]])
    owners = find_owners(
        Candidates(*spans, is_annotated), blocks, masked if by_an_earlier_round else None
    )
    owner_of_the_first = -1 if by_an_earlier_round else 0
    found = tf.maximum(owners, -1).numpy().tolist()
    assert found == [[-1, owner_of_the_first, 1, 1, 1, 3, 3, 3, -1, -1]]


class Impossible(MaskingOptions):
    """Options whose budget is more than there is."""

    exact_rates: ClassVar = (Fraction(3, 2),) * 2


@pytest.mark.parametrize("scheme", ["geometric_spans", "entities"])
def test_a_budget_that_cannot_be_met_ends_in_an_error(scheme):
    row, block = pack([[5] * 8], 10)
    annotated = annotate(1, [(1, 3)]) if scheme == "entities" else None
    with pytest.raises(tf.errors.InvalidArgumentError, match="budget is not met"):
        run_graph([row], [block], Impossible(scheme=scheme), 12, [3], annotated=annotated)


@pytest.mark.parametrize("p, longest", [(0.2, 10), (0.5, 4), (0.2, 1)])
def test_lengths_before_merging_are_the_truncated_geometric(p, longest):
    options = MaskingOptions(geometric_p=p, max_span_length=longest)
    weights = [Fraction(str(p)) * (1 - Fraction(str(p))) ** (n - 1) for n in range(1, longest + 1)]
    _, first, last = draw_spans(options, 800, 1000)
    away_from_the_end = first <= 1000 - longest
    counts = collections.Counter((last - first + 1)[away_from_the_end].tolist())
    total = sum(counts.values())
    assert set(counts) == set(range(1, longest + 1))
    for length, weight in enumerate(weights, 1):
        share = float(weight / sum(weights))
        assert abs(counts[length] / total - share) <= 5 * (share * (1 - share) / total) ** 0.5


def test_the_papers_mean_length_is_that_of_the_truncated_distribution():
    probabilities = MaskingOptions().span_length_probabilities()
    mean = float(sum(length * share for length, share in enumerate(probabilities, 1)))
    assert mean == pytest.approx(3.797, abs=5e-4)  # 4.46 if longer lengths were clipped


def test_anchors_are_uniform_over_the_tokens():
    anchors, first, last = draw_spans(MaskingOptions(), 2000, 50)
    assert (first == anchors).all() and (last <= 50).all()
    counts = collections.Counter(anchors.tolist())
    expected = len(anchors) / 50
    assert set(counts) == set(range(1, 51))
    statistic = sum((count - expected) ** 2 / expected for count in counts.values())
    assert statistic < 49 + 5 * (2 * 49) ** 0.5


@pytest.mark.parametrize(
    "field, value",
    [
        ("scheme", "spans"),
        ("rate", 0.0),
        ("rate", 1.0),
        ("geometric_p", 1.5),
        ("max_span_length", 0),
        ("max_span_targets", 0),
        ("mask_token_rate", -0.1),
        ("random_token_rate", 0.3),
        ("replacement_unit", "sentence"),
        ("span_start", "middle"),
        ("random_tokens", "zipf"),
        ("other_draws", "subwords"),
    ],
)
def test_values_out_of_range_are_refused_by_name(field, value):
    with pytest.raises(ConfigurationError, match=f"masking.{field}"):
        MaskingOptions.of({field: value})


@pytest.mark.parametrize(
    "scheme, key, value",
    [
        ("subwords", "span_start", "word"),
        ("subwords", "span_start", "anchor_token"),
        ("geometric_spans", "other_draws", "whole_words"),
        ("whole_words", "other_draws", "geometric_spans"),
    ],
)
def test_what_has_no_effect_on_a_scheme_is_refused(scheme, key, value):
    with pytest.raises(ConfigurationError) as raised:
        MaskingOptions.of({"scheme": scheme, key: value})
    message = str(raised.value)
    assert message.startswith(f"masking.{key}: {value} has no effect with masking.scheme={scheme}")
    assert message.endswith(f"--set masking.{key}=null") and "\n" not in message
