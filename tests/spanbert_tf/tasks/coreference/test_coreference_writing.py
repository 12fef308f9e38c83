"""Predicted clusters as text, and clusters without a model, by hand."""

import json

import pytest
from made_up_outcomes import made_up_outcome, page_of

from spanbert_tf.tasks.coreference.conll import read_conll
from spanbert_tf.tasks.coreference.files import as_conll, as_json, as_resolved, as_text
from spanbert_tf.tasks.coreference.metrics import link_equal_strings, read_clusters
from spanbert_tf.tasks.coreference.report import links
from spanbert_tf.tasks.coreference.task import Coreference

SENTENCES = (
    "Alice and her dog met Bob .",
    "She likes him , and his cat likes her .",
    "\u00a0 They left",
)
WORDS = [word for sentence in SENTENCES for word in sentence.split(" ")]
# Alice and her dog: 0-3, Alice: 0, her: 2, her dog: 2-3, Bob: 5, She: 7, him: 9, his: 12, her: 15.
CLUSTERS = [[(0, 0), (2, 2), (7, 7), (15, 15)], [(0, 3), (18, 18)], [(5, 5), (9, 9), (12, 12)]]
LINE = {
    "name": "nw/x",
    "part": 3,
    "words": WORDS,
    "sentence_starts": [0, 7, 17],
    "speakers": ["A B"] * 7 + [""] * (len(WORDS) - 7),
    "clusters": [[[0, 0], [7, 7]], [[5, 5], [18, 18]]],
}


def test_text_has_nested_mentions_in_brackets():
    assert as_text(LINE, CLUSTERS) == (
        "# nw/x, part 3\n"
        "[[Alice]₁ and [her]₁ dog]₂ met [Bob]₃ .\n"
        "[She]₁ likes [him]₃ , and [his]₃ cat likes [her]₁ .\n"
        "\u00a0 [They]₂ left\n\n"
    )
    twelve = [[(number, number)] for number in range(12)]
    assert "[,]₁₁ [and]₁₂" in as_text(LINE, twelve)


def test_pronouns_are_resolved_and_possessive_ones_get_an_s():
    # `They` is all of `Alice and her dog`, in which `her` stands as in the text.
    assert as_resolved(LINE, CLUSTERS).split("\n")[1:4] == [
        "Alice and Alice's dog met Bob .",
        "Alice likes Bob , and Bob's cat likes Alice .",
        "\u00a0 Alice and her dog left",
    ]
    # A pronoun inside of what it would be replaced by stays, as does a cluster of pronouns.
    assert as_resolved(LINE, [[(0, 3), (2, 2)], [(7, 7), (15, 15)]]) == as_text(LINE, [])


def test_conll_is_read_again_as_it_was_written(tmp_path):
    path = tmp_path / "predictions.conll"
    path.write_text(as_conll(LINE, CLUSTERS))
    (found,) = read_clusters(str(path))
    assert (found.name, found.clusters) == ("(nw/x); part 003", CLUSTERS)
    rows = path.read_text().split("\n")
    assert rows[1].split("\t")[:4] == ["nw/x", "3", "0", "Alice"]
    assert all(len(row.split()) == 12 for row in rows[1:-3] if row)
    assert rows.count("") == 4  # between sentences, at the end of the last one and of the file


@pytest.mark.parametrize(("name", "read"), [("my doc", "my doc"), ("", "x"), ("#1", "#1")])
@pytest.mark.parametrize("speaker", ["A B", "A\tB", "A \n B"])
def test_predictions_are_read_again_whatever_names_hold(name, read, speaker, tmp_path):
    speakers = [speaker] * 7 + ["", "\t"] * 6 + [""] * (len(WORDS) - 19)
    text = as_conll({**LINE, "name": name, "speakers": speakers}, CLUSTERS)
    (document,) = read_conll("x", text)
    assert (document.name, document.part) == (read, 3)
    assert document.words == ["_" if word == "\u00a0" else word for word in WORDS]
    assert document.speakers == ["A_B"] * 7 + [""] * (len(WORDS) - 7)
    assert (document.sentence_starts, document.clusters) == (LINE["sentence_starts"], CLUSTERS)
    assert all(len(row.split()) == 12 for row in text.split("\n")[1:-3] if row)
    (tmp_path / "response").write_text(text)
    (found,) = read_clusters(str(tmp_path / "response"))
    assert (found.name, found.clusters) == (f"({name}); part 003", CLUSTERS)


def test_json_lines_have_sentences_and_both_clusters():
    found = json.loads(as_json(LINE, CLUSTERS))
    assert found["doc_key"] == "nw/x_3"
    assert [len(sentence) for sentence in found["sentences"]] == [7, 10, 3]
    assert found["clusters"] == LINE["clusters"]
    assert found["predicted_clusters"] == [[list(span) for span in spans] for spans in CLUSTERS]


def test_links_that_others_do_not_have():
    gold = [[(0, 0), (2, 2), (7, 7)], [(5, 5), (9, 9)]]
    predicted = [[(0, 0), (7, 7), (9, 9)]]
    assert links(gold, predicted) == [((0, 0), (2, 2)), ((2, 2), (7, 7)), ((5, 5), (9, 9))]
    assert links(predicted, gold) == [((7, 7), (9, 9))]


def test_page_escapes_what_it_shows():
    line = {**LINE, "words": ["<b>&"] * len(WORDS), "name": "a<script>"}
    gold = [[tuple(span) for span in spans] for spans in LINE["clusters"]]
    outcome = made_up_outcome([line], [gold], [CLUSTERS])
    page = page_of(Coreference(), "t<i>", outcome, {"average_f1": 12.345, "muc_recall": 1.0})
    assert "<b>" not in page and "a<script>" not in page and "t<i>" not in page
    assert ("&lt;b&gt;&amp;" in page and "average 12.35" in page) or "average 12.34" in page
    records = page.partition("<article")[2]
    assert records.count('<span class="mark') == 2 * 2 + sum(map(len, CLUSTERS))


def test_page_shows_a_document_without_clusters_last_and_not_as_an_error():
    lines = [{**LINE, "name": "none", "clusters": []}, {**LINE, "name": "some"}]
    gold = [[], [[tuple(span) for span in spans] for spans in LINE["clusters"]]]
    outcome = made_up_outcome(lines, gold, [[], CLUSTERS])
    page = page_of(Coreference(), "t", outcome, {"average_f1": 1.0})
    last = page.split("<article")[-1]
    assert "none, part 3" in last and "no clusters" in last and "average F1" not in last
    outcome = made_up_outcome(lines[:1], gold[:1], [CLUSTERS])
    found = page_of(Coreference(), "t", outcome, {"average_f1": 1.0})
    assert "average F1 0.00" in found


def test_equal_strings_are_linked():
    sentences = (
        "Ann Lee saw the dog .",
        "Today Ann Lee fed The dog .",
        "she left .",
        "She saw Ann",
    )
    words = " ".join(sentences).split()
    starts = [0, 6, 13, 16]
    line = {**LINE, "words": words, "sentence_starts": starts, "speakers": [""] * len(words)}
    # `Today` is capitalised at the beginning of a sentence alone.
    found = [[(0, 1), (7, 8)], [(3, 4), (10, 11)], [(13, 13), (16, 16)]]
    assert link_equal_strings([line]) == [found]
