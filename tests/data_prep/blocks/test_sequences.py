import itertools

import numpy as np
import pytest
import written_records
from counted_documents import LIMIT, SHAPES, make_documents, make_sentences, to_features
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.blocks.sequences import (
    Sentences,
    fill_blocks,
    split_long_sentences,
)


def by_document(blocks, num_documents):
    return [
        [to_features(block) for block in blocks if block.document == number]
        for number in range(num_documents)
    ]


@settings(max_examples=150)
@given(SHAPES)
def test_blocks_are_those_of_the_oracle(shapes):
    documents = make_documents(shapes)
    sentences = split_long_sentences(make_sentences(documents), LIMIT)
    blocks, waiting = fill_blocks(sentences, LIMIT, "uint16", is_open=False)
    assert by_document(blocks, len(shapes)) == written_records.expected_blocks(documents, LIMIT)
    assert not len(waiting.lengths) and not len(waiting.token_ids)


@settings(max_examples=150)
@given(SHAPES, st.data())
def test_text_that_comes_in_parts_gives_the_same_blocks(shapes, data):
    documents = make_documents(shapes)
    cut_document = data.draw(st.integers(0, len(shapes) - 1))
    cut = data.draw(st.integers(1, len(shapes[cut_document])))
    before = [*documents[:cut_document], documents[cut_document][:cut]]
    behind = [documents[cut_document][cut:], *documents[cut_document + 1 :]]
    first = split_long_sentences(make_sentences(before), LIMIT)
    blocks, waiting = fill_blocks(first, LIMIT, "uint16", is_open=True)
    assert len(waiting.token_ids) <= LIMIT
    rest = make_sentences(behind, first_document=cut_document, first_paragraph=cut)
    rest = waiting.join(split_long_sentences(rest, LIMIT))
    more, _ = fill_blocks(rest, LIMIT, "uint16", is_open=False)
    expected = written_records.expected_blocks(documents, LIMIT)
    assert by_document([*blocks, *more], len(shapes)) == expected


@settings(max_examples=150)
@given(SHAPES)
def test_blocks_are_as_full_as_whole_sentences_allow(shapes):
    documents = make_documents(shapes)
    sentences = split_long_sentences(make_sentences(documents), LIMIT)
    blocks, _ = fill_blocks(sentences, LIMIT, "uint16", is_open=False)
    tokens = [token for block in blocks for token in to_features(block)["token_ids"]]
    assert tokens == list(range(1, sentences.lengths.sum() + 1))
    for block, following in itertools.pairwise(blocks):
        assert block.num_tokens <= LIMIT
        if block.document == following.document:
            starts = [*to_features(following)["sentence_starts"], following.num_tokens]
            assert block.num_tokens + starts[1] > LIMIT


def test_indices_beyond_the_stored_type_are_its_maximum():
    sentences = Sentences(
        np.array([7], np.int32), np.array([1]), np.array([0]), np.array([70_000]),
        np.array([2**16]), np.array([0]),
    )  # fmt: skip
    (block,), _ = fill_blocks(sentences, LIMIT, "uint16", is_open=False)
    assert to_features(block)["paragraph_indices"] == [65_535]
    assert to_features(block)["sentence_indices"] == [65_535]


@pytest.mark.parametrize("first", [0, 3, 65_530, 65_536, 200_000])
def test_paragraphs_of_a_long_document_stay_apart(first):
    """What models read, of a table of 50: as of the true indices."""
    true = np.arange(first, first + 8)
    ones = np.ones(8, np.int64)
    sentences = Sentences(
        np.arange(1, 9, dtype=np.int32), ones, 0 * ones, true, 0 * ones, 0 * ones
    )  # fmt: skip
    (block,), _ = fill_blocks(sentences, LIMIT, "uint16", is_open=False)
    stored = np.array(to_features(block)["paragraph_indices"])

    def read(indices):
        return indices - min(max(indices.max() - 49, 0), indices[0])

    assert read(stored).tolist() == read(true).tolist()
    assert len(set(stored)) == 8


def test_annotated_spans_stay_with_their_tokens():
    documents = make_documents([[[4, 4, 3]], [[2], [7, 5]]])  # tokens 0-10, 11-24
    spans = np.array([[0, 0], [2, 3], [8, 10], [11, 12], [13, 13], [20, 24]])
    none = np.zeros((0, 2), np.int64)
    sentences = make_sentences(documents)._replace(spans=(spans, none))
    first, waiting = fill_blocks(sentences, LIMIT, "uint16", is_open=True)
    second, _ = fill_blocks(waiting, LIMIT, "uint16", is_open=False)
    found = [
        [(np.frombuffer(starts, "<u2").tolist(), np.frombuffer(ends, "<u2").tolist())
         for starts, ends in zip(block.lists[4::2], block.lists[5::2], strict=True)]
        for block in (*first, *second)
    ]  # fmt: skip
    assert found == [
        [([0, 2], [0, 3]), ([], [])],
        [([0], [2]), ([], [])],
        [([0, 2], [1, 2]), ([], [])],
        [([0], [4]), ([], [])],
    ]


def test_spans_that_a_cut_divides_are_left_out():
    documents = make_documents([[[20]]])
    spans = np.array([[0, 1], [7, 9], [8, 8], [9, 17], [18, 19]])
    sentences = make_sentences(documents)._replace(spans=(spans,))
    parts = split_long_sentences(sentences, LIMIT)
    for is_open in (False, True):
        blocks, waiting = fill_blocks(parts, LIMIT, "uint16", is_open=is_open)
        blocks += fill_blocks(waiting, LIMIT, "uint16", is_open=False)[0]
        found = [np.frombuffer(block.lists[4], "<u2").tolist() for block in blocks]
        assert found == [[0, 8], [0], [0]]
