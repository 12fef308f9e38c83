"""Long texts are read in windows, and clusters that share a mention are joined."""

import itertools
import random
import types

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st
from tiny_models import LENGTH, tiny_model

from benchmarks.coreference_windows import SIZES, keep
from spanbert_tf.data.documents import TextReader
from spanbert_tf.tasks.coreference import graph
from spanbert_tf.tasks.coreference.files import read_documents
from spanbert_tf.tasks.coreference.graph import NO_CLUSTER, LinkedSpans
from spanbert_tf.tasks.coreference.task import Coreference
from spanbert_tf.tasks.coreference.windows import cut_text, join_windows, window_bounds
from spanbert_tf.text.vocabulary import load_vocabulary

SIZE = 4  # segments of a window in these tests


@hypothesis.given(st.integers(1, 200), st.integers(2, 40))
def test_windows_hold_all_segments_and_neighbours_share_some(num_segments, size):
    bounds = window_bounds(num_segments, size)
    assert bounds[0][0] == 0 and bounds[-1][1] == num_segments
    assert all(first < end <= first + size for first, end in bounds)
    for (_, end), (first, _) in itertools.pairwise(bounds):
        assert end - first == max(size // 4, 1)
    assert (len(bounds) == 1) == (num_segments <= size)


@st.composite
def windows_of_clusters(draw):
    """For each window, its first character, and distinct spans with the number of a cluster."""
    span = st.tuples(st.integers(0, 12), st.integers(0, 3)).map(lambda x: (x[0], sum(x) + 1))
    windows = []
    for _ in range(draw(st.integers(1, 4))):
        spans = draw(st.lists(span, unique=True, max_size=12))
        numbers = [draw(st.integers(NO_CLUSTER, 4)) for _ in spans]
        windows.append((draw(st.integers(0, 20)), spans, numbers))
    return windows


def joined(windows):
    found = []
    for _, spans, numbers in windows:
        starts, ends = np.array(spans, "int32").reshape(-1, 2).T
        found.append({"starts": starts, "ends": ends, "clusters": np.array(numbers, "int32")})
    outputs = join_windows([{"first_character": first} for first, _, _ in windows], found)
    return [tuple(column.tolist()) for column in outputs.values()]


def by_links(windows):
    """The components of mentions, which links of neighbours in a cluster connect one by one."""
    group = {}
    links = []
    for first, spans, numbers in windows:
        clusters = {}
        for (start, end), number in zip(spans, numbers, strict=True):
            if number != NO_CLUSTER:
                mention = (first + start, first + end)
                group[mention] = mention
                links.append((clusters.setdefault(number, mention), mention))
    for _ in group:
        for one, other in links:
            group[one] = group[other] = min(group[one], group[other])
    order = sorted(set(group.values()))
    mentions = sorted(group, key=lambda mention: (group[mention], mention))
    return [
        tuple(start for start, _ in mentions),
        tuple(end for _, end in mentions),
        tuple(order.index(group[mention]) for mention in mentions),
    ]


@hypothesis.given(windows_of_clusters(), st.randoms())
def test_clusters_that_share_a_mention_are_joined_in_any_order(windows, chance):
    assert joined(windows) == by_links(windows)
    shuffled = []
    for first, spans, numbers in windows:
        names = chance.sample(range(5), 5)
        pairs = [
            (span, number if number == NO_CLUSTER else names[number])
            for span, number in zip(spans, numbers, strict=True)
        ]
        chance.shuffle(pairs)
        shuffled.append((first, [span for span, _ in pairs], [number for _, number in pairs]))
    chance.shuffle(shuffled)
    assert joined(shuffled) == joined(windows)


class NoModel(types.SimpleNamespace):
    def __call__(self, x, training):
        return {}


@pytest.fixture(scope="module")
def model():
    preprocessor = tiny_model("coreference").preprocessor
    backbone = types.SimpleNamespace(max_sequence_length=LENGTH)
    return NoModel(preprocessor=preprocessor, backbone=backbone)


@pytest.fixture(scope="module")
def description(model):
    return Coreference().describe(model, 1, "sentences")


def features_of(description, item):
    reader = TextReader(list(description.vocabulary), description.text_rules, LENGTH)
    starts = tf.constant([item["sentence_starts"]], tf.int32)
    read = reader(tf.constant([item["text"]]), tf.constant([item["speakers"]]), starts)
    return read, {name: values.numpy()[0] for name, values in read.features.items()}


WORDS = ["ann", "Bob", "the  cat", "unknown", "?", ".", ".\n", "\n\n", ". \n \n", ". ", "\u00e9 "]


@hypothesis.given(st.integers(0, 160), st.integers(0, 2**30), st.booleans())
@hypothesis.settings(max_examples=10)
def test_windows_are_runs_of_the_segments_of_the_text(description, num_words, seed, has_names):
    chance = random.Random(seed)
    text = " ".join(chance.choices(WORDS, k=num_words))
    item = {"text": text}
    if has_names:
        lines = text.removesuffix("\n").split("\n")
        item["speakers"] = [chance.choice(["", "Ann", "Bob"]) for _ in lines]
    item = Coreference().check(description, item)
    windows = cut_text(description, item, SIZE * LENGTH)
    whole, features = features_of(description, item)
    bounds = window_bounds(len(features["token_ids"]), SIZE)
    if len(bounds) == 1:
        assert windows == [item]
        return
    places = whole.piece_starts.flat_values.numpy()
    for (first, end), window in zip(bounds, windows, strict=True):
        read, found = features_of(description, window)
        np.testing.assert_array_equal(found["token_ids"], features["token_ids"][first:end])
        segments = features["segment_indices"]
        inside = (segments >= first) & (segments < end) & (features["sentence_indices"] >= 0)
        for name in ("speaker_ids", "begins_word", "ends_word"):
            np.testing.assert_array_equal(found[name], features[name][inside])
        for name in ("sentence_indices", "word_indices"):
            # Those of the first [CLS] and the last [SEP] depend on what is beside them.
            changes = np.diff(features[name][inside])[1:-1]
            np.testing.assert_array_equal(np.diff(found[name])[1:-1], changes)
        begin = window["first_character"]
        after = begin + len(window["text"])
        assert window["text"] == text[begin:after]
        own = read.piece_starts.flat_values.numpy() + begin
        np.testing.assert_array_equal(own, places[(places >= begin) & (places < after)])


@pytest.fixture
def sizes(monkeypatch):
    """Instead of a model, words that are equal are linked. Returns the segments of each batch."""
    sizes = []

    def link_equal(model, x, outputs):
        tf.py_function(lambda ids: sizes.append(tuple(ids.shape[:2])), [x["token_ids"]], [])
        words = x["word_indices"]
        flat = tf.reshape(x["token_ids"], [tf.shape(words)[0], -1])
        ids = tf.gather(flat, x["piece_positions"], batch_dims=1)
        return LinkedSpans(words, words, tf.where(x["begins_word"] > 0, ids, NO_CLUSTER))

    monkeypatch.setattr(graph, "link_spans", link_equal)
    return sizes


def test_a_text_of_one_window_is_answered_as_the_graph_answers_it(model, description, sizes):
    text = "Ann has the cat. Bob has the cat.\n" * 6
    item = Coreference().check(description, {"text": text})
    features = [tf.constant([item[name]]) for name in ("text", "speakers", "sentence_starts")]
    found = graph.ResolveTexts(model).resolve(*features)
    found = {name: values.numpy()[0] for name, values in found.items()}
    expected = Coreference().answer(description, item, found, 1)
    assert Coreference().predictor(model)([text]) == [expected]
    assert sizes[0] == sizes[1] and any(expected["clusters"])


def test_memory_of_a_long_text_is_that_of_a_window(model, sizes, monkeypatch):
    monkeypatch.setattr(Coreference, "max_window_tokens", SIZE * LENGTH)
    monkeypatch.setattr(Coreference, "max_batch_tokens", SIZE * LENGTH)
    line = "Ann has the cat. Bob has the cat?\n"  # each word is where two windows overlap
    text = line * 40
    long, short = Coreference().predictor(model)([{"text": text, "doc_key": "long"}, line])
    assert len(sizes) > 10
    assert all(documents * segments <= SIZE for documents, segments in sizes)
    assert long["doc_key"] == "long" and long["text"] == text
    words = {strings[0] for strings in short["strings"] if strings}
    assert sorted(strings[0] for strings in long["strings"]) == sorted(words)
    for spans, strings in zip(long["clusters"], long["strings"], strict=True):
        assert len(spans) == text.count(strings[0]) == len(strings)
        assert [text[start:end] for start, end in spans] == strings


def test_a_batch_of_windows_is_bounded_in_scripts_of_a_character_each(model, sizes, monkeypatch):
    monkeypatch.setattr(Coreference, "max_window_tokens", SIZE * LENGTH)
    monkeypatch.setattr(Coreference, "max_batch_tokens", SIZE * LENGTH)
    Coreference().predictor(model)(["\u732b" * 40 + "\u3002\n"] * 8)
    assert all(documents * segments <= SIZE for documents, segments in sizes)


def test_windows_of_gold_documents_link_nothing_wrong_and_lose_little(shared_data):
    path = shared_data / "coref" / "conll2012_style" / "dev.english.v4_gold_conll.gz"
    vocabulary = load_vocabulary(shared_data / "vocab" / "bert-base-cased-vocab.txt")
    documents = read_documents(path)[:8]
    shares = []
    for size in SIZES:
        kept = keep(documents, vocabulary, size)
        for gold, found in zip(kept.gold, kept.found, strict=True):
            for spans in found:
                assert any(set(spans) <= set(others) for others in gold)
        shares.append(kept.share_whole)
    assert shares == sorted(shares) and shares[0] > 0.5
