"""What the pages of all tasks show, read as text: nothing by its colour alone."""

import html
import html.parser
import re

import numpy as np
import pytest
from made_up_outcomes import made_up_outcome, page_of

from spanbert_tf.tasks.coreference.report import cluster_numbers
from spanbert_tf.tasks.coreference.task import Coreference
from spanbert_tf.tasks.named_entities.task import NamedEntities
from spanbert_tf.tasks.question_answering.answers import AnsweredQuestion, Candidate
from spanbert_tf.tasks.question_answering.task import QuestionAnswering
from spanbert_tf.tasks.relation_extraction.task import RelationExtraction
from spanbert_tf.tasks.text_classification.task import TextClassification

BLOCKS = ("br", "div", "h2", "h3", "li", "p", "summary")


class Reader(html.parser.HTMLParser):
    """The first record as a reader sees it without colours, notes of marks in brackets."""

    def __init__(self, page):
        super().__init__()
        self.text, self.is_closed = "", False
        self.feed(re.search("<article.*?</article>", page, re.DOTALL)[0])
        self.text = " ".join(self.text.split())

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.text += " " * (tag in BLOCKS)
        self.is_closed |= tag == "details" and "open" not in attributes
        if note := attributes.get("data-note"):
            self.handle_data(f"[{note}] ")

    def handle_endtag(self, tag):
        self.text += " " * (tag in BLOCKS)
        self.is_closed &= tag != "details"

    def handle_data(self, text):
        if not self.is_closed:  # else nobody sees it without a click
            self.text += text


def tables_of(page):
    """The cells of all tables of a page, row by row."""
    rows = re.findall("<tr>(.*?)</tr>", page, re.DOTALL)
    return [
        [html.unescape(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)]
        for row in rows
    ]


def entities(gold, found):
    words = ["Ann", "Lee", "saw", "Rome"]
    places = [[0, 3], [4, 7], [8, 11], [12, 16]]
    sentence = {"id": "s7", "text": " ".join(words), "words": places, "labels": gold}
    scores = {"f1": 50.0, "precision": 50.0, "recall": 50.0}
    return page_of(NamedEntities(), "t", made_up_outcome([sentence], [gold], [found]), scores)


def test_types_of_all_entities_are_shown_and_a_wrong_type_is_not_right():
    page = entities(["B-PER", "I-PER", "O", "B-LOC"], ["B-PER", "I-PER", "O", "B-ORG"])
    assert Reader(page).text == (
        "sentence 1 of 1 (s7) \u2717 [PER \u2713] Ann Lee saw [LOC missed, ORG wrong] Rome right: "
        "Ann Lee (PER) wrong type: Rome (ORG, gold: LOC)"
    )
    assert '<mark class="both" data-note="PER \u2713">Ann Lee</mark>' in page
    assert '<mark class="overlap" data-note="LOC missed, ORG wrong">Rome</mark>' in page
    assert 'data-kinds="errors missed invented mistyped"' in page
    assert "with a right place and a wrong type: 1" in page and "all: 1" in page
    rows = tables_of(page)
    assert ["micro avg", "50.00", "50.00", "50.00", "2"] in rows
    assert ["macro avg", "33.33", "33.33", "33.33", "2"] in rows
    # LOC was taken for ORG; nothing was missed or invented.
    assert rows[-5:] == [
        ["gold \\ predicted", "LOC", "ORG", "PER", "no entity", "other borders"],
        ["LOC", "0", "1", "0", "0", "0"],
        ["ORG", "0", "0", "0", "0", "0"],
        ["PER", "0", "0", "1", "0", "0"],
        ["no entity", "0", "0", "0", "0", "0"],
    ]


def test_an_entity_found_in_part_is_missed_and_wrong():
    page = entities(["B-PER", "I-PER", "O", "O"], ["B-PER", "O", "O", "B-LOC"])
    assert Reader(page).text.endswith(
        "Lee saw [LOC wrong] Rome missed: Ann Lee (PER) wrong: Ann (PER), Rome (LOC)"
    )
    assert 'class="both"' not in page.partition("<article")[2]
    # PER is there with other borders; LOC was found where nothing is.
    assert tables_of(page)[-3:] == [
        ["LOC", "0", "0", "0", "0"],
        ["PER", "0", "0", "0", "1"],
        ["no entity", "1", "0", "0", "0"],
    ]


def spans_of(clusters):
    """Clusters of a line as the task has them."""
    return [[tuple(span) for span in spans] for spans in clusters]


def coreference(clusters, predicted, by="model"):
    line = {"name": "d", "part": 0, "words": ["Ann", "saw", "Bob", ".", "She", "met", "him", "."]}
    line |= {"sentence_starts": [0, 4], "speakers": [""] * 8, "clusters": clusters}
    outcome = made_up_outcome([line], [spans_of(clusters)], [predicted], by=by)
    return page_of(Coreference(), "t", outcome, {"average_f1": 1.0})


def test_the_text_of_a_document_is_there_without_a_click_and_its_clusters_have_numbers():
    clusters = [[[0, 0], [4, 4]], [[2, 2], [6, 6]]]
    shown = Reader(coreference(clusters, [[(2, 2), (4, 4)], [(0, 0), (6, 6)]])).text
    assert "gold [1\u2260] Ann saw [2\u2260] Bob . [1] She met [2] him ." in shown
    assert "model [2\u2260] Ann saw [1\u2260] Bob . [1] She met [2] him ." in shown
    shown = Reader(coreference(clusters, spans_of(clusters), "baseline")).text
    assert "baseline [1] Ann" in shown


@pytest.mark.parametrize(
    ("clusters", "predicted", "kinds"),
    [
        ([[[0, 0]]], [], "errors missed"),
        ([], [[(0, 0)]], "errors wrong"),
        ([[[0, 0], [4, 4]], [[2, 2]]], [[(0, 0), (4, 4)], [(6, 6)]], "errors missed wrong"),
        ([[[0, 0], [4, 4]], [[2, 2]]], [[(0, 0), (4, 4)], [(2, 2)]], "right"),
    ],
)
def test_a_document_with_a_wrong_singleton_is_not_all_right(clusters, predicted, kinds):
    assert f'data-kinds="{kinds}"' in coreference(clusters, predicted)


def test_links_are_counted_by_what_is_linked():
    """By hand: of Ann ← She and Bob ← him the first is found, and Ann ← Bob is wrong."""
    clusters, predicted = [[[0, 0], [4, 4]], [[2, 2], [6, 6]]], [[(0, 0), (2, 2), (4, 4)]]
    rows = tables_of(coreference(clusters, predicted))
    assert rows[0] == ["", "precision", "recall", "F1"]
    assert [row[0] for row in rows[1:7]] == [
        *("Identification of Mentions", "MUC", "B-cubed", "CEAF-m", "CEAF-e"),
        "average (MUC, B\u00b3, CEAF-e)",
    ]
    assert rows[-3:] == [
        ["of pronouns", "0.00", "50.00", "0.00", "2"],
        ["of others", "0.00", "0.00", "0.00", "0"],
        ["all links", "0.00", "50.00", "0.00", "2"],
    ]


def test_each_gold_cluster_lends_its_number_once():
    gold = [[(n, n) for n in range(5)], [(8, 8), (9, 9)]]
    parted = [[(0, 0), (1, 1)], [(2, 2), (3, 3), (4, 4)], [(6, 6), (7, 7)], [(8, 8), (0, 9)]]
    assert cluster_numbers(gold, parted) == [2, 0, 3, 1]
    assert cluster_numbers(gold, gold) == [0, 1]
    assert cluster_numbers([], gold) == [0, 1] and cluster_numbers(gold, []) == []


def test_questions_with_the_same_first_word_have_one_row_whatever_follows_it():
    questions = ["Who sat?", "Who?", "who's there", "\u00bfQui\u00e9n?", "?"]
    items = [{"id": text, "question": text, "gold_texts": ["Ann"]} for text in questions]
    items = [{**item, "gold_spans": [[0, 3]], "is_impossible": False} for item in items]
    texts = ["Ann", "Bob", "Bob", "Ann", "Bob"]
    outcome = made_up_outcome(items, items, texts, [], "model", contexts=["Ann sat."])
    table = QuestionAnswering().tables(outcome)[0]
    assert [row[0::3] for row in table.rows] == [
        ("who \u2026", "3"),
        ("qui\u00e9n \u2026", "1"),
        (" \u2026", "1"),
    ]
    assert [row[1] for row in table.rows] == ["33.33", "100.00", "0.00"]


@pytest.mark.parametrize("by", ["model", "baseline"])
def test_a_baseline_s_answers_are_called_the_baseline_s(by):
    item = {"id": "q1", "question": "Who ?", "context_index": 0, "gold_spans": [[0, 7]]}
    item |= {"gold_texts": ["Ann Lee"], "is_impossible": False}
    answered = [AnsweredQuestion("q1", (Candidate("Lee", 4, 7, 1.0, 0.5),), 0.0)]
    outcome = made_up_outcome([item], [item], ["Lee"], answered, by, contexts=["Ann Lee sat."])
    page = page_of(QuestionAnswering(), "t", outcome, {"exact_match": 12.5, "f1": 25.0})
    assert "Exact match 12.50, F1 25.00." in page  # as they are printed
    certain = " (probability 50%)" if by == "model" else ""
    assert Reader(page).text == (
        f"question 1 of 1 (id q1) \u2717 Who ? right in part, F1 67. Gold: Ann Lee; {by}: "
        f"Lee{certain} passage [gold] Ann [{by}] Lee sat."
    )
    line = {"line": 7, "text": "Fine.", "label": "good"}
    rows = [np.array([0.95])]
    options = {"is_regression": False, "labels": ["good", "bad"]}
    outcome = made_up_outcome([line], ["good"], ["bad"], rows, by, **options)
    text = page_of(TextClassification(), "t", outcome, {"accuracy": 0.0})
    certain = "probability" if by == "model" else "share of its class"
    assert Reader(text).text == (
        f"text 1 of 1 (line 7 of the file), {certain} 95% \u2717 [{by}] bad [gold] good Fine."
    )
    assert f"errors with a {certain} over 90%: 1" in text
    if by == "baseline":
        assert "model's" not in page and "model:" not in page + text


HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "</article></body><!--",
    "{{ 7 * 191 }}{% for x in y %}${7*191}#{7*191}",
    "&lt;b&gt;&#60;",
    "javascript:alert(1)",
)


class Tags(html.parser.HTMLParser):
    """The tags of a page with their attributes' names, and its text."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.text = [], ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, sorted(name for name, _ in attributes)))

    def handle_endtag(self, tag):
        self.tags.append(f"/{tag}")

    def handle_comment(self, text):
        self.tags.append(f"comment {text}")

    def handle_data(self, text):
        self.text += text


def pages_of(word):
    """A page of each task, whose every text, label, name and id from outside is a word."""
    scores, end = {"f1": 0.0, "precision": 0.0, "recall": 0.0}, len(word)
    line = {"id": word, "text": f"{word} x {word}", "subject": [0, end]}
    line |= {"object": [end + 3, 2 * end + 3], "subject_type": word, "object_type": word}
    options = {"labels": [f"other {word}", word], "layout": "tacred"}
    outcome = made_up_outcome([line], [word], [f"other {word}"], [np.array([0.5])], **options)
    yield page_of(RelationExtraction(), word, outcome, scores)
    labels = [f"B-{word}"]
    sentence = {"id": word, "text": word, "words": [[0, end]], "labels": labels}
    yield page_of(
        NamedEntities(), word, made_up_outcome([sentence], [labels], [[f"B-{word}x"]]), scores
    )
    line = {"name": word, "part": 0, "words": [word] * 4, "sentence_starts": [0, 2]}
    line |= {"speakers": [word] * 4, "clusters": [[[0, 0], [2, 2]]]}
    outcome = made_up_outcome([line], [spans_of(line["clusters"])], [[[(1, 1), (2, 2)]]])
    yield page_of(Coreference(), word, outcome, {"average_f1": 1.0})
    item = {"id": word, "question": word, "context_index": 0, "gold_spans": [[0, end]]}
    item |= {"gold_texts": [word], "is_impossible": False}
    answered = [AnsweredQuestion(word, (Candidate(word, 0, end, 1.0, 0.5),), 0.0)]
    outcome = made_up_outcome([item], [item], [word], answered, contexts=[word])
    yield page_of(QuestionAnswering(), word, outcome, {"exact_match": 0.0, "f1": 0.0})
    example = {"line": 7, "text": word, "text_pair": word, "label": word}
    rows = [np.array([0.95])]
    options = {"labels": [word, f"{word}x"], "is_regression": False}
    outcome = made_up_outcome([example], [word], [f"{word}x"], rows, **options)
    yield page_of(TextClassification(), word, outcome, {"accuracy": 0.0})


@pytest.mark.parametrize("word", HOSTILE)
def test_what_comes_from_data_is_text_in_every_page(word):
    """The tags and attributes are those of a page of harmless words, and the words stand there."""
    for page, harmless in zip(pages_of(word), pages_of("word"), strict=True):
        found, expected = Tags(page), Tags(harmless)
        assert found.tags == expected.tags
        assert found.text.count(word) >= 3 and "1337" not in page


def test_relations_say_what_is_right_and_entities_which_they_are():
    line = {"id": "e3", "text": "Ann saw Rome", "subject": [0, 3], "object": [8, 12]}
    line |= {"subject_type": "PER", "object_type": ""}
    scores = {"f1": 0.0, "precision": 0.0, "recall": 0.0}
    options = {"labels": ["none", "born", "lives"], "layout": "tacred"}
    pages = [
        page_of(
            RelationExtraction(),
            "t",
            made_up_outcome([line], ["lives"], [found], [np.array([0.5])], **options),
            scores,
        )
        for found in ("lives", "born")
    ]
    text = "[PER subject] Ann saw [object] Rome"
    assert [Reader(page).text for page in pages] == [
        f"example 1 of 1 (id e3), probability 50% \u2713 lives {text}",
        f"example 1 of 1 (id e3), probability 50% \u2717 [model] born [gold] lives {text}",
    ]
    assert "gold lives, predicted born: 1" in pages[1]


class Directions(html.parser.HTMLParser):
    """Texts of a page that stand outside of elements with a direction, and those inside of some."""

    def __init__(self, page):
        super().__init__()
        self.outside, self.inside, self.languages = "", "", set()
        self._open = []
        self.feed(re.search("<article.*</article>", page, re.DOTALL)[0])

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag != "br":
            self._open.append(attributes.get("dir") == "auto")
        if "lang" in attributes:
            self.languages.add(attributes["lang"])

    def handle_endtag(self, tag):
        self._open.pop()

    def handle_data(self, text):
        if any(self._open):
            self.inside += text
        else:
            self.outside += text


def arabic_pages():
    """A page of each task whose record is in Arabic."""
    words = ["علي", "في", "بغداد"]
    text = " ".join(words)
    places = [[0, 3], [4, 6], [7, 12]]
    sentence = {"id": "s", "text": text, "words": places, "labels": ["B-PER", "O", "B-LOC"]}
    found = ["O", "O", "B-LOC"]
    scores = {"f1": 50.0, "precision": 50.0, "recall": 50.0}
    outcome = made_up_outcome([sentence], [sentence["labels"]], [found], language="ar")
    yield page_of(NamedEntities(), "t", outcome, scores)
    question = {
        "id": "1",
        "question": "أين علي؟",
        "context_index": 0,
        "gold_texts": ["بغداد"],
        "gold_spans": [[7, 12]],
        "is_impossible": False,
    }
    answered = AnsweredQuestion("1", (Candidate("علي", 0, 3, 1.0, 1.0),), 0.0)
    outcome = made_up_outcome(
        [question], [question], ["علي"], [answered], contexts=[text], language="ar"
    )
    yield page_of(QuestionAnswering(), "t", outcome, {"exact_match": 0.0, "f1": 0.0})
    line = {"name": "d", "part": 0, "words": words, "sentence_starts": [0], "speakers": [""] * 3}
    line["clusters"] = [[[0, 0], [2, 2]]]
    outcome = made_up_outcome([line], [spans_of(line["clusters"])], [[]], language="ar")
    yield page_of(Coreference(), "t", outcome, {"average_f1": 1.0})
    line = {"id": "e", "text": text, "subject": [0, 3], "object": [7, 12]}
    line |= {"subject_type": "PER", "object_type": ""}
    options = {"labels": ["none", "lives"], "layout": "tacred", "language": "ar"}
    outcome = made_up_outcome([line], ["lives"], ["none"], [np.array([0.5])], **options)
    yield page_of(RelationExtraction(), "t", outcome, scores)
    example = {"line": 1, "text": text, "label": "good"}
    options = {"labels": ["good", "bad"], "is_regression": False, "language": "ar"}
    outcome = made_up_outcome([example], ["good"], ["bad"], [np.array([0.9])], **options)
    yield page_of(TextClassification(), "t", outcome, {"accuracy": 0.0})


def test_texts_of_records_are_shown_in_their_direction_and_language():
    arabic = re.compile("[\u0600-\u06ff]+")
    for page in arabic_pages():
        shown = Directions(page)
        assert arabic.search(shown.inside)
        assert not arabic.search(shown.outside), shown.outside
        assert shown.languages == {"ar"}
