"""Question answerers of `transformers`, in and out."""

import numpy as np
import pytest
import torch
import transformers
from torch_models import (
    VOCABULARY,
    keras_inputs,
    largest_difference,
    rows_of,
    save_torch_model,
    torch_model,
    torch_outputs,
)

from spanbert_tf.conversion.convert import convert_checkpoint
from spanbert_tf.errors import MismatchError
from spanbert_tf.models import (
    SpanBertBackbone,
    SpanBertQuestionAnswerer,
    SpanBertQuestionAnswererPreprocessor,
    SpanBertTokenizer,
)
from spanbert_tf.presets.writing import write_preset

NAMES = ("start_logits", "end_logits")


@pytest.fixture(scope="module")
def model():
    return torch_model(transformers.BertForQuestionAnswering)


@pytest.fixture(scope="module")
def preset(model, tmp_path_factory):
    directory = tmp_path_factory.mktemp("question_answerer")
    source = save_torch_model(model, directory / "source")
    convert_checkpoint("huggingface", "keras", str(source), str(directory / "preset"))
    return str(directory / "preset")


def test_logits_are_those_of_transformers(model, preset):
    answerer = SpanBertQuestionAnswerer.from_preset(preset)
    assert answerer.preprocessor.question_first
    assert (answerer.max_answer_tokens, answerer.has_unanswerable) == (30, False)
    rows = rows_of(VOCABULARY)
    actual, expected = answerer(keras_inputs(rows), training=False), torch_outputs(model, rows)
    for name in NAMES:
        assert largest_difference(actual[name], expected[name].numpy(), rows) < 2e-5


@pytest.mark.parametrize("target", ["huggingface", "tf1"])
def test_way_back(target, model, preset, tmp_path):
    convert_checkpoint("keras", target, preset, str(tmp_path / "copy"))
    if target == "tf1":
        options = {"lowercase": True}
        convert_checkpoint(
            "tf1", "huggingface", str(tmp_path / "copy"), str(tmp_path / "again"), **options
        )
    copy = transformers.BertForQuestionAnswering.from_pretrained(
        str(tmp_path / ("again" if target == "tf1" else "copy"))
    )
    expected = model.state_dict()
    assert set(copy.state_dict()) == set(expected)
    for name, tensor in copy.state_dict().items():
        np.testing.assert_array_equal(tensor, expected[name])


def test_heads_that_a_preset_has_no_place_for_are_told(model, tmp_path, capfd):
    """A checkpoint with the heads of pre-training beside that of the task."""
    source = save_torch_model(model, tmp_path / "source")
    heads = {name: tensor for name, tensor in torch_model().state_dict().items() if "cls." in name}
    tied = {f"cls.predictions.decoder.{name}" for name in ("weight", "bias")}
    tensors = model.state_dict() | {name: heads[name] for name in heads.keys() - tied}
    (source / "model.safetensors").unlink()
    torch.save(tensors, source / "pytorch_model.bin")
    convert_checkpoint("huggingface", "keras", str(source), str(tmp_path / "preset"))
    shown = [line.split("│")[1:3] for line in capfd.readouterr().out.split("\n") if "│" in line]
    parts = {name.strip(): outcome.strip() for name, outcome in shown}
    assert parts["encoder"] == parts["span_classifiers"] == "found"
    for part in ("masked_lm_head", "next_sentence_head"):
        assert parts[part] == "found, but the target has no place for it"


def test_passage_first_has_no_place_elsewhere(tmp_path):
    tokenizer = SpanBertTokenizer(VOCABULARY, lowercase=True)
    answerer = SpanBertQuestionAnswerer(
        SpanBertBackbone(len(VOCABULARY), 1, 2, 8, 8, max_sequence_length=16),
        SpanBertQuestionAnswererPreprocessor(tokenizer, sequence_length=16),
    )
    answerer.is_head_trained = True
    preset = str(tmp_path / "preset")
    write_preset(answerer, preset)
    with pytest.raises(MismatchError, match="reads the passage first"):
        convert_checkpoint("keras", "huggingface", preset, str(tmp_path / "copy"))
    assert not (tmp_path / "copy").exists()
