"""SegaBERT's positions in a graph, against the rule in plain Python."""

import re
import unicodedata

import hypothesis
import tensorflow as tf
from hypothesis import strategies as st

from spanbert_tf.text.positions import pair_positions, segment_positions

TITLES = {"Mr", "Mrs", "Ms", "Dr", "Prof", "St", "Sr", "Jr", "Gen", "Col", "Lt", "Capt", "Sgt"}
TITLES |= {"Rev", "Gov", "Sen", "Rep", "No", "vs"}
CLOSING, OPENING = "\"')]\u201d\u2019", "\"'([\u201c\u2018"
FRAGMENTS = ["Mr", "J", "a", "B", "É", "9", ".", "!", "?", " ", "  ", "\n", "\t"]
FRAGMENTS += [*CLOSING, "(", "\u201c"]


def sentence_starts(text):
    """Characters at which a new sentence begins, read off one by one."""
    starts = set()
    for place in range(1, len(text)):
        rest = text[place:].lstrip(" \t").lstrip(OPENING)
        if text[place - 1] not in " \t" or text[place] in " \t" or not rest:
            continue
        before = text[:place].rstrip(" \t")
        end = before.rstrip(CLOSING)
        if not end or end[-1] not in ".!?":
            continue
        word = re.search(r"[A-Za-z0-9_]*$", end[:-1])[0]
        is_title = end[-1] == "." and (word in TITLES or re.fullmatch("[A-Z]", word))
        if unicodedata.category(rest[0]) in ("Lu", "Nd") and not is_title:
            starts.add(place)
    return starts


def expected_positions(text, tokens, first_paragraph):
    starts, positions = sentence_starts(text), []
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
    columns = segment_positions(
        tf.constant(texts, tf.string), starts, first_paragraph=first_paragraph
    )
    rows = zip(*(column.to_list() for column in columns), strict=True)
    return [list(zip(*row, strict=True)) for row in rows]


def words(text):
    return [match.start() for match in re.finditer(r"\w+|[^\w\s]", text)]


def sentences(text):
    starts = [
        token
        for token, (_, _, place) in zip(
            words(text), actual_positions([text], [words(text)], 0)[0], strict=True
        )
        if not place
    ]
    return [text[a:b].strip() for a, b in zip(starts, [*starts[1:], None], strict=True)]


def test_sentences_of_a_passage():
    text = (
        'Mr. J. Doe of the U.S. Army said "Go!" Then he left... "Why?" (Nobody knows.) '
        "It was 3.5 km. 12 men came; e.g. this one.\nÉva sat. élan."
    )
    assert sentences(text) == [
        'Mr. J. Doe of the U.S. Army said "Go!"',
        "Then he left...",
        '"Why?"',
        "(Nobody knows.)",
        "It was 3.5 km.",
        "12 men came; e.g. this one.",
        "Éva sat. élan.",
    ]


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


def test_question_is_paragraph_0_even_in_lines():
    starts = tf.ragged.constant([[0, 4]], tf.int64)
    asked, read = pair_positions(
        tf.constant(["Who\nis?"]), tf.constant(["Ann\nis."]), starts, starts
    )
    assert asked.paragraph_indices.to_list() == [[0, 0]]
    assert asked.token_indices.to_list() == [[0, 1]]
    assert read.paragraph_indices.to_list() == [[1, 2]]
