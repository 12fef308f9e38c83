"""SegaBERT's positions against plain Python, and the sentences of graphs against those of Punkt."""

import gzip
import itertools
import random
import re

import hypothesis
import pytest
import tensorflow as tf
from hypothesis import strategies as st

from spanbert_tf.text.positions import (
    as_line,
    find_sentences,
    find_sentences_in_graph,
    given_sentences,
    pair_positions,
    segment_positions,
)
from spanbert_tf.text.sentences import find_sentence_starts

FRAGMENTS = ["Mr", "J", "a", "B", "É", "9", ".", "!", "?", " ", "  ", "\n", "\t"]
FRAGMENTS += [*"\"')]\u201d\u2019", "(", "\u201c"]


def expected_positions(text, tokens, first_paragraph):
    starts, positions = find_sentence_starts(text, "en"), []
    for number, token in enumerate(tokens):
        between = text[tokens[number - 1] : token] if number else ""
        if not number:
            positions.append((first_paragraph, 0, 0))
            continue
        paragraph, sentence, place = positions[-1]
        if "\n" in between:
            positions.append((paragraph + 1, 0, 0))
        elif any(tokens[number - 1] < start <= token for start in starts):
            positions.append((paragraph, sentence + 1, 0))
        else:
            positions.append((paragraph, sentence, place + 1))
    return positions


def actual_positions(texts, tokens, first_paragraph):
    """Tokens are given by their characters."""
    in_bytes = [
        [len(text[:token].encode()) for token in places]
        for text, places in zip(texts, tokens, strict=True)
    ]
    starts = tf.ragged.constant(in_bytes, tf.int64, ragged_rank=1)
    strings = tf.constant(texts, tf.string)
    columns = segment_positions(
        strings, starts, find_sentences(strings, "en"), first_paragraph=first_paragraph
    )
    rows = zip(*(column.to_list() for column in columns), strict=True)
    return [list(zip(*row, strict=True)) for row in rows]


def words(text):
    return [match.start() for match in re.finditer(r"\w+|[^\w\s]", text)]


PASSAGE = (
    'Mr. J. Doe of the U.S. Army said "Go!" Then he left... and why? (Nobody knows.) '
    "It was 3.5 km. 12 men came at 3 p.m. They sat.\nÉva sat. élan."
)
SENTENCES = [
    'Mr. J. Doe of the U.S. Army said "Go!"',
    "Then he left... and why?",
    "(Nobody knows.)",
    "It was 3.5 km.",
    "12 men came at 3 p.m.",
    "They sat.",
    "Éva sat.",
    "élan.",
]


@pytest.mark.parametrize("find", [find_sentences, find_sentences_in_graph])
def test_sentences_of_a_passage(find):
    raw = PASSAGE.encode()
    for call in (find, tf.function(find)):
        (starts,) = call(tf.constant([PASSAGE]), "en").to_list()
        borders = sorted({0, *starts, len(raw)})
        found = [raw[a:b].decode().strip() for a, b in itertools.pairwise(borders)]
        assert found == SENTENCES


def test_bytes_that_are_not_utf_8_move_no_sentence():
    texts = tf.constant([b"A\xff\xc3 dog. It ran\xf0\x9f. He", b"", "Été. Élan. Fin".encode()])
    assert find_sentences(texts, "en").to_list() == [[0, 9, 19], [], [0, 7, 14]]
    assert find_sentences_in_graph(texts[1:2], "en").to_list() == [[]]


@pytest.mark.parametrize(
    "name", ["novels/1342_pride_and_prejudice.txt.gz", "wikipedia/AA/wiki_07.gz"]
)
def test_graphs_find_nearly_the_sentences_of_punkt(shared_data, name):
    text = gzip.decompress((shared_data / "text" / name).read_bytes()).decode()
    separator = "\n\n" if "novels" in name else "\n"
    texts = [paragraph.replace("\n", " ").strip() for paragraph in text.split(separator)[:1500]]
    texts = [text for text in texts if text]
    starts = find_sentences_in_graph(tf.constant(texts), "en").to_list()
    num_found = num_right = num_all = 0
    for text, places in zip(texts, starts, strict=True):
        raw = text.encode()
        found = {len(raw) - len(raw[place:].lstrip()) for place in places}
        right = {len(text[:place].encode()) for place in find_sentence_starts(text, "en")} - {0}
        num_found += len(found)
        num_right += len(found & right)
        num_all += len(right)
    assert num_right > 0.99 * num_found
    assert num_right > 0.98 * num_all


@hypothesis.settings(max_examples=150)
@hypothesis.given(
    st.lists(st.lists(st.sampled_from(FRAGMENTS), max_size=20).map("".join), max_size=4),
    st.integers(0, 1),
)
@hypothesis.example(["Mr. B", "a. B", "\n\n", "", "a.\n\nB. É"], 1)
def test_positions_follow_the_rule(texts, first_paragraph):
    tokens = [words(text) for text in texts]
    assert actual_positions(texts, tokens, first_paragraph) == [
        expected_positions(text, places, first_paragraph)
        for text, places in zip(texts, tokens, strict=True)
    ]


@hypothesis.settings(max_examples=40)
@hypothesis.given(
    st.lists(st.lists(st.sampled_from(FRAGMENTS), max_size=20).map("".join), max_size=4),
    st.lists(st.booleans(), min_size=4, max_size=4),
    st.integers(),
)
@hypothesis.example(["É. J. Ann sat.", "J. Ann sat.", ""], [True, False, False, True], 1)
@hypothesis.example([], [True] * 4, 1)
def test_sentences_that_are_given_count_and_other_texts_are_split_by_graphs(texts, is_given, seed):
    """In any order, with any padding."""
    shuffle = random.Random(seed).shuffle
    rows = []
    for text, given in zip(texts, is_given, strict=False):
        row = find_sentence_starts(text, "en") if given else []
        row += [-1, len(text), len(text) + 9, -7]
        shuffle(row)
        rows.append(row)
    width = max(map(len, rows), default=0)
    padded = [row + [-1] * (width - len(row)) for row in rows]
    starts = tf.reshape(tf.constant(padded, tf.int32), [len(texts), width])
    strings = tf.constant(texts, tf.string)
    found = given_sentences(strings, starts, "en").to_list()
    by_rule = find_sentences(strings, "en").to_list()
    by_graph = find_sentences_in_graph(strings, "en").to_list()
    assert found == [
        exact if given else nearly
        for exact, nearly, given in zip(by_rule, by_graph, is_given, strict=False)
    ]


def test_question_is_paragraph_0_even_in_lines():
    starts = tf.ragged.constant([[0, 4]], tf.int64)
    question = as_line(tf.constant(["Who\nis?"]))
    passage = tf.constant(["Ann\nis."])
    sentences = [find_sentences(texts, "en") for texts in (question, passage)]
    asked, read = pair_positions(question, passage, starts, starts, *sentences)
    assert asked.paragraph_indices.to_list() == [[0, 0]]
    assert asked.token_indices.to_list() == [[0, 1]]
    assert read.paragraph_indices.to_list() == [[1, 2]]
