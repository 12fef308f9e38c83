"""Scores against those of the official scorer, and cases that a person can count."""

import csv
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spanbert_tf.errors import BadInputError
from spanbert_tf.tasks.coreference.conll import ClusterColumn
from spanbert_tf.tasks.coreference.files import cluster_cells
from spanbert_tf.tasks.coreference.metrics import (
    Counts,
    describe_score,
    read_clusters,
    score_documents,
    score_files,
)


def conll(cells, name="(doc); part 000"):
    lines = [f"doc\t0\t{number}\tw\t{cell}" for number, cell in enumerate(cells)]
    return "\n".join([f"#begin document {name}", *lines, "#end document", ""])


def write(path, *documents):
    path.write_text("".join(documents))
    return str(path)


def test_all_cases_of_the_official_scorer_agree_to_the_digit(shared_data):
    directory = shared_data / "coref" / "scorer_cases"
    scores, num_checked = {}, 0
    with open(directory / "official_scores.tsv") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            if row["metric"] == "blanc":
                continue
            pair = (row["key"], row["response"])
            if pair not in scores:
                scores[pair] = score_files(*(str(directory / name) for name in pair))
            expected = tuple(float(row[name]) for name in ("recall", "precision", "f1"))
            assert scores[pair].counts[row["metric"]].percentages() == expected, (pair, row)
            num_checked += 1
    assert num_checked == 148


def test_case_of_two_clusters_that_were_joined(tmp_path):
    # Gold {a, b}, {c, d}; predicted {a, b, c}. One of two links each; B³ recall 2·(2/2) + 1·(1/2)
    # of 4, precision (2·2/3 + 1·1/3) of 3; CEAF-e 2·2/(2 + 3) of 2 and of 1.
    key = write(tmp_path / "key", conll(["(0)", "(0)", "(1)", "(1)"]))
    response = write(tmp_path / "response", conll(["(5)", "(5)", "(5)", "-"]))
    score = score_files(key, response)
    shown = {name: counts.percentages() for name, counts in score.counts.items()}
    assert shown == {
        "mentions": (75.0, 100.0, 85.71),
        "muc": (50.0, 50.0, 50.0),
        "bcub": (62.5, 55.55, 58.82),
        "ceafm": (50.0, 66.66, 57.14),
        "ceafe": (40.0, 80.0, 53.33),
    }
    assert score.as_dict()["average_f1"] == pytest.approx((50.0 + 58.82 + 53.33) / 3)


def test_case_of_repeated_and_wrong_mentions(tmp_path):
    # The second a does not count; the two that are wrong do, each time.
    key = write(tmp_path / "key", conll(["(0)", "(0)", "-", "-"]))
    response = write(tmp_path / "response", conll(["(1)|(2)", "(1)", "(2)|(1)", "-"]))
    score = score_files(key, response)
    shown = {name: counts.percentages() for name, counts in score.counts.items()}
    assert score.num_repeats == 1
    assert shown["mentions"] == (100.0, 66.66, 80.0)
    assert shown["muc"] == (100.0, 50.0, 66.66)
    assert score.counts["bcub"] == Counts(2.0, 2, 4 / 3, 4)
    assert score.counts["ceafe"] == Counts(0.8, 1, 0.8, 2)
    assert "repeats" not in describe_score(score)


def test_case_of_documents_that_one_of_the_files_lacks(tmp_path):
    # Missing predictions are none; predictions for an unknown document do not count.
    gold = ["(0)", "(0)", "-"]
    key = write(tmp_path / "key", conll(gold, "(a)"), conll(gold, "(b)"))
    response = write(tmp_path / "response", conll(gold, "(b)"), conll(gold, "(c)"))
    score = score_files(key, response)
    assert {counts.percentages() for counts in score.counts.values()} == {(50.0, 100.0, 66.66)}


@pytest.mark.parametrize("spelled", ["(a b); part 3", "(a b);  part 0003", "(a b);part 3 "])
def test_documents_are_the_same_however_their_parts_are_spelled(spelled, tmp_path):
    key = write(tmp_path / "key", conll(["(0)", "(0)"], spelled))
    response = write(tmp_path / "response", conll(["(0)", "(0)"], "(a b); part 003"))
    assert score_files(key, response).as_dict()["average_f1"] == 100.0


def test_bare_name_is_part_0(tmp_path):
    key = write(tmp_path / "key", conll(["(0)", "(0)"], "GUM_x"))
    response = write(tmp_path / "response", conll(["(0)", "(0)"], "(GUM_x); part 000"))
    assert score_files(key, response).as_dict()["average_f1"] == 100.0


def test_part_of_more_digits_than_a_number_has_is_a_name(tmp_path):
    key, other = (
        write(tmp_path / digit, conll(["(0)", "(0)"], f"(a); part {digit * 5000}"))
        for digit in "89"
    )
    assert score_files(key, key).as_dict()["average_f1"] == 100.0
    with pytest.raises(BadInputError, match="holds no document of"):
        score_files(key, other)


def test_files_of_other_documents_are_refused(tmp_path):
    key = write(tmp_path / "key", conll(["(0)", "(0)"], "(a); part 000"))
    response = write(tmp_path / "response", conll(["(0)", "(0)"], "(a); part 001"))
    with pytest.raises(BadInputError, match=r"response: holds no document of .*'\(a\); part 000'"):
        score_files(key, response)


GUM = [["(0", "0)", "(0)"], ["(1)", "-", "(1)", "(0)", "(0)"]]
WRONG = [["(0)", "-", "(0)"], ["(0", "-", "0)", "(1)", "(1)"]]


@pytest.mark.parametrize("begin", ["# begin document ", "# begin document", "#begin document"])
@pytest.mark.parametrize("names_of_response", [None, ["GUM_x", "(GUM_y); part 000"]])
def test_documents_without_names_are_paired_by_their_order(begin, names_of_response, tmp_path):
    """The scores are those of the same documents with names, and the table says what was done."""

    def text(documents, names):
        parts = [conll(cells, name) for cells, name in zip(documents, names, strict=True)]
        return "".join(parts)

    def nameless(documents):
        return text(documents, ["x", "x"]).replace("#begin document x", begin)

    names = ["GUM_x", "(GUM_y); part 0"]
    expected = score_files(
        write(tmp_path / "a", text(GUM, names)), write(tmp_path / "b", text(WRONG, names))
    )
    response = text(WRONG, names_of_response) if names_of_response else nameless(WRONG)
    key, response = write(tmp_path / "key", nameless(GUM)), write(tmp_path / "response", response)
    score = score_files(key, response)
    assert score == expected._replace(is_paired_by_order=True)
    assert 0 < score.as_dict()["average_f1"] < 100
    note = "documents have no names: they were paired by their order in the two files"
    assert describe_score(score) == f"{describe_score(expected)}\n{note}"


@pytest.mark.parametrize(
    ("response", "message"),
    [
        (WRONG[:1], "response: holds 1 documents, and .*key 2; .*: give as many, or name them"),
        (WRONG[::-1], "response: line 1: the document has 5 words, and that of .*key, line 1, 3"),
    ],
)
def test_documents_without_names_that_cannot_be_the_same_are_refused(response, message, tmp_path):
    key, response = (
        write(tmp_path / name, *(conll(cells, "") for cells in documents))
        for name, documents in (("key", GUM), ("response", response))
    )
    with pytest.raises(BadInputError, match=message):
        score_files(key, response)


def test_documents_of_two_names_at_one_place_are_refused(tmp_path):
    """Where others have none, so that all are paired by their order."""
    key, response = (
        write(tmp_path / name, conll(GUM[0], ""), conll(GUM[1], name)) for name in ("key", "other")
    )
    with pytest.raises(BadInputError, match=r"other: line 6: is document '\(other\); part 000'"):
        score_files(key, response)


def test_more_repeats_than_perl_scores_are_told(tmp_path):
    key = write(tmp_path / "key", conll(["(0)", "(0)"]))
    repeated = "|".join(f"({number})" for number in range(12))
    score = score_files(key, write(tmp_path / "response", conll([repeated, "(0)"])))
    assert "11 mentions of the response are repeats" in describe_score(score)


def test_table_of_the_command(tmp_path):
    key = write(tmp_path / "key", conll(["(0", "0)", "(0)", "(1)", "(1)"]))
    command = [sys.executable, "-m", "spanbert_tf.tasks.coreference.metrics", key]
    done = subprocess.run([*command, key], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("100.00") == 16
    missing = subprocess.run([*command, str(tmp_path / "no")], capture_output=True, text=True)
    assert missing.returncode == 2 and missing.stderr.count("\n") == 1


def test_scorer_loads_no_tensorflow():
    program = (
        "import sys, spanbert_tf.tasks.coreference.metrics\n"
        "sys.exit(bool({'tensorflow', 'keras'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (conll(["(0", "1)"]), "line 3: a mention of cluster 1 ends that has not begun"),
        (conll(["(0", "-"]), "a mention of cluster 0 begins at word 0"),
        (conll(["8)x"]), "line 2: '8\\)x' is no cell"),
        (conll(["word"]), "line 2: 'word' is no cell"),
        ("doc 0 0 w -\n", "line 1: stands before any"),
        ("", "holds no document"),
        (conll(["-"]) * 2, "line 4: document '\\(doc\\); part 000' occurs twice"),
    ],
)
def test_bad_files_are_named(text, message, tmp_path):
    path = write(tmp_path / "file", text)
    with pytest.raises(BadInputError, match=f"file: .*{message}"):
        read_clusters(path)


spans = st.tuples(st.integers(0, 11), st.integers(0, 11)).map(lambda pair: tuple(sorted(pair)))
clusterings = st.lists(st.lists(spans, min_size=1, max_size=4, unique=True), max_size=4)


@settings(max_examples=50)
@given(clusterings)
def test_column_says_again_what_was_written(clusters):
    # Mentions of one cluster that cross cannot be told apart: (0 (0 0) 0) nests.
    clusters = [
        spans for spans in clusters if not any(a < c <= b < d for a, b in spans for c, d in spans)
    ]
    column = ClusterColumn("column")
    for word, cell in enumerate(cluster_cells(12, clusters)):
        column.read(cell, word, word)
    assert sorted(map(sorted, column.clusters())) == sorted(map(sorted, clusters))


@settings(max_examples=50)
@given(clusterings)
def test_what_is_right_scores_100_and_order_does_not_matter(clusters):
    taken = set()
    disjoint = []
    for cluster in clusters:
        own = [span for span in cluster if span not in taken]
        taken.update(own)
        disjoint += [own] if len(own) > 1 else []
    score = score_documents([(disjoint, [cluster[::-1] for cluster in disjoint[::-1]])])
    expected = {(100.0, 100.0, 100.0)} if disjoint else {(0.0, 0.0, 0.0)}
    assert {counts.percentages() for counts in score.counts.values()} == expected
