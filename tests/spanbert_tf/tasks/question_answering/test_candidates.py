"""The one rule from spans of windows to answers, against plain Python."""

import math

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st

from spanbert_tf.tasks.question_answering.graph import NO_SPAN, WindowSpans, best_candidates

SPANS, NUM_CANDIDATES = 3, 4
CONTEXTS = ["ab ab äb 中 ab", "a", "", "0 1 0 1 0 1 1"]


@st.composite
def windows(draw):
    """Each question has a window at least; few scores, so that many are the same."""
    index = [*range(len(CONTEXTS)), *draw(st.lists(st.integers(0, len(CONTEXTS) - 1), max_size=40))]
    rows = []
    for number in index:
        length = len(CONTEXTS[number])
        spans = []
        for _ in range(SPANS):
            start = draw(st.integers(0, max(length - 1, 0)))
            end = draw(st.integers(start + 1, max(length, start + 1)))
            score = draw(st.sampled_from([NO_SPAN, 2 * NO_SPAN, -1.5, 0.0, 0.25, 2.0]))
            spans.append((score if end <= length else NO_SPAN, start, end))
        rows.append((number, spans, draw(st.sampled_from([-1.0, 0.5, 3.0]))))
    return rows


def by_the_rule(rows, number):
    """The candidates of a question as (text, start, end, score), and its null score."""
    mine = [row for row in rows if row[0] == number]
    spans = sorted(
        (-score, start, end) for _, spans, _ in mine for score, start, end in spans if score > -9
    )
    unique = {}
    for score, start, end in spans[: 8 * NUM_CANDIDATES]:
        unique.setdefault(CONTEXTS[number][start:end], (start, end, -score))
    found = [(text, *values) for text, values in unique.items()][:NUM_CANDIDATES]
    return found, min(null_score for *_, null_score in mine)


@hypothesis.settings(max_examples=30)
@hypothesis.given(windows(), st.sampled_from(["UTF8_CHAR", "BYTE"]))
def test_candidates_are_those_of_the_rule(rows, unit):
    def place(number, characters):
        text = CONTEXTS[number][:characters]
        return len(text.encode()) if unit == "BYTE" else characters

    spans = WindowSpans(
        tf.constant([number for number, *_ in rows]),
        tf.constant([[span[0] for span in spans] for _, spans, _ in rows], tf.float32),
        tf.constant([[place(n, span[1]) for span in spans] for n, spans, _ in rows]),
        tf.constant([[place(n, span[2]) for span in spans] for n, spans, _ in rows]),
        tf.constant([null_score for *_, null_score in rows], tf.float32),
    )
    found = best_candidates(tf.constant(CONTEXTS), spans, num_candidates=NUM_CANDIDATES, unit=unit)
    for number in range(len(CONTEXTS)):
        expected, null_score = by_the_rule(rows, number)
        texts = [text.decode() for text in found.texts[number].numpy()]
        count = len(expected)
        assert texts == [text for text, *_ in expected] + [""] * (NUM_CANDIDATES - count)
        starts, ends = found.starts[number].numpy(), found.ends[number].numpy()
        assert starts[:count].tolist() == [place(number, start) for _, start, *_ in expected]
        assert ends[:count].tolist() == [place(number, end) for *_, end, _ in expected]
        scores = [score for *_, score in expected]
        assert found.scores[number, :count].numpy().tolist() == scores
        total = sum(map(math.exp, scores))
        weights = [math.exp(score) / total for score in scores]
        np.testing.assert_allclose(
            found.probabilities[number], weights + [0] * (NUM_CANDIDATES - count), atol=1e-6
        )
        best = scores[0] if scores else NO_SPAN
        assert float(found.null_odds[number]) == pytest.approx(null_score - best)


def test_no_question_has_no_candidates():
    nothing = WindowSpans(
        tf.zeros([0], tf.int32),
        tf.zeros([0, SPANS]),
        *[tf.zeros([0, SPANS], tf.int32)] * 2,
        tf.zeros([0]),
    )
    found = best_candidates(
        tf.zeros([0], tf.string), nothing, num_candidates=NUM_CANDIDATES, unit="BYTE"
    )
    assert found.texts.shape == (0, NUM_CANDIDATES) and found.null_odds.shape == (0,)
