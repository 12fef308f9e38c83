"""Words that the data mark: what a model of such records begins with, answers and is scored by."""

import json

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
from spanbert_tf.tasks.lookup import open_records
from spanbert_tf.tasks.named_entities.records import NamedEntitiesConfig
from spanbert_tf.tasks.named_entities.rows import READERS, write_entities
from spanbert_tf.tasks.named_entities.task import NamedEntities, PieceLabels

PIECES = ["ann", "lee", "u", "s", ".", ",", "'", "in", "sat", "##s", "-"]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *PIECES]
SENTENCES = ["Ann Lee sat in the U.S. , Ann 's .", "U.S.-Ann sats in Lee", "Sats"]
LABELS = ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]


@pytest.fixture(scope="module")
def columns(tmp_path_factory):
    """Records of the sentences; `Ann Lee` and `Ann` are persons, the rest of the words outside."""
    directory = tmp_path_factory.mktemp("columns")
    tags = {"Ann": "B-PER", "Lee": "I-PER", "U.S.": "B-LOC"}
    lines = ["\n".join(f"{w} {tags.get(w, 'O')}" for w in s.split()) for s in SENTENCES]
    (directory / "a.conll").write_text("\n\n".join(lines))
    return written(directory, "conll2003", "a.conll")


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Records of the same sentences without marked words; `U.S.` is a place."""
    directory = tmp_path_factory.mktemp("texts")
    entities = [{"start": 19, "end": 23, "label": "LOC"}]
    lines = [{"text": s, "entities": []} for s in SENTENCES]
    lines[0]["entities"] = entities
    (directory / "a.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return written(directory, "jsonlines", "a.jsonl")


def written(directory, file_format, name):
    (directory / "vocab.txt").write_text("".join(f"{piece}\n" for piece in VOCABULARY))
    write_entities(
        READERS[file_format](str(directory / name)),
        str(directory / "records"),
        vocabulary=str(directory / "vocab.txt"),
        lowercase=True,
        sequence_length=12,
    )
    return open_records(str(directory / "records"))


def encoder(hidden_dim=8):
    keras.utils.set_random_seed(1)
    return SpanBertBackbone(len(VOCABULARY), 1, 2, hidden_dim, 8, max_sequence_length=12)


def built(records, strategy="first"):
    config = NamedEntitiesConfig(prediction={"aggregation_strategy": strategy})
    tokenizer = SpanBertTokenizer(VOCABULARY, lowercase=True)
    return NamedEntities().build(encoder(), tokenizer, records.manifest, config)


def classifier(strategy, deviation):
    """One that predicts labels of all kinds."""
    preprocessor = SpanBertTokenClassifierPreprocessor(SpanBertTokenizer(VOCABULARY, True), 12)
    model = SpanBertTokenClassifier(encoder(), LABELS, preprocessor, aggregation_strategy=strategy)
    kernel = model.output_dense.kernel
    kernel.assign(np.random.default_rng(1).normal(0.0, deviation, kernel.shape))
    return model


def test_a_model_has_the_words_of_its_records(columns, texts):
    assert built(columns).aggregation_strategy == "word"
    assert built(texts).aggregation_strategy == "first"
    assert built(columns, "simple").aggregation_strategy == "simple"


def test_a_new_classifier_begins_at_the_shares_of_the_labels(columns):
    """What it predicts of an input that says nothing: the labels' shares of the words, nearly."""
    model = built(columns)
    counts = np.array(columns.manifest.label_counts)
    assert counts.sum() == columns.manifest.counts["words"] == 15
    shares = tf.nn.softmax(model.output_dense(tf.zeros([1, 8])))[0].numpy()
    np.testing.assert_allclose(shares, (counts + 1) / (counts + 1).sum(), rtol=1e-5)


def test_a_classifier_made_in_python_begins_without_a_bias_and_with_bert_s_deviation():
    """0.02, which the values of `TruncatedNormal(0.02)` do not have: 0.0176."""
    model = SpanBertTokenClassifier(encoder(64), [f"label {number}" for number in range(300)])
    kernel, bias = model.output_dense.get_weights()
    assert not bias.any()
    assert kernel.std() == pytest.approx(0.02, rel=0.03)


def test_answers_to_records_are_those_to_their_texts(columns):
    """The data's own words here, the cut of raw text there, which for these are the same."""
    task, model = NamedEntities(), classifier("word", 5.0)
    outcome = task.outcome(model, columns, task.predict(model, columns, batch_size=2))
    of_records = task._entities(outcome)
    of_texts = task.predictor(model)(SENTENCES)
    assert sum(map(len, of_records)) > 3
    for expected, found in zip(of_records, of_texts, strict=True):
        apart = [{**entity, "score": pytest.approx(entity["score"])} for entity in expected]
        assert found == apart
    ends = {entity["end"] for entity in of_texts[0]}
    assert not ends & {20, 21, 22}  # inside of `U.S.`


def test_records_without_marked_words_are_scored_by_the_words_of_the_text(texts):
    """`u` says B-LOC for `U.S.`; its other pieces were never trained, and say something else."""
    task, model = NamedEntities(), classifier("word", 1.0)
    lines = texts.lines("sentences.jsonl")
    predictions = [
        PieceLabels(np.full(line["num_pieces"], 4), np.ones(line["num_pieces"])) for line in lines
    ]
    predictions[0].labels[:] = [0, 0, 0, 0, 0, 1, 3, 0, 4, 0, 0, 0, 0, 0]
    outcome = task.outcome(model, texts, predictions)
    assert outcome.predicted[0][5:10] == ["B-LOC", "I-LOC", "I-LOC", "I-LOC", "O"]
    assert outcome.gold[0] == outcome.predicted[0]
    assert task.score(task.outcome(classifier("first", 1.0), texts, predictions))["f1"] == 0
