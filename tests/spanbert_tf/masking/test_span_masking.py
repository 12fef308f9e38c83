"""Masks of the graph against the plain-Python definition, and what must hold for any text."""

import collections
from fractions import Fraction

import hypothesis
import hypothesis.strategies as st
import masking_oracle
import numpy as np
import pytest
import tensorflow as tf

from spanbert_tf.errors import ConfigurationError
from spanbert_tf.masking import AnnotatedSpans, Blocks, MaskingOptions, SpanMasker
from spanbert_tf.masking.candidates import draw_candidates, find_words
from spanbert_tf.masking.random_bits import row_keys

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
    rows, blocks, options, num_slots, record_ids, epochs=None, annotated=None, eager=False
):
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
        )

    batch = mask() if eager else tf.function(mask)()
    return {name: value.numpy() for name, value in batch.items()}


def rules_of(options):
    return masking_oracle.Rules(
        scheme=options.scheme,
        rate=Fraction(str(options.rate)),
        p=Fraction(str(options.geometric_p)),
        longest=options.max_span_length,
        unit=options.unit,
        span_start=options.span_start,
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
    "subwords": MaskingOptions(scheme="subwords"),
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
    num_slots = options.num_slots(width, "single" if num_segments == 1 else "pair")
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


@pytest.mark.parametrize("scheme", ["entities", "noun_phrases"])
@pytest.mark.parametrize("num_segments", [1, 2])
def test_annotated_spans_equal_the_definition(scheme, num_segments):
    options = MaskingOptions(scheme=scheme)
    random = masking_oracle.random.Random(5)
    width, rows, blocks, spans = 97, [], [], []
    for _ in range(24):
        segments = [random_segment(random, random.randint(4, 44)) for _ in range(num_segments)]
        packed, block = pack(segments, width)
        rows.append(packed)
        blocks.append(block)
        found = []
        for start, length in block:
            words = masking_oracle.split_words(packed, start, length, starts_word)
            while words:
                size = random.randint(1, 3)
                taken, words = words[:size], words[size:]
                if random.random() < 0.6:
                    found.append((taken[0][0], taken[-1][-1]))
        spans.append(found)
    longest = max(map(len, spans))
    counts = [
        [sum(start <= first < start + length for first, _ in found) for start, length in block]
        for found, block in zip(spans, blocks, strict=True)
    ]
    firsts = [[0, row[0]][:num_segments] for row in counts]
    padded = np.array([found + [(0, 0)] * (longest - len(found)) for found in spans], np.int64)
    annotated = AnnotatedSpans(
        tf.constant(padded[:, :, 0]),
        tf.constant(padded[:, :, 1]),
        tf.constant(firsts, tf.int64)[..., tf.newaxis],
        tf.constant(counts, tf.int64)[..., tf.newaxis],
    )
    kind = "single" if num_segments == 1 else "pair"
    batch = run_graph(
        rows, blocks, options, options.num_slots(width, kind), range(24), annotated=annotated
    )
    for index, row in enumerate(rows):
        draws = masking_oracle.HashDraws(SEED, 0, index)
        result = masking_oracle.mask_row(
            row, blocks[index], starts_word, rules_of(options), draws, unigram_thresholds(), MASK,
            spans[index],
        )  # fmt: skip
        check_against_oracle(batch, index, result)


texts = st.lists(st.integers(5, len(VOCABULARY) - 1), min_size=0, max_size=38)


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
    kind = "single" if len(segments) == 1 else "pair"
    num_slots = options.num_slots(width, kind)
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
            options.num_slots(64, "single"),
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
    batch = run_graph(
        [row] * 3, [blocks] * 3, options, options.num_slots(64, "single"), [1, 1, 2], [0, 1, 0]
    )
    rows = {tuple(positions) for positions in batch["mask_positions"]}
    assert len(rows) == 3


@pytest.mark.parametrize("rate, lengths", [(0.15, (100, 180, 200, 20, 1)), (0.29, (100, 7))])
def test_budget_is_exact_where_float32_rounds_up(rate, lengths):
    options = MaskingOptions(rate=rate)
    for length in lengths:
        exact = -(-length * round(rate * 100) // 100)
        assert options.budget(length) == exact
        row, blocks = pack([[5] * length], length + 2)
        batch = run_graph([row], [blocks], options, exact, [9], eager=True)
        assert batch["mask_weights"].sum() == exact


@pytest.mark.parametrize("rate", [0.20000000000000007, 1e-20, 1 - 1e-16])
def test_budget_is_exact_for_rates_of_many_digits(rate):
    """Products with their denominators have more than 63 bits."""
    lengths = (1, 2, 97, 500)
    rows, blocks = zip(*(pack([[5] * length], 502) for length in lengths), strict=True)
    options = MaskingOptions(rate=rate)
    batch = run_graph(rows, blocks, options, options.num_slots(502, "single"), range(4))
    exact = [-(-length * Fraction(str(rate)) // 1) for length in lengths]
    assert batch["mask_weights"].sum(axis=1).tolist() == exact


def sample(options, num_rows, length):
    """(graph's batch, oracle's results from Python's generator) on the same text."""
    random = masking_oracle.random.Random(1)
    packed = [pack([random_segment(random, length)], length + 2) for _ in range(num_rows)]
    rows, blocks = [row for row, _ in packed], [block for _, block in packed]
    batch = run_graph(
        rows, blocks, options, options.num_slots(length + 2, "single"), range(num_rows)
    )
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


def test_random_tokens_follow_the_unigram_counts():
    options = MaskingOptions(mask_token_rate=0.0, random_token_rate=1.0)
    batch, _, _ = sample(options, 600, 110)
    drawn = [
        row[position]
        for row, positions in zip(batch["token_ids"], batch["mask_positions"], strict=True)
        for position in positions
    ]
    counts = collections.Counter(drawn)
    statistic, freedom = 0.0, 0
    for token_id, weight in enumerate(COUNTS):
        expected = len(drawn) * weight / sum(COUNTS)
        assert expected or not counts[token_id]
        if expected > 5:
            statistic += (counts[token_id] - expected) ** 2 / expected
            freedom += 1
    assert statistic < freedom + 5 * (2 * freedom) ** 0.5


def draw_spans(options, num_rows, length):
    """(anchor, first, last) of 40 draws for each of `num_rows` blocks of one-piece words."""
    row, block = pack([[5] * length], length + 2)
    blocks = Blocks(
        tf.constant([row] * num_rows),
        tf.fill([num_rows, 1], tf.constant(block[0][0], tf.int64)),
        tf.fill([num_rows, 1], tf.constant(length, tf.int64)),
    )
    words = find_words(blocks, tf.constant([starts_word(n) for n in range(len(VOCABULARY))]))
    keys = row_keys(SEED, tf.zeros(num_rows, tf.int64), tf.range(num_rows, dtype=tf.int64))
    candidates = draw_candidates(blocks, words, keys, tf.range(40, dtype=tf.int64), options)
    row_starts = tf.range(num_rows, dtype=tf.int64)[:, tf.newaxis, tf.newaxis] * (length + 2)
    return [(positions - row_starts).numpy().ravel() for positions in candidates[:3]]


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
    ],
)
def test_values_out_of_range_are_refused_by_name(field, value):
    with pytest.raises(ConfigurationError, match=f"masking.{field}"):
        MaskingOptions(**{field: value})
