"""Answers as notebooks show them: the text, whole and escaped, with what was found in it."""

import copy
import html.parser
import json
import pickle

import hypothesis
import pytest
from hypothesis import strategies as st
from tiny_models import ALL_INPUTS, tiny_model

from spanbert_tf.presets.writing import write_preset
from spanbert_tf.tasks.coreference.report import marked_clusters
from spanbert_tf.tasks.prediction import Predictor

NASTY = "<b>ann</b> & \u05d0\u05d1\u05d2 <script>bob has the cat .</script> \U0001f989 "
INPUTS = {
    "question_answering": {"question": "who ?", "context": NASTY},
    "named_entities": {"text": NASTY},
    "relation_extraction": {"text": NASTY, "subject": [3, 6], "object": [13, 16]},
    "fill_mask": {"text": "<b>[MASK] \u05d0 & [MASK] \U0001f989"},  # all of it is read
}


class Shown(html.parser.HTMLParser):
    """The texts of paragraphs, the marked parts with their notes, and the names beside bars."""

    def __init__(self, page):
        super().__init__()
        self.texts, self.marks, self.rows, self.tags = [], [], [], []
        self.open = []
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        if tag == "p":
            assert dict(attributes)["dir"] == "auto"
            self.texts.append("")
        if tag == "mark":
            self.marks.append(["", dict(attributes).get("data-note")])
        self.open.append((tag, self.marks[-1] if tag == "mark" else None))

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        tags = [tag for tag, _ in self.open]
        if "p" in tags:
            self.texts[-1] += data
        if "td" in tags and data.strip():
            self.rows.append(data)
        for _, mark in self.open:
            if mark:
                mark[0] += data


@pytest.fixture(scope="module")
def predictor_of(tmp_path_factory):
    def make(name):
        model = tiny_model(name)
        model.is_head_trained = True
        directory = str(tmp_path_factory.mktemp(name) / "preset")
        write_preset(model, directory)
        return Predictor(directory)

    return make


@pytest.mark.parametrize("name", sorted(INPUTS))
def test_the_text_is_shown_whole_with_what_was_found(name, predictor_of):
    predict = predictor_of(name)
    item = INPUTS[name]
    answer = predict(item)
    shown = Shown(answer._repr_html_())
    assert not {"script", "b"} & set(shown.tags)
    text = item.get("context", item.get("text"))
    if name == "fill_mask":
        for fillings in answer:
            text = text.replace("[MASK]", fillings[0]["token_str"], 1)
        assert [mark for mark, _ in shown.marks] == [one[0]["token_str"] for one in answer]
        assert shown.rows[::2] == [
            f"{number} {one['token_str']}"
            for number, fillings in enumerate(answer, start=1)
            for one in fillings
        ]
    assert shown.texts == [text]
    if name == "named_entities":
        assert answer
        assert shown.marks == [[one["word"], one["entity_group"]] for one in answer]
    if name == "question_answering":
        assert shown.marks == [[answer["answer"], None]]
        assert shown.rows == [answer["answer"], f" {answer['score']:.4f}"]
    if name == "relation_extraction":
        assert shown.marks == [["ann", "subject"], ["\u05d0\u05d1\u05d2", "object"]]
        assert shown.rows[0] == answer["label"]
    several = predict([item, item])
    assert Shown(several._repr_html_()).texts == [text, text]


def test_answers_are_plain_lists_and_dicts_for_all_else(predictor_of):
    predict = predictor_of("text_classification")
    for answer in (predict("ann"), predict("ann", top_k=2), predict(["ann", "bob"])):
        assert Shown(answer._repr_html_()).rows
        plain = json.loads(json.dumps(answer))
        assert answer == plain and repr(answer) == repr(plain)
        for same in (copy.deepcopy(answer), pickle.loads(pickle.dumps(answer))):
            assert same == answer and type(same) in (list, dict)


def test_of_many_answers_the_first_are_shown(predictor_of):
    many = predictor_of("text_classification")(["ann"] * 23)
    shown = Shown(many._repr_html_())
    assert len(many) == 23
    assert (shown.texts, len(shown.rows)) == (["… 3 more"], 2 * 20)  # of two classes each


def test_what_has_no_view_is_shown_as_text(predictor_of):
    answer = predictor_of("text_embedding")(ALL_INPUTS["text_embedding"])
    assert answer._repr_html_() is None


@st.composite
def nested_clusters(draw):
    """A text, and mentions that do not cross, in clusters."""
    text = draw(st.text(st.sampled_from("ab <>&\u05d0\n"), min_size=1, max_size=30))
    spans = []
    for _ in range(draw(st.integers(0, 6))):
        start = draw(st.integers(0, len(text) - 1))
        span = [start, draw(st.integers(start + 1, len(text)))]
        if not any(a < span[0] < b < span[1] or span[0] < a < span[1] < b for a, b in spans):
            spans.append(span)
    numbers = [draw(st.integers(0, 2)) for _ in spans]
    return text, [
        [span for span, number in zip(spans, numbers, strict=True) if number == cluster]
        for cluster in range(3)
    ]


@hypothesis.given(nested_clusters())
def test_each_mention_is_marked_with_the_number_of_its_cluster(case):
    text, clusters = case
    shown = Shown(f'<p dir="auto">{marked_clusters(text, clusters)}</p>')
    assert shown.texts == [text]
    expected = [
        [text[start:end], str(number)]
        for number, spans in enumerate(clusters, start=1)
        for start, end in spans
    ]
    assert sorted(shown.marks) == sorted(expected)


def test_of_mentions_that_cross_the_second_ends_with_the_first():
    shown = Shown(f'<p dir="auto">{marked_clusters("abcdef", [[[0, 4]], [[2, 6]]])}</p>')
    assert shown.texts == ["abcdef"]
    assert shown.marks == [["abcd", "1"], ["cd", "2"]]
