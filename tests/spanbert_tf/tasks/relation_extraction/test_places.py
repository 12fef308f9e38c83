"""Which places of entities an exported classifier of relations takes."""

import numpy as np
import pytest
import tensorflow as tf

from spanbert_tf.models import (
    SpanBertBackbone,
    SpanBertRelationClassifier,
    SpanBertRelationClassifierPreprocessor,
    SpanBertTokenizer,
)
from spanbert_tf.tasks.relation_extraction.graph import ClassifyRelations
from spanbert_tf.text.vocabulary import make_markers

UNUSED = [f"[unused{number}]" for number in range(1, 9)]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *UNUSED, "ann", "bob", "in"]
TEXT = "ann bob"  # of 7 characters


@pytest.fixture(scope="module")
def model():
    backbone = SpanBertBackbone(len(VOCABULARY), 1, 2, 8, 8, max_sequence_length=16)
    preprocessor = SpanBertRelationClassifierPreprocessor(
        SpanBertTokenizer(VOCABULARY), 16, markers=make_markers(VOCABULARY), entities="text"
    )
    return SpanBertRelationClassifier(backbone, ["none", "sees", "is"], preprocessor)


@pytest.mark.parametrize(
    ("one", "other", "is_good"),
    [
        ([0, 3], [4, 7], True),  # the text's first and last characters
        ([0, 4], [4, 7], True),  # neighbours
        ([0, 1], [1, 2], True),
        ([0, 5], [4, 7], False),  # one character of both
        ([0, 3], [4, 8], False),
        ([-1, 3], [4, 7], False),
        ([3, 3], [4, 7], False),
    ],
)
def test_entities_may_touch_one_another_and_the_ends_of_the_text(one, other, is_good, model):
    export = ClassifyRelations(model, top_k=3)
    texts, types = tf.constant([TEXT] * 2), tf.constant(["", ""])
    places = tf.constant([one, other]), tf.constant([other, one])  # either is the subject
    found = export.classify(texts, *places, types, types)
    if not is_good:
        assert (
            set(found["labels"].numpy().ravel()) == {b""}
            and not found["probabilities"].numpy().any()
        )
        return
    columns = {"text": texts, "subject": places[0], "object": places[1]}
    x = model.preprocessor(columns | dict.fromkeys(("subject_type", "object_type"), types))
    logits = model(x, training=False).numpy()
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    order = (-shares).argsort(axis=1, kind="stable")
    names = np.array(model.labels)[order].tolist()
    assert [[name.decode() for name in row] for row in found["labels"].numpy()] == names
    np.testing.assert_allclose(
        found["probabilities"], np.take_along_axis(shares, order, axis=1), atol=1e-6
    )
