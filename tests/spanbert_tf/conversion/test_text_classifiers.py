"""Text classifiers and regressors of `transformers`, in and out."""

import json

import numpy as np
import pytest
import transformers
from safetensors.torch import load_file, save_file
from torch_models import (
    VOCABULARY,
    keras_inputs,
    rows_of,
    save_torch_model,
    torch_model,
    torch_outputs,
)

from spanbert_tf.conversion.convert import convert_checkpoint, with_positions
from spanbert_tf.conversion.huggingface import read_huggingface
from spanbert_tf.conversion.names import TEXT_CLASSIFIER
from spanbert_tf.errors import BadInputError, MismatchError
from spanbert_tf.models import SpanBertTextClassifier
from spanbert_tf.tasks.prediction import Predictor

LABELS = ["contradiction", "entailment", "neutral"]


def torch_classifier(num_labels):
    kind = transformers.BertForSequenceClassification
    model = torch_model(kind, num_labels=num_labels)
    if num_labels == 3:
        model.config.id2label = dict(enumerate(LABELS))
        model.config.label2id = {label: number for number, label in enumerate(LABELS)}
    return model


def converted(model, directory, **options):
    save_torch_model(model, directory / "source")
    source, preset = str(directory / "source"), str(directory / "preset")
    convert_checkpoint("huggingface", "keras", source, preset, **options)
    return preset


@pytest.mark.usefixtures("shipped_classes_alone")
@pytest.mark.parametrize("num_labels", [1, 3])
def test_logits_and_labels_go_there_and_back(num_labels, tmp_path):
    model = torch_classifier(num_labels)
    preset = converted(model, tmp_path)
    classifier = SpanBertTextClassifier.from_preset(preset)
    assert classifier.is_regression == (num_labels == 1)
    assert classifier.labels == (LABELS if num_labels == 3 else ["LABEL_0"])
    rows = rows_of(VOCABULARY)
    expected = torch_outputs(model, rows).logits
    np.testing.assert_allclose(
        classifier(keras_inputs(rows), training=False), expected, atol=2e-5, rtol=0
    )
    convert_checkpoint("keras", "huggingface", preset, str(tmp_path / "copy"))
    copy = transformers.AutoModelForSequenceClassification.from_pretrained(str(tmp_path / "copy"))
    assert type(copy) is transformers.BertForSequenceClassification
    assert list(copy.config.id2label.values()) == classifier.labels
    kind = "regression" if num_labels == 1 else "single_label_classification"
    assert copy.config.problem_type == kind  # by which its own class takes a loss
    assert set(copy.state_dict()) == set(model.state_dict())
    for name, tensor in copy.state_dict().items():
        np.testing.assert_array_equal(tensor, model.state_dict()[name])


def test_labels_are_in_the_order_of_their_numbers(tmp_path):
    """In the file they may stand in any; from 10 on, that of their keys is another."""
    model = torch_model(transformers.BertForSequenceClassification, num_labels=12)
    source = save_torch_model(model, tmp_path / "source")
    config = json.loads((source / "config.json").read_text())
    names = {str(number): f"label {number}" for number in range(12)}
    config["id2label"] = dict(sorted(names.items()))
    assert list(config["id2label"]) != list(names)
    (source / "config.json").write_text(json.dumps(config))
    with read_huggingface(str(source), None, None) as checkpoint:
        assert checkpoint.labels == tuple(f"label {number}" for number in range(12))


def test_a_classifier_without_a_pooler_is_none_of_texts(tmp_path):
    """Such a head reads tokens, whatever the configuration calls it."""
    source = save_torch_model(torch_classifier(3), tmp_path / "source")
    tensors = load_file(source / "model.safetensors")
    with read_huggingface(str(source), None, None) as whole:
        assert TEXT_CLASSIFIER in with_positions(whole, None).found_parts()
    kept = {name: tensor for name, tensor in tensors.items() if "pooler" not in name}
    save_file(kept, source / "model.safetensors", metadata={"format": "pt"})
    with read_huggingface(str(source), None, None) as checkpoint:
        checkpoint = with_positions(checkpoint, None)
        assert TEXT_CLASSIFIER not in checkpoint.found_parts() and not checkpoint.labels
        assert checkpoint.unused() == ["classifier.bias", "classifier.weight"]


@pytest.mark.usefixtures("shipped_classes_alone")
def test_pairs_are_read_where_the_command_says_so(tmp_path):
    model = torch_classifier(3)
    preset = converted(model, tmp_path, is_pair=True)
    pair = {"text": "the cats sat on a mat.", "text_pair": "the dog."}
    ids = {piece: number for number, piece in enumerate(VOCABULARY)}
    tokenizer = transformers.BertTokenizerFast(vocab=ids, do_lower_case=True, model_max_length=16)
    pipeline = transformers.pipeline("text-classification", model=model, tokenizer=tokenizer)
    expected, found = pipeline(pair), Predictor(preset)(pair)
    assert found["label"] == expected["label"]
    assert found["score"] == pytest.approx(expected["score"], abs=1e-5)
    with pytest.raises(BadInputError, match="has no text 'text_pair'"):
        Predictor(preset)({"text": "the cat"})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"problem_type": "multi_label_classification"}, "problem_type is multi_label"),
        ({"problem_type": "regression"}, "problem_type is regression of 3"),
        ({"id2label": {"0": "a", "1": "b"}}, "id2label does not name 3 different classes"),
        ({"id2label": {"0": "a", "1": "a", "2": "b"}}, "id2label does not name 3"),
        ({"id2label": ["a", "b", "c"]}, "id2label does not name 3"),
    ],
)
def test_labels_that_cannot_be_taken_over_are_refused(settings, message, tmp_path):
    source = save_torch_model(torch_classifier(3), tmp_path / "source")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | settings))
    with pytest.raises(BadInputError, match=message):
        convert_checkpoint("huggingface", "keras", str(source), str(tmp_path / "preset"))
    assert not (tmp_path / "preset").exists()


def test_a_head_of_tokens_is_none_of_texts(tmp_path, capfd):
    model = torch_model(transformers.BertForTokenClassification, num_labels=3)
    converted(model, tmp_path)
    shown = [line.split("│")[1:3] for line in capfd.readouterr().out.split("\n") if "│" in line]
    parts = {name.strip(): outcome.strip() for name, outcome in shown}
    assert (parts["text_classifier"], parts["token_classifier"]) == ("missing", "found")
    with pytest.raises(MismatchError, match="holds no text classifier; leave out --pairs"):
        source = str(tmp_path / "source")
        convert_checkpoint("huggingface", "keras", source, str(tmp_path / "other"), is_pair=True)
