"""Windows over passages, against the loops of the original code for SQuAD."""

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st

from spanbert_tf.data.windows import WindowPacker
from spanbert_tf.text.positions import SegmentPositions

START, END, PAD = 101, 102, 0
LENGTH, STRIDE, MAX_QUESTION = 24, 7, 5


def texts(max_tokens):
    """Texts of any length; lists that hypothesis draws itself have 5 tokens on average."""
    sizes = st.integers(0, max_tokens)
    return sizes.flatmap(lambda n: st.lists(st.integers(1, 99), min_size=n, max_size=n))


def original_spans(num_tokens, length, stride):
    """First token and size of each window, as `run_squad.py` of google-research/bert finds them."""
    spans, offset = [], 0
    while True:
        size = min(num_tokens - offset, length)
        spans.append((offset, size))
        if offset + size == num_tokens:
            return spans
        offset += min(size, stride)


def original_best_span(spans, token):
    """The window in which a token has most context, by `_check_is_max_context` there."""
    scores = [
        min(token - start, start + size - 1 - token) + 0.01 * size
        if start <= token < start + size
        else -1
        for start, size in spans
    ]
    return scores.index(max(scores))


def with_separators(segments):
    """Positions of a row of segments: a [SEP] is the next token of the sentence before it."""
    row = [[0, 0, 0]]
    for segment in segments:
        row += segment
        row.append([segment[-1][0], segment[-1][1], segment[-1][2] + 1] if segment else [0, 0, 0])
    return row


def ragged(rows):
    return tf.ragged.constant(rows, tf.int32, ragged_rank=1)


def positions_of(rows):
    """Any three numbers of each token, as lists and as the packer takes them."""
    listed = [[[token % 3, token % 5, place] for place, token in enumerate(row)] for row in rows]
    columns = [ragged([[token[n] for token in row] for row in listed]) for n in range(3)]
    return listed, SegmentPositions(*columns)


@hypothesis.settings(max_examples=100)
@hypothesis.given(
    st.lists(st.tuples(texts(MAX_QUESTION + 1), texts(40)), min_size=1, max_size=3),
    st.integers(1, LENGTH),
    st.booleans(),
)
def test_windows_are_those_of_the_original_loop(pairs, stride, question_first):
    packer = WindowPacker(
        START,
        END,
        PAD,
        sequence_length=LENGTH,
        stride=stride,
        max_question_tokens=MAX_QUESTION,
        question_first=question_first,
    )
    questions = [question for question, _ in pairs]
    passages = [passage for _, passage in pairs]
    question_positions, asked = positions_of(questions)
    passage_positions, shown = positions_of(passages)
    positions = (asked, shown) if question_first else None
    windows = packer(ragged(questions), ragged(passages), positions)
    row = 0
    for number, (question, passage) in enumerate(pairs):
        question = question[:MAX_QUESTION]
        spans = original_spans(len(passage), LENGTH - 3 - len(question), stride)
        best = [original_best_span(spans, token) for token in range(len(passage))]
        for window, (start, count) in enumerate(spans):
            part = passage[start : start + count]
            segments = [question, part] if question_first else [part, question]
            expected = [START, *segments[0], END, *segments[1], END]
            second = 2 + len(segments[0])
            size = len(expected)
            assert windows.question_index[row] == number
            assert windows.token_ids[row, :size].numpy().tolist() == expected
            assert not windows.token_ids[row, size:].numpy().any()
            assert windows.padding_mask[row].numpy().sum() == size
            segment_ids = windows.segment_ids[row].numpy()
            assert segment_ids[:size].tolist() == [0] * second + [1] * (size - second)
            tokens = windows.passage_tokens[row].numpy()
            where = np.flatnonzero(tokens >= 0)
            assert tokens[where].tolist() == list(range(start, start + count))
            first = second if question_first else 1
            assert where.tolist() == list(range(first, first + count))
            found = windows.has_most_context[row].numpy()[where]
            assert found.tolist() == [place == window for place in best[start : start + count]]
            if question_first:
                of_question = question_positions[number][: len(question)]
                of_passage = passage_positions[number][start : start + count]
                columns = windows.segment_positions.values()
                packed = np.stack([values[row].numpy() for values in columns], axis=1)
                assert packed[:size].tolist() == with_separators([of_question, of_passage])
                assert not packed[size:].any()
            row += 1
    assert row == len(windows.token_ids)


@pytest.mark.parametrize("question_size", [LENGTH - 4, LENGTH - 3, 200])
def test_a_question_that_fills_the_row_leaves_room_for_each_token(question_size):
    packer = WindowPacker(
        START, END, PAD, sequence_length=LENGTH, stride=STRIDE, max_question_tokens=500
    )
    question = tf.ragged.constant([[7] * question_size], tf.int32)
    windows = packer(question, tf.ragged.constant([[1, 2, 3]], tf.int32))
    shown = windows.passage_tokens.numpy()
    assert shown[shown >= 0].tolist() == [0, 1, 2]
    assert windows.has_most_context.numpy().sum() == 3
    assert windows.token_ids.shape[1] == LENGTH
