"""Token classifiers of `transformers`, in and out, and their pipeline."""

import numpy as np
import pytest
import torch
import transformers
from torch_models import (
    SENTENCES,
    VOCABULARY,
    keras_inputs,
    largest_difference,
    rows_of,
    save_torch_model,
    torch_model,
    torch_outputs,
)

import spanbert_tf
from spanbert_tf.conversion.convert import convert_checkpoint
from spanbert_tf.errors import BadInputError
from spanbert_tf.models import SpanBertTokenClassifier
from spanbert_tf.presets.writing import write_preset

LABELS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
TEXTS = [
    *SENTENCES[:3],
    "The cats sat, a dog.",
    "Zoë qqq paid the cats  sats ?",
    "",
    "cat dog cat dog mats mats the a the a . . !",
]


@pytest.fixture(scope="module")
def model():
    model = torch_model(
        transformers.BertForTokenClassification,
        max_position_embeddings=32,
        id2label=dict(enumerate(LABELS)),
        label2id={label: number for number, label in enumerate(LABELS)},
        num_labels=len(LABELS),
    )
    # So that labels of all kinds are predicted, in any order, inside words as well.
    torch.nn.init.normal_(model.bert.embeddings.word_embeddings.weight)
    torch.nn.init.normal_(model.classifier.weight)
    return model


@pytest.fixture(scope="module")
def source(model, tmp_path_factory):
    return save_torch_model(model, tmp_path_factory.mktemp("token_classifier") / "source")


@pytest.fixture(scope="module")
def preset(source):
    path = str(source.parent / "preset")
    convert_checkpoint("huggingface", "keras", str(source), path)
    return path


def test_logits_are_those_of_transformers(model, preset):
    classifier = SpanBertTokenClassifier.from_preset(preset)
    assert (classifier.labels, classifier.aggregation_strategy) == (LABELS, "simple")
    rows = rows_of(VOCABULARY)
    actual = classifier(keras_inputs(rows), training=False)
    assert largest_difference(actual, torch_outputs(model, rows).logits.numpy(), rows) < 2e-5


def test_way_back(model, preset, tmp_path):
    convert_checkpoint("keras", "huggingface", preset, str(tmp_path / "copy"))
    copy = transformers.BertForTokenClassification.from_pretrained(str(tmp_path / "copy"))
    assert copy.config.id2label == dict(enumerate(LABELS))
    expected = model.state_dict()
    assert set(copy.state_dict()) == set(expected)
    for name, tensor in copy.state_dict().items():
        np.testing.assert_array_equal(tensor, expected[name])


@pytest.mark.parametrize("strategy", ["simple", pytest.param("first", marks=pytest.mark.slow)])
def test_predictor_is_the_pipeline(strategy, model, preset, tmp_path):
    ids = {piece: number for number, piece in enumerate(VOCABULARY)}
    tokenizer = transformers.BertTokenizerFast(vocab=ids, do_lower_case=True)
    pipeline = transformers.pipeline(
        "token-classification", model, tokenizer=tokenizer, aggregation_strategy=strategy
    )
    classifier = SpanBertTokenClassifier.from_preset(preset)
    classifier.aggregation_strategy = strategy
    write_preset(classifier, str(tmp_path / "preset"))
    found = spanbert_tf.predictor(str(tmp_path / "preset"))([{"text": text} for text in TEXTS])
    assert sum(map(len, found)) > 10
    for text, entities in zip(TEXTS, found, strict=True):
        expected = pipeline(text) if text else []
        # The pipeline puts a word together of its pieces, in lower case and without accents.
        assert [e["word"] for e in entities] == [text[e["start"] : e["end"]] for e in expected]
        apart = {"score": 0, "word": ""}
        assert [e | apart for e in entities] == [e | apart for e in expected]
        actual_scores, scores = ([entity["score"] for entity in e] for e in (entities, expected))
        np.testing.assert_allclose(actual_scores, scores, atol=1e-5)


def test_names_that_are_not_there_are_refused(model, source, tmp_path):
    broken = save_torch_model(model, tmp_path / "source")
    config = (broken / "config.json").read_text().replace('"I-LOC"', '"O"')
    (broken / "config.json").write_text(config)
    with pytest.raises(BadInputError, match="id2label does not name 5 different classes"):
        convert_checkpoint("huggingface", "keras", str(broken), str(tmp_path / "preset"))
    assert not (tmp_path / "preset").exists()
