"""Rows read all at once are what a look at each line finds."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spanbert_tf.errors import BadInputError
from spanbert_tf.tasks.coreference.conll import equal_columns, read_conll

WORDS = ["a", "Ünï", "/.", "/?", "-", "😀", "\x00", "8)", "#x", "x\u200by"]
SPEAKERS = ["-", "*", "_", "Ann", "A#1"]
SPACES = [" ", "   ", "\t", "\xa0", "\u3000", "\r", "\x1c", "\x85"]


def row(first, word, speaker, cell, width, space):
    columns = [first, "0", "0", word, *"-----", speaker, *"-" * (width - 11), cell]
    return space.join(columns)


rows = st.builds(
    row,
    st.sampled_from(["d", "d", "d", "#d"]),
    st.sampled_from(WORDS),
    st.sampled_from(SPEAKERS),
    st.sampled_from(["-", "-", "(1)", "(2)|(3)", "(1)(12)"]),
    st.sampled_from([12, 12, 12, 13]),
    st.sampled_from([" ", " ", " ", *SPACES]),
)
blanks = st.sampled_from(["", "", " ", "\r"])


def by_lines(lines):
    """Words, first words of sentences, speakers and mentions, a line at a time."""
    words, starts, speakers, clusters, begins = [], [], [], {}, True
    for line in lines:
        columns = line.split()
        if not columns:
            begins = True
            continue
        if begins:
            starts.append(len(words))
        begins = False
        for cluster in columns[-1].replace("|", "").strip("()").split(")(") * (columns[-1] != "-"):
            clusters.setdefault(cluster, []).append((len(words), len(words)))
        words.append({"/.": ".", "/?": "?"}.get(columns[3], columns[3]))
        speakers.append("" if columns[9] in ("-", "*", "_") else columns[9])
    merged = []
    for mentions in clusters.values():
        mentions = set(mentions)
        for other in [other for other in merged if other & mentions]:
            merged.remove(other)
            mentions |= other
        merged.append(mentions)
    return words, starts, speakers, sorted(map(sorted, merged))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(rows, rows, rows, blanks), max_size=12), st.booleans())
@example([row("d", "a", "-", "-", 12, " "), row("#d", "b", "-", "-", 12, " ")] * 2, True)
def test_documents_are_those_of_their_lines(lines, ends):
    text = "\n".join(["#begin document (d); part 000", *lines, *["#end document"] * ends])
    (document,) = read_conll("f", text)
    words, starts, speakers, clusters = by_lines(lines)
    assert (document.words, document.speakers) == (words, speakers)
    assert (document.sentence_starts or []) == starts
    assert document.clusters == clusters


ORDINARY = [row("d", word, "-", "-", 12, "  ") for word in ("a", "b", "c")]


def test_ordinary_rows_are_read_at_once():
    columns = equal_columns("\n\n" + "\n".join([*ORDINARY, "", " ", *ORDINARY]) + "\n", 12)
    assert columns.cells(3) == ["a", "b", "c"] * 2
    assert columns.lines == [2, 3, 4, 7, 8, 9] and columns.sentence_starts == [0, 3]
    assert list(columns.cells_other_than("-", 3)) == list(enumerate(["a", "b", "c"] * 2))


@pytest.mark.parametrize(
    "odd", [row("d", "a", "-", "-", width, " ") for width in (11, 13)] + ["d", "\t".join("d" * 12)]
)
def test_other_rows_are_left_to_those_who_read_lines(odd):
    assert equal_columns("\n".join([*ORDINARY, odd, *ORDINARY]), 12) is None


@pytest.mark.parametrize("space", SPACES[2:])
def test_spaces_beyond_ascii_and_controls_are_never_parts_of_cells(space):
    assert (
        equal_columns("\n".join([*ORDINARY, row("d", f"a{space}b", "-", "-", 12, " ")]), 12) is None
    )


def test_cells_between_tabs_may_hold_spaces():
    rows = [row("my doc", word, "Ann B", cell, 12, "\t") for word, cell in
            (("10\u00a0km", "(1)"), ("x ", "-"), ("\u00a0", "(1)"))]  # fmt: skip
    text = "\n".join(["#begin document (my doc); part 002", *rows, "#end document"])
    (document,) = read_conll("f", text)
    assert document.words == ["10\u00a0km", "x", "\u00a0"]
    assert document.speakers == ["Ann B"] * 3
    assert document.clusters == [[(0, 0), (2, 2)]]


@pytest.mark.parametrize("space", ["\t\t", "\t ", " \t", " "])
def test_several_tabs_are_one_border(space):
    text = "#begin document (d)\n" + row("d", "word", "Ann", "(1)", 12, space) + space
    (document,) = read_conll("f", text)
    assert (document.words, document.speakers) == (["word"], ["Ann"])
    assert document.clusters == [[(0, 0)]]


def test_places_of_bad_cells_are_told(tmp_path):
    bad = row("d", "a", "-", "(1", 12, " ")[:-2] + "1)"
    lines = ["", "#begin document (d)", "", *ORDINARY, "", "", *ORDINARY, bad, *ORDINARY]
    with pytest.raises(BadInputError, match="document of line 2: line 12: a mention of cluster 1"):
        read_conll("f", "\n".join(lines))
