"""Scores of relations, against the official scorers' printed results and by hand."""

import re

import pytest

from spanbert_tf.tasks.relation_extraction.metrics import score_semeval2010, score_tacred

NONE = "no_relation"


@pytest.mark.parametrize(
    ("gold", "predicted", "precision", "recall"),
    [
        # By TACRED's scorer: 2 of 3 guesses are right, 2 of 4 relations are found.
        (["a", "a", "b", "c", NONE], ["a", "b", "b", NONE, NONE], 200 / 3, 50),
        (["a", NONE], ["a", "a"], 50, 100),
        (["a", "b"], [NONE, NONE], 100, 0),  # nothing guessed: precision is 1
        ([NONE, NONE], [NONE, "a"], 0, 0),
        ([NONE], [NONE], 100, 0),
    ],
)
def test_tacred(gold, predicted, precision, recall):
    scores = score_tacred(gold, predicted)
    assert scores["precision"] == pytest.approx(precision)
    assert scores["recall"] == pytest.approx(recall)
    total = precision + recall
    assert scores["f1"] == pytest.approx(2 * precision * recall / total if total else 0)


def read_answers(path):
    return dict(line.split("\t") for line in path.read_text().split("\n") if line.strip())


@pytest.mark.parametrize("number", [1, 2, 3, 5])
def test_semeval_is_what_the_official_scorer_printed(number, shared_data):
    directory = shared_data / "relation" / "semeval2010_task8" / "scorer-v1.2"
    key = {n: x.strip() for n, x in read_answers(directory / f"answer_key{number}.txt").items()}
    answers = read_answers(directory / f"proposed_answer{number}.txt")
    answers = {n: x.strip() for n, x in answers.items()}
    scores, relations = score_semeval2010(key, answers)
    printed = (directory / f"result_scores{number}.txt").read_text()
    official = printed[printed.index("TAKING DIRECTIONALITY INTO ACCOUNT") :]
    lines = re.findall(r"^ *(\S+) :.*=\s*([\d.]+)%.*=\s*([\d.]+)%.*=\s*([\d.]+)%", official, re.M)
    expected = {name: shares for name, *shares in lines if name != "_Other"}
    found = {s.name: [f"{x:.2f}" for x in (s.precision, s.recall, s.f1)] for s in relations.classes}
    assert found == expected
    means = re.search(
        r"MACRO-averaged.*\nP = *([\d.]+)%\s*R = *([\d.]+)%\s*F1 = *([\d.]+)%", official
    )
    names = ("precision", "recall", "f1")
    assert [f"{scores[name]:.2f}" for name in names] == list(means.groups())
    _, macro, _ = relations.averages
    assert [f"{getattr(macro, name):.2f}" for name in names] == list(means.groups())


def test_an_example_without_an_answer_is_not_found():
    # By hand: C-E has 1 of 1 guess right, and 1 of 2 examples found; M-C has no answer at all.
    key = {"1": "C-E(e1,e2)", "2": "C-E(e1,e2)", "3": "M-C(e1,e2)"}
    scores, ((cause, member), averages) = score_semeval2010(key, {"1": "C-E(e1,e2)"})
    assert (cause.precision, cause.recall, cause.support) == (100, 50, 2)
    assert (member.precision, member.recall, member.support) == (0, 0, 1)
    assert scores["recall"] == pytest.approx(25)
    micro, macro, weighted = averages
    assert (micro.precision, micro.recall) == (100, pytest.approx(100 / 3))
    assert (macro.precision, macro.recall) == (50, 25)
    assert (weighted.precision, weighted.recall) == (pytest.approx(200 / 3), pytest.approx(100 / 3))
    assert {average.support for average in averages} == {3}


def test_direction_counts():
    # By hand: C-E has 2 of 3 guesses right, one in the wrong direction; M-C is never guessed.
    key = {"1": "C-E(e1,e2)", "2": "C-E(e2,e1)", "3": "C-E(e1,e2)", "4": "M-C(e1,e2)", "5": "Other"}
    answers = {**key, "3": "C-E(e2,e1)", "4": "Other"}
    scores, ((cause, member), _) = score_semeval2010(key, answers)
    assert cause.precision == cause.recall == pytest.approx(200 / 3)
    assert (member.precision, member.recall, member.support) == (0, 0, 1)
    assert scores["f1"] == pytest.approx(100 / 3)
