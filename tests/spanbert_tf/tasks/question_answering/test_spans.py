"""The best spans, against all pairs of positions in plain Python."""

import hypothesis
import numpy as np
from hypothesis import strategies as st

from spanbert_tf.tasks.question_answering.graph import NO_SPAN, best_spans


def brute_force(start, end, is_passage, can_start, max_answer_tokens):
    spans = {}
    for first in range(len(start)):
        for last in range(first, min(first + max_answer_tokens, len(start))):
            if can_start[first] and is_passage[first] and is_passage[last]:
                spans[first, last] = np.float32(start[first]) + np.float32(end[last])
    return spans


@hypothesis.settings(max_examples=60)
@hypothesis.given(st.data(), st.integers(1, 12), st.integers(1, 6), st.integers(0, 2**31 - 1))
def test_best_spans_are_the_best_of_all_pairs(data, length, max_answer_tokens, seed):
    random = np.random.default_rng(seed)
    # Sixteenths: sums are exact, ties are likely.
    start, end = random.integers(-32, 32, (2, 3, length)).astype("float32") / 16
    is_passage = random.random((3, length)) < 0.7
    can_start = random.random((3, length)) < 0.7
    num_spans = data.draw(st.integers(1, length * max_answer_tokens + 3))
    found = best_spans(
        start,
        end,
        is_passage,
        can_start,
        max_answer_tokens=max_answer_tokens,
        num_spans=num_spans,
    )
    np.testing.assert_array_equal(found.null_scores, start[:, 0] + end[:, 0])
    for row in range(3):
        expected = brute_force(
            start[row], end[row], is_passage[row], can_start[row], max_answer_tokens
        )
        scores = np.array(found.scores[row])
        valid = scores > NO_SPAN / 2
        best = sorted(expected.values(), reverse=True)[:num_spans]
        assert scores[valid].tolist() == best
        pairs = zip(np.array(found.starts[row]), np.array(found.ends[row]), strict=True)
        pairs = [pair for pair, is_valid in zip(pairs, valid, strict=True) if is_valid]
        assert len(set(pairs)) == len(pairs)
        for pair, score in zip(pairs, scores, strict=False):
            assert expected[pair] == score
