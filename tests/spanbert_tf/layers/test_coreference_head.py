"""The head against its definition, one span and one pair at a time."""

import inspect
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from coreference_oracle import Oracle, bucket, loss
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from spanbert_tf.config.coreference import ResolverConfig
from spanbert_tf.layers import AntecedentScorer, CoreferenceHead, MentionScorer
from spanbert_tf.layers.antecedent_scorer import Spans, distance_buckets
from spanbert_tf.layers.coreference_head import select_spans
from spanbert_tf.layers.mention_scorer import NO_SCORE
from spanbert_tf.models.span_bert_coreference_resolver import (
    SpanBertCoreferenceResolver,
    right_antecedents,
)

HIDDEN = 6
OF_POSITIONS = (
    "piece_positions",
    "sentence_indices",
    "begins_word",
    "ends_word",
    "speaker_ids",
    "segment_indices",
)


def make_head(seed=3, scale=8.0, dtype=None, **changes):
    settings = {
        "max_span_width": 4,
        "feature_dim": 3,
        "ffnn_dim": 7,
        "max_antecedents": 5,
        **changes,
    }
    keras.utils.set_random_seed(seed)
    head = CoreferenceHead(HIDDEN, settings=settings, dtype=dtype)
    for weight in head.weights:  # far from the small numbers of new layers, biases not 0
        weight.assign(scale * weight + 0.3 * keras.random.normal(weight.shape, seed=seed))
    return head


def make_document(num_positions, num_segments=1, seed=0):
    """A document whose words have 1 to 3 pieces, in sentences of 1 to 6."""
    source = np.random.default_rng(seed)
    begins = source.random(num_positions) < 0.7
    begins[0] = True
    ends = np.append(begins[1:], True)
    # A sentence ends with a word.
    sentences = np.cumsum(begins & (source.random(num_positions) < 0.25))
    return {
        "states": source.normal(size=[num_positions, HIDDEN]).astype("float32"),
        "piece_positions": np.arange(num_positions),
        "sentence_indices": sentences,
        "begins_word": begins.astype(int),
        "ends_word": ends.astype(int),
        "speaker_ids": source.integers(0, 3, num_positions),
        "segment_indices": np.arange(num_positions) * num_segments // num_positions,
        "genre_id": int(source.integers(0, 7)),
    }


def as_batch(documents):
    """Documents padded to the longest one."""
    width = max(len(document["states"]) for document in documents)

    def padded(name, value=0):
        rows = []
        for document in documents:
            room = [(0, width - len(document[name]))] + [(0, 0)] * (document[name].ndim - 1)
            rows.append(np.pad(document[name], room, constant_values=value))
        return ops.convert_to_tensor(np.stack(rows), "float32" if name == "states" else "int32")

    batch = {name: padded(name, -int(name == "sentence_indices")) for name in OF_POSITIONS}
    batch["states"] = padded("states")
    batch["genre_ids"] = ops.convert_to_tensor([d["genre_id"] for d in documents], "int32")
    return batch


def check_against_oracle(head, documents):
    outputs = {name: values.numpy() for name, values in head(as_batch(documents)).items()}
    oracle = Oracle(head)
    for row, document in enumerate(documents):
        spans, mention_scores, links = oracle(document)
        count = int(outputs["is_span"][row].sum())
        starts, ends = outputs["span_starts"][row, :count], outputs["span_ends"][row, :count]
        assert list(zip(starts.tolist(), ends.tolist(), strict=True)) == spans
        found = outputs["mention_scores"][row, :count]
        np.testing.assert_allclose(found, mention_scores, rtol=1e-4, atol=1e-4)
        for i, expected in enumerate(links):
            scores = outputs["scores"][row, i]
            assert scores[0] == 0
            pairs = zip(outputs["antecedents"][row, i].tolist(), scores[1:], strict=True)
            found = {j: score for j, score in pairs if score > -1e8}
            assert found.keys() == expected.keys()
            for j, score in expected.items():
                assert found[j] == pytest.approx(score, rel=1e-4, abs=1e-3)
    return outputs


@pytest.mark.parametrize("word_boundaries", [False, True])
@pytest.mark.parametrize("depth", [1, 2])
def test_documents_of_one_to_six_segments_are_as_defined(depth, word_boundaries):
    head = make_head(depth=depth, word_boundaries=word_boundaries)
    documents = [make_document(9 * n, n, seed=n) for n in (1, 2, 3, 6)]
    outputs = check_against_oracle(head, documents)
    spans = set(zip(outputs["span_starts"][3], outputs["span_ends"][3], strict=True))
    nested = any(a <= c and d <= b and (a, b) != (c, d) for a, b in spans for c, d in spans)
    assert nested and outputs["is_span"][0].sum() < outputs["is_span"].shape[1]


def test_few_positions_give_few_spans_or_none():
    # One word in [CLS] and [SEP]: one span; nothing in them: none.
    head = make_head()
    outputs = check_against_oracle(head, [make_document(n, seed=n) for n in (2, 3, 5)])
    assert outputs["is_span"].sum(axis=1).tolist() == [0, 1, 2]


def test_fewer_candidates_than_are_wanted_are_masked():
    head = make_head(word_boundaries=True, top_span_ratio=1.0)
    document = make_document(12, seed=4)
    document["begins_word"] = np.array([1] + [0] * 11)  # one candidate, if it is not too long
    document["ends_word"] = np.array([0, 1] + [0] * 10)
    document["sentence_indices"] = np.zeros(12, int)
    outputs = check_against_oracle(head, [document])
    assert outputs["is_span"].tolist() == [[1] + [0] * 11]


def test_longer_documents_go_through_chunks_and_blocks_without_seams():
    # More positions than a chunk of the mention scorer, more spans than one of the antecedents',
    # and more candidates than a block of the selection.
    head = make_head(max_span_width=3, ffnn_dim=4, max_antecedents=3)
    check_against_oracle(head, [make_document(300, 6, seed=7), make_document(260, 2, seed=8)])


@pytest.mark.parametrize("size", [14, 200])  # a chunk of the mention scorer, and several
def test_padding_is_no_span_however_well_it_would_score(size):
    """Positions of padding have the state of position 0, here that of the best span."""
    head = make_head(max_antecedents=3)
    documents = [make_document(size, 2, seed=1), make_document(6, seed=2)]
    oracle, shorter = Oracle(head), documents[1]
    states = np.random.default_rng(5).normal(size=[200, HIDDEN])
    shorter["states"][0] = max(states, key=lambda state: oracle.mention_score(state[None], 0, 0))
    spans = oracle.candidates(shorter)
    best = max(spans, key=lambda span: oracle.mention_score(shorter["states"], *span))
    assert best == (0, 0)
    outputs = check_against_oracle(head, documents)
    assert outputs["is_span"][1].sum() == 2


def sums(outputs, y, sample_weight=None):
    resolver = SpanBertCoreferenceResolver
    fake = types.SimpleNamespace(objective="antecedents")
    fake.target_weights = lambda y, weight: resolver.target_weights(fake, y, weight)
    (part,) = resolver.objective_sums(fake, {}, outputs, y, sample_weight).values()
    return part


def gold_of(clusters_of_documents):
    rows = [
        [(start, end, n) for n, spans in enumerate(clusters, 1) for start, end in spans]
        for clusters in clusters_of_documents
    ]
    width = max(1, *map(len, rows))
    padded = np.array([row + [(-1, -1, 0)] * (width - len(row)) for row in rows], "int32")
    names = ("mention_starts", "mention_ends", "mention_clusters")
    return {name: ops.convert_to_tensor(padded[:, :, n]) for n, name in enumerate(names)}


def test_loss_is_the_sum_over_spans_also_without_gold_clusters():
    head = make_head()
    documents = [make_document(20, 2, seed=n) for n in range(3)]
    outputs = head(as_batch(documents))
    oracle = Oracle(head)
    found = [oracle(document) for document in documents]
    # Clusters of spans that were kept, one of a span that was not, and a document without any.
    clusters = [
        [found[0][0][0:3:2], found[0][0][1:6:4]],
        [[*found[1][0][:4], (0, 19)]],
        [],
    ]
    expected = [loss(spans, links, c) for (spans, _, links), c in zip(found, clusters, strict=True)]
    y = gold_of(clusters)
    part = sums(outputs, y)
    assert float(part.loss) == pytest.approx(sum(expected), rel=1e-4)
    assert float(part.num_targets) == 3
    weighted = sums(outputs, y, ops.convert_to_tensor([1.0, 0.0, 0.5]))
    assert float(weighted.loss) == pytest.approx(expected[0] + expected[2] / 2, rel=1e-4)
    is_right = right_antecedents(outputs, y).numpy()
    assert is_right.any(axis=-1).all()  # some antecedent, or none, is right for each span
    assert not is_right[2, :, 1:].any()


@pytest.mark.parametrize("depth", [1, 2])
def test_gradients_are_finite_and_those_of_the_chunked_way(depth):
    # Training takes no chunks, and drops; without dropout both ways have one gradient.
    head = make_head(depth=depth, dropout=0.0)
    batch = as_batch([make_document(n, 2, seed=n) for n in (3, 14, 24)])
    y = gold_of([[], [], [[(1, 1), (3, 3), (9, 9)]]])
    gradients = []
    for training in (False, True):
        with tf.GradientTape() as tape:
            tape.watch(batch["states"])
            total = sums(head(batch, training=training), y).loss
        gradients.append(tape.gradient(total, [batch["states"], *head.trainable_variables]))
    for first, second in zip(*gradients, strict=True):
        first, second = (tf.convert_to_tensor(values).numpy() for values in (first, second))
        assert np.isfinite(first).all()
        np.testing.assert_allclose(first, second, rtol=1e-3, atol=1e-3)


def spans_of(num_spans, vectors_dim, num_segments=3):
    source = np.random.default_rng(4)
    shape = (2, num_spans)
    return Spans(
        source.normal(size=(*shape, vectors_dim)).astype("float32"),
        source.normal(size=shape).astype("float32"),
        np.arange(num_spans) < [[num_spans], [num_spans - 2]],
        source.integers(0, 2, shape).astype("int32"),
        np.sort(source.integers(0, num_segments, shape)).astype("int32"),
        source.integers(0, 7, 2).astype("int32"),
    )


@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16"])
def test_scores_in_half_precision_are_sums_in_float32(dtype):
    full, half = make_head(scale=3.0), make_head(scale=3.0, dtype=dtype)
    half.set_weights(full.get_weights())
    batch = as_batch([make_document(9, seed=1), make_document(7, seed=2)])
    names = ("states", "sentence_indices", "begins_word", "ends_word")
    arguments = [batch[name] for name in names]
    symbols = [keras.KerasTensor(values.shape, values.dtype.name) for values in arguments]
    assert half.mention_scorer.compute_output_spec(*symbols).dtype == "float32"
    expected, found = (head.mention_scorer(*arguments).numpy() for head in (full, half))
    is_span = expected > NO_SCORE / 2
    assert found.dtype == np.float32 and np.array_equal(found > NO_SCORE / 2, is_span)
    np.testing.assert_allclose(found[is_span], expected[is_span], atol=0.1, rtol=0.02)
    spans = spans_of(6, full.mention_scorer.span_dim)
    by_span = []
    for head in (full, half):
        antecedents, scores = head.antecedent_scorer(spans)
        assert scores.dtype == tf.float32
        order = np.argsort(antecedents, axis=-1)  # all of them: 5 of 6 spans
        by_span.append(np.take_along_axis(scores[:, :, 1:].numpy(), order, axis=-1))
    np.testing.assert_allclose(*by_span, atol=0.2, rtol=0.05)
    assert np.all(np.isfinite(half(batch, training=True)["scores"]))


def test_scorers_are_layers_of_functional_models():
    mentions, scorer = MentionScorer(HIDDEN, 4, 3, 7), AntecedentScorer(5, 3, 4, 2, 3, 7)
    mentions.build(states_shape=(2, 9, HIDDEN), sentence_indices_shape=(2, 9))
    spans = spans_of(6, 5)
    inputs = [keras.Input(values.shape[1:], dtype=values.dtype.name) for values in spans]
    model = keras.Model(inputs, scorer(Spans(*inputs)))
    again = keras.Model.from_config(model.get_config())
    again.set_weights(model.get_weights())
    for found, expected in zip(again(list(spans)), scorer(spans), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_distances_have_the_buckets_of_the_original():
    distances = np.arange(200)
    found = distance_buckets(ops.convert_to_tensor(distances, "int32")).numpy()
    assert found.tolist() == [bucket(distance) for distance in distances]


@settings(max_examples=30)
@given(st.integers(1, 400), st.integers(0, 60), st.integers(0, 10**6))
def test_selection_is_that_of_one_candidate_after_the_other(length, limit, seed):
    source = np.random.default_rng(seed)
    width = 5
    scores = np.round(source.normal(size=[1, length * width]), 1)  # with many ties
    scores[source.random(scores.shape) < 0.2] = -1e9
    chosen = []
    for number in np.argsort(-scores[0], kind="stable"):
        start, end = number // width, number // width + number % width
        crosses = any(
            start < other <= end < other_end or other < start <= other_end < end
            for other, other_end in chosen
        )
        if scores[0, number] > -1e9 and not crosses and len(chosen) < limit:
            chosen.append((start, end))
    found, is_span = select_spans(
        ops.convert_to_tensor(scores, "float32"),
        ops.convert_to_tensor([limit], "int32"),
        max_span_width=width,
        max_spans=60,
        no_score=-1e9,
    )
    found = found.numpy()[is_span.numpy()]
    spans = [(number // width, number // width + number % width) for number in found.tolist()]
    assert spans == sorted(chosen)


def test_the_resolver_has_the_defaults_of_its_configuration():
    parameters = inspect.signature(SpanBertCoreferenceResolver.__init__).parameters
    expected = ResolverConfig().model_dump()
    assert {name: parameters[name].default for name in expected} == expected


def test_a_head_is_made_again_from_its_configuration():
    head = make_head(depth=1, top_span_ratio=0.7)
    again = CoreferenceHead.from_config(head.get_config())
    assert again.settings == head.settings and again.settings.depth == 1
    assert [w.shape for w in again.weights] == [w.shape for w in head.weights]
