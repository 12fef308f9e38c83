"""The classifier of tokens: labels of words, and what is trained."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from spanbert_tf.models import (
    SpanBertBackbone,
    SpanBertTokenClassifier,
    SpanBertTokenClassifierPreprocessor,
    SpanBertTokenizer,
)

WORDS = ["the", "cat", "##s", "sat", "."]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]


def make_preprocessor(sequence_length):
    return SpanBertTokenClassifierPreprocessor(SpanBertTokenizer(VOCABULARY), sequence_length)


def make_classifier(**options):
    backbone = SpanBertBackbone(len(VOCABULARY), 1, 2, 8, 8, dropout=0.0, max_sequence_length=12)
    return SpanBertTokenClassifier(backbone, ["O", "B-X", "I-X"], **options)


@pytest.mark.parametrize("in_graph", [False, True])
def test_labels_of_words_are_those_of_their_first_pieces(in_graph):
    words = tf.ragged.constant([["the", "cats", "sat."], [], ["cats", "\u200b", "cats"]])
    labels = tf.ragged.constant([[0, 1, 2], [], [1, 0, 2]], dtype=tf.int64)
    pack = make_preprocessor(7)
    dataset = tf.data.Dataset.from_tensors((words, labels)).map(pack)
    x, y = next(iter(dataset)) if in_graph else pack(words, labels)
    pieces = [[VOCABULARY[token] for token in row] for row in x["token_ids"].numpy()]
    none = ["[PAD]"] * 5
    assert pieces == [
        ["[CLS]", "the", "cat", "##s", "sat", ".", "[SEP]"],
        ["[CLS]", "[SEP]", *none],
        ["[CLS]", "cat", "##s", "cat", "##s", "[SEP]", "[PAD]"],
    ]
    assert y.numpy().tolist() == [
        [-1, 0, 1, -1, 2, -1, -1],
        [-1] * 7,
        [-1, 1, -1, 2, -1, -1, -1],
    ]
    _, cut = make_preprocessor(5)(words, labels)
    assert cut.numpy().tolist()[0] == [-1, 0, 1, -1, -1]


def test_texts_are_packed_alone_and_together():
    pack = make_preprocessor(6)
    alone, together = pack("the cats"), pack(["the cats", "the"])
    for name, values in alone.items():
        np.testing.assert_array_equal(values, together[name][0])
    assert alone["padding_mask"].numpy().tolist() == [1, 1, 1, 1, 1, 0]


def test_what_has_no_label_changes_nothing():
    classifier = make_classifier()
    x = make_preprocessor(8)(["the cats sat .", "the cat"])
    y = np.array([[-1, 0, 1, -1, 2, 0, -1, -1], [-1, 2, -1, -1, -1, -1, -1, -1]])
    weights = np.array([1.0, 0.5], "float32")
    logits = classifier(x, training=False).numpy()
    log_shares = logits - np.log(np.exp(logits).sum(-1, keepdims=True))  # [B, S, C]
    total, count, num_right = 0.0, 0.0, 0.0
    for row, weight in enumerate(weights):
        for position, label in enumerate(y[row]):
            if label >= 0:
                total -= weight * log_shares[row, position, label]
                count += 1
                num_right += logits[row, position].argmax() == label
    (sums,) = classifier.objective_sums(x, classifier(x, training=False), y, weights).values()
    assert float(sums.loss) == pytest.approx(total, rel=1e-5)
    assert float(sums.num_targets) == count == 5
    assert float(sums.num_correct) == num_right
    loss = classifier.compute_loss(x, y, logits, weights)
    assert float(loss) == pytest.approx(total / count, rel=1e-5)


def test_other_labels_are_a_new_classifier(tmp_path):
    tokenizer = SpanBertTokenizer(VOCABULARY)
    classifier = make_classifier(preprocessor=SpanBertTokenClassifierPreprocessor(tokenizer, 12))
    classifier.is_head_trained = True
    classifier.save_to_preset(str(tmp_path / "preset"))
    labels = ["O", "B-Y", "I-Y", "B-Z", "I-Z"]
    same, other = (
        SpanBertTokenClassifier.from_preset(str(tmp_path / "preset"), **options)
        for options in ({}, {"labels": labels})
    )
    assert same.labels == classifier.labels and same.is_head_trained
    assert other.labels == labels and not other.is_head_trained
    assert other(other.preprocessor(["the cat"]), training=False).shape == (1, 12, 5)
    for expected, actual in zip(
        classifier.backbone.get_weights(), other.backbone.get_weights(), strict=True
    ):
        np.testing.assert_array_equal(actual, expected)


def test_a_preprocessor_does_not_tell_positions_of_segabert():
    backbone = SpanBertBackbone(9, 1, 2, 8, 8, position_embeddings="segment_aware")
    with pytest.raises(ValueError, match="use preprocessor=None"):
        SpanBertTokenClassifier(backbone, ["O"], make_preprocessor(12))


def test_labels_must_be_different_names():
    for labels in ([], ["O", "O"], "OB", [0, 1]):
        with pytest.raises(ValueError, match="labels must be different names"):
            SpanBertTokenClassifier(None, labels)
    names = np.array(["O", "B-X"])
    assert SpanBertTokenClassifier(SpanBertBackbone(9, 1, 2, 8, 8), names).labels == ["O", "B-X"]


def test_metrics_are_a_list():
    classifier = make_classifier(dropout=0.0)
    classifier.compile(metrics="auto")
    for metrics in ("accuracy", {"output_dense": ["accuracy"]}):
        with pytest.raises(ValueError, match="metrics must be a list"):
            classifier.compile(metrics=metrics)


def test_metrics_count_what_has_a_label():
    """All labels right, and accuracy 1: special tokens and padding have none."""
    classifier = make_classifier(dropout=0.0)
    classifier.compile(metrics=["accuracy"])
    x = make_preprocessor(8)(["the cats sat .", "the cat"])
    best = np.argmax(classifier(x), axis=-1)
    y = np.where(np.array([[0, 1, 1, 0, 1, 1, 0, 0], [0, 1, 1, 0, 0, 0, 0, 0]]) > 0, best, -1)
    found = classifier.evaluate(x, y, return_dict=True, verbose=0)
    assert found["accuracy"] == found["token_classification_accuracy"] == 1.0
    classifier.fit(x, y, verbose=0)
    one_wrong = y.copy()
    one_wrong[1, 1] = (best[1, 1] + 1) % 3
    found = classifier.evaluate(x, one_wrong, return_dict=True, verbose=0)
    assert found["accuracy"] == pytest.approx(found["token_classification_accuracy"])
    assert found["accuracy"] < 1.0


def test_weights_make_losses_larger_or_smaller_as_in_keras():
    """A weight of 0.1 is a tenth of the loss, also of a batch of one; one of 0 is no row."""
    classifier = make_classifier(dropout=0.0)
    classifier.compile(keras.optimizers.SGD(0.0))
    x = make_preprocessor(8)(["the cats sat .", "the cat"])
    y = np.array([[-1, 0, 1, -1, 2, 1, -1, -1], [-1, 2, 0, -1, -1, -1, -1, -1]])
    logits = np.array(classifier(x), "float64")
    shares = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    losses = -np.log(np.take_along_axis(shares, np.maximum(y, 0)[..., None], axis=-1)[..., 0])
    for weights in ([1.0, 1.0], [0.1, 0.1], [0.5, 2.0], [0.0, 0.3]):
        of_targets = np.where(y >= 0, np.array(weights)[:, None], 0.0)
        expected = (losses * of_targets).sum() / np.count_nonzero(of_targets)
        options = {"sample_weight": np.array(weights), "return_dict": True}
        found = classifier.evaluate(x, y, verbose=0, **options)
        assert found["loss"] == pytest.approx(expected, rel=1e-5)
        found = classifier.train_on_batch(x, y, **options)  # whose rate is 0
        assert found["loss"] == pytest.approx(expected, rel=1e-5)


def test_number_of_classes_makes_no_new_head_without_a_word():
    with pytest.raises(ValueError, match="has a class for each of `labels`"):
        SpanBertTokenClassifier.from_preset("preset", num_classes=5)
