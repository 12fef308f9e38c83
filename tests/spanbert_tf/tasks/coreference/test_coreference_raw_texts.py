"""What the resolver of raw texts hands the model."""

import bisect
import re
import types

import made_up_documents
import pytest
import tensorflow as tf
from task_tests import SEQUENCE_LENGTH, SPECIAL

from spanbert_tf.data.manifest import NO_SPEAKER, SPECIAL_SPEAKER
from spanbert_tf.errors import BadInputError
from spanbert_tf.models import SpanBertCoreferenceResolverPreprocessor, SpanBertTokenizer
from spanbert_tf.tasks.coreference import graph
from spanbert_tf.tasks.coreference.graph import NO_CLUSTER, LinkedSpans
from spanbert_tf.tasks.coreference.task import Coreference
from spanbert_tf.text.sentences import find_sentence_starts

TWO_LINES = "Ann has the cat .\nShe likes the cat ."


class NoModel(types.SimpleNamespace):
    def __call__(self, x, training):
        return {}


@pytest.fixture
def seen():
    """Speakers of the documents that the model was given."""
    return []


@pytest.fixture
def resolve(monkeypatch, seen):
    """All that lies before and behind the model, which is left out."""
    vocabulary = SPECIAL + made_up_documents.VOCABULARY
    tokenizer = SpanBertTokenizer(vocabulary, lowercase=True)
    preprocessor = SpanBertCoreferenceResolverPreprocessor(tokenizer, SEQUENCE_LENGTH)

    def note(model, features, outputs):
        tf.py_function(lambda ids: seen.extend(ids.numpy().tolist()), [features["speaker_ids"]], [])
        first = tf.zeros_like(features["speaker_ids"][:, :1])
        return LinkedSpans(first, first, tf.fill(tf.shape(first), NO_CLUSTER))

    monkeypatch.setattr(graph, "link_spans", note)
    backbone = types.SimpleNamespace(max_sequence_length=SEQUENCE_LENGTH)
    return Coreference().predictor(NoModel(preprocessor=preprocessor, backbone=backbone))


def test_speakers_of_lines_reach_the_model_in_both_spellings(resolve, seen):
    text, all_speakers = TWO_LINES, (["Bob", "Ann"], "Bob\nAnn")
    all_speakers += (["Ann", "Ann"], None)
    found = resolve([{"text": text, "speakers": speakers} for speakers in all_speakers])
    assert found == [{"text": text, "clusters": [], "strings": []}] * 4
    listed, in_lines, of_one, none = ([ids[1:6], ids[6:11]] for ids in seen)
    bob, ann = listed[0][0], listed[1][0]
    assert listed == in_lines == [[bob] * 5, [ann] * 5]
    assert of_one == [[ann] * 5] * 2 and none == [[NO_SPEAKER] * 5] * 2
    assert len({bob, ann, NO_SPEAKER, SPECIAL_SPEAKER}) == 4


def test_sentences_of_raw_texts_are_those_of_records(resolve, monkeypatch):
    """In texts that exports split otherwise; a half of a surrogate pair becomes a mark."""
    texts = ["J. Bob saw 5. cats.) Ann J. 5.\nÉva sat. Ann", "Ann has the\ud800 Cat.\n\nShe", ""]
    seen = []

    def note(model, features, outputs):
        names = ("sentence_indices", "begins_word")
        tf.py_function(
            lambda *columns: seen.extend(zip(*(column.numpy() for column in columns), strict=True)),
            [features[name] for name in names],
            [],
        )
        first = tf.zeros_like(features["speaker_ids"][:, :1])
        return LinkedSpans(first, first, tf.fill(tf.shape(first), NO_CLUSTER))

    monkeypatch.setattr(graph, "link_spans", note)
    resolve([{"text": text} for text in texts])
    found = [sentences[begins == 1].tolist() for sentences, begins in seen]
    expected = []
    for text in texts:
        text = text.replace("\ud800", "?")
        starts = find_sentence_starts(text, "en")
        words = [match.start() for match in re.finditer(r"\w+|[^\w\s]", text)]
        expected.append([bisect.bisect_right(starts, word) - 1 for word in words])
    assert [numbered(sentences) for sentences in found] == [numbered(row) for row in expected]


def numbered(values):
    """The values by which of them they are; empty lines have no number."""
    return [sorted(set(values)).index(value) for value in values]


def test_strings_are_slices_of_the_text(resolve, monkeypatch):
    """Each word a cluster of its own; the tokenizer lowers case and strips accents."""
    words = ["A\u0308nn", "H\u00c1S", "the", "C\u00e2t", "\U0001f408", ".", "\u0160he"]
    text = "\u00a0 " + "  ".join(words)

    def each_word(model, features, outputs):
        numbers = tf.range(len(words))[tf.newaxis]
        return LinkedSpans(numbers, numbers, numbers)

    monkeypatch.setattr(graph, "link_spans", each_word)
    (found,) = resolve([{"text": text}])
    assert found["strings"] == [[word] for word in words]
    assert [[text[a:b] for a, b in spans] for spans in found["clusters"]] == found["strings"]


def test_keys_of_documents_come_back_with_their_texts(resolve):
    texts = {"one": "Ann .", "two": "Ann has the cat .", "three": "Ann has ."}
    found = resolve([{"doc_key": key, "text": text} for key, text in texts.items()])
    assert {document["doc_key"]: document["text"] for document in found} == texts


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(
    "text",
    [
        "\n \t\n{}\n\u200b\n\n{}\n",  # nothing that is a word in a blank line
        "{}\n\r\n{}\n\n",
        "{}\n{}\n",
    ],
)
@pytest.mark.parametrize("in_lines", [False, True])
def test_names_of_blank_lines_move_no_other_name(text, in_lines, resolve, seen):
    text = text.format(*TWO_LINES.split("\n"))
    lines = text.removesuffix("\n").split("\n")
    of_lines = {"Ann has the cat .": "Bob", "She likes the cat .": "Ann"}
    for_all = [of_lines.get(line, "Zoe") for line in lines]
    with_words = ["Bob", "Ann"]
    every = [for_all, with_words]
    if in_lines:
        every = ["\n".join(names) + "\n" for names in every]
    found = [{"text": text, "speakers": names} for names in every]
    resolve([*found, {"text": TWO_LINES, "speakers": with_words}])
    assert len(seen) == 3 and seen[0] == seen[1] == seen[2]


@pytest.mark.parametrize(
    ("text", "speakers", "numbers"),
    [
        (TWO_LINES, ["Ann"], "1 speakers for 2 lines"),
        (TWO_LINES, "Ann\nBob\nZoe", "3 speakers for 2 lines"),
        (f"\n\n{TWO_LINES}", ["Ann", "Bob", "Zoe"], "3 speakers for 2 lines"),
        ("", ["Ann", "Bob"], "2 speakers for 0 lines"),
    ],
)
def test_speakers_that_are_no_line_s_are_refused(resolve, text, speakers, numbers):
    fine = {"text": TWO_LINES, "speakers": ["Ann", "Bob"]}
    with pytest.raises(BadInputError, match=f"^input 2: has {numbers} with words"):
        resolve([fine, {"text": text, "speakers": speakers}])
