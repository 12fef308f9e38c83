"""Tables of classes against counts by hand, and the page of records."""

import io
import re
import time

import pytest
import sklearn.metrics
from hypothesis import given, settings
from hypothesis import strategies as st

from spanbert_tf.console import DataConsole
from spanbert_tf.tasks.report import (
    Report,
    Table,
    class_scores,
    class_table,
    confusion_table,
    is_report,
    marked_parts,
    print_table,
    render_page,
)

LABELS = ["no", "yes", "never seen"]
GOLD = ["yes", "yes", "yes", "no", "no"]
PREDICTED = ["yes", "no", "yes", "yes", "no"]


def printed(table):
    console = DataConsole(file=io.StringIO(), width=120)
    print_table(console, table)
    return console.file.getvalue()


def cells(text):
    """The lines of a table that have numbers in them, as lists of their cells."""
    rows = [re.split(r"\s*[│┃|]\s*", line.strip("│┃| \n")) for line in text.split("\n")]
    return [row for row in rows if len(row) > 1]


@settings(max_examples=25)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("abc")), min_size=1))
def test_scores_are_those_counted_by_hand(pairs):
    gold, predicted = zip(*pairs, strict=True)
    for score in class_scores(gold, predicted, list("abcd")).classes:
        right = sum(one == other == score.name for one, other in pairs)
        guessed, there = predicted.count(score.name), gold.count(score.name)
        assert score.support == there and isinstance(score.support, int)
        assert score.precision == pytest.approx(100 * right / guessed if guessed else 0)
        assert score.recall == pytest.approx(100 * right / there if there else 0)
        # F1 = 2 TP / (2 TP + FP + FN)
        assert score.f1 == pytest.approx(200 * right / (guessed + there) if guessed + there else 0)


def test_table_has_a_line_for_each_class():
    rows = cells(printed(class_table("t", class_scores(GOLD, PREDICTED, LABELS))))
    assert rows[1:4] == [
        ["no", "50.00", "50.00", "50.00", "2"],
        ["yes", "66.67", "66.67", "66.67", "3"],
        ["never seen", "0.00", "0.00", "0.00", "0"],
    ]


def test_table_ends_with_micro_macro_and_weighted_averages():
    """By hand: 3 of 5 are right; "never seen" is in neither and counts in no average."""
    rows = cells(printed(class_table("t", class_scores(GOLD, PREDICTED, LABELS))))
    assert rows[4:] == [
        ["micro avg", "60.00", "60.00", "60.00", "5"],
        ["macro avg", "58.33", "58.33", "58.33", "5"],
        ["weighted avg", "60.00", "60.00", "60.00", "5"],
    ]


@settings(max_examples=25)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("abc")), min_size=1))
def test_averages_are_those_that_scikit_learn_prints(pairs):
    gold, predicted = zip(*pairs, strict=True)
    averages = class_scores(gold, predicted, list("abcd")).averages
    report = sklearn.metrics.classification_report(
        gold, predicted, output_dict=True, zero_division=0
    )
    for score in averages:
        if score.name == "micro avg":  # which it calls accuracy where no class is left out
            accuracy = pytest.approx(100 * report["accuracy"])
            assert score.precision == accuracy and score.recall == accuracy and score.f1 == accuracy
        else:
            expected = report[score.name]
            assert score.precision == pytest.approx(100 * expected["precision"])
            assert score.recall == pytest.approx(100 * expected["recall"])
            assert score.f1 == pytest.approx(100 * expected["f1-score"])
            assert score.support == expected["support"] == len(pairs)


def test_a_class_that_is_left_out_is_in_no_average():
    """By hand: of the class "yes" alone, and the rows say what they leave out."""
    averages = class_scores(GOLD, PREDICTED, LABELS, without="no").averages
    assert averages[0].name == "micro avg without no"
    assert {round(score.f1, 2) for score in averages} == {66.67}
    assert {score.support for score in averages} == {3}


def test_confusions_have_gold_in_rows():
    rows = cells(printed(confusion_table(GOLD, PREDICTED, LABELS)))
    assert rows[0][1:] == LABELS
    assert rows[1:] == [
        ["no", "1", "1", "0"],
        ["yes", "1", "2", "0"],
        ["never seen", "0", "0", "0"],
    ]


def test_of_many_classes_the_most_frequent_confusions_are_shown():
    labels = [f"class {number}" for number in range(42)]
    gold = [*labels, *["class 3"] * 5, *["class 4"] * 2]
    predicted = [*labels, *["class 7"] * 5, *["class [bold]"] * 2]
    rows = cells(printed(confusion_table(gold, predicted, [*labels, "class [bold]"])))
    assert rows[1:] == [["class 3", "class 7", "5"], ["class 4", "class [bold]", "2"]]


def test_page_escapes_and_counts(tmp_path):
    template = tmp_path / "own.html"
    template.write_text(
        '{% extends "page.html" %}{% block summary %}<p>{{ of }}</p>{% endblock %}'
        "{% block record %}<b>{{ record.text }}</b>{% endblock %}"
    )
    records = [
        {"kinds": [], "error": 0, "text": "fine"},
        {"kinds": ["sure"], "error": 0.5, "text": "<i>&"},
        {"kinds": [], "error": 0.9, "text": "worse"},
    ]
    table = Table("<t>", ["", "F1"], [["<b>", "12.50"]], [["all", "12.50"]])
    report = Report(str(template), "cat", records, {"sure": "sure ones"}, {"of": "<1>"})
    page = render_page(report, "a < b", by="model", tables=[table])
    assert "<title>a &lt; b</title>" in page and "<p>&lt;1&gt;</p>" in page
    assert re.findall(r'data-kinds="([\w ]*)">\s*<b>(.*)</b>', page) == [
        ("errors", "worse"),  # the worst first, what is right last
        ("errors sure", "&lt;i&gt;&amp;"),
        ("right", "fine"),
    ]
    counts = re.findall(r'value="(\w+)"[^>]*> ([^<]*)</label>', page)
    assert counts == [
        ("all", "all: 3"),
        ("errors", "with errors: 2"),
        ("right", "all right: 1"),
        ("sure", "sure ones: 1"),
    ]
    assert '<th scope="row" class="name">&lt;b&gt;</th><td>12.50</td>' in page
    assert "http" not in page and "src=" not in page and "@import" not in page  # no network
    (tmp_path / "page.html").write_text(page)
    assert is_report(str(tmp_path / "page.html")) and not is_report(str(template))


NOTES = ("missed", "wrong", "right")
SPANS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)).map(sorted), max_size=5)


@settings(max_examples=200)
@given(SPANS, SPANS)
def test_parts_are_marked_as_each_of_their_characters_is(golds, chosen):
    text = "abcdefghi"
    names = {(True, True): "overlap", (True, False): "gold", (False, True): "model"}

    def kind(n):
        over = [{(a, b) for a, b in spans if a <= n < b} for spans in (golds, chosen)]
        return "both" if over[0] & over[1] else names.get(tuple(map(bool, over)))

    parts = marked_parts(text, golds, chosen, ("gold", "model", "both"))
    assert "".join(part for part, *_ in parts) == text
    assert [name for part, name, _ in parts for _ in part] == list(map(kind, range(len(text))))
    started = sum(len(note.split(", ")) for _, _, note in parts if note)
    assert started == len({(a, b) for a, b in golds + chosen if a < b})


def test_the_same_place_of_another_name_is_not_the_same():
    found = marked_parts("Ann Lee", [(0, 3, "A"), (4, 7, "A")], [(0, 3, "B"), (4, 7, "A")], NOTES)
    assert found == [
        ("Ann", "overlap", "A missed, B wrong"),
        (" ", None, ""),
        ("Lee", "both", "A right"),
    ]
    # Right in a part: missed as a whole, and wrong as a whole.
    assert marked_parts("Ann Lee", [(0, 7, "A")], [(0, 3, "A")], NOTES) == [
        ("Ann", "overlap", "A wrong, A missed"),
        (" Lee", "gold", ""),
    ]


def test_a_long_text_with_many_places_takes_no_time():
    spans = [(start, start + 3) for start in range(0, 200_000, 10)]
    started = time.process_time()
    assert len(marked_parts("x" * 200_000, spans, spans, NOTES)) == 40_000
    assert time.process_time() - started < 10  # seconds; each part against each place: 140
