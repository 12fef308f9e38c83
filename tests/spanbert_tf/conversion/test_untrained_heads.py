"""A head that was never trained is no trained one after a conversion."""

import keras
import pytest
import torch
import transformers
from torch_models import save_torch_model, torch_model

from spanbert_tf.conversion.convert import convert_checkpoint
from spanbert_tf.errors import BadInputError
from spanbert_tf.models import (
    SpanBertMaskedLM,
    SpanBertMaskedLMPreprocessor,
    SpanBertPretrainer,
    SpanBertQuestionAnswerer,
    SpanBertQuestionAnswererPreprocessor,
    SpanBertTextClassifier,
    SpanBertTextClassifierPreprocessor,
    SpanBertTokenClassifier,
    SpanBertTokenClassifierPreprocessor,
)
from spanbert_tf.models.pretraining_heads import FRESH
from spanbert_tf.presets.preset import Preset
from spanbert_tf.presets.pretraining import load_preset_into
from spanbert_tf.presets.writing import write_preset


def masked_lm(backbone, tokenizer):
    return SpanBertMaskedLM(backbone, SpanBertMaskedLMPreprocessor(tokenizer, 16))


def question_answerer(backbone, tokenizer):
    preprocessor = SpanBertQuestionAnswererPreprocessor(tokenizer, 16, question_first=True)
    return SpanBertQuestionAnswerer(backbone, preprocessor)


def text_classifier(backbone, tokenizer):
    preprocessor = SpanBertTextClassifierPreprocessor(tokenizer, 16)
    return SpanBertTextClassifier(backbone, 2, preprocessor)


def token_classifier(backbone, tokenizer):
    preprocessor = SpanBertTokenClassifierPreprocessor(tokenizer, 16)
    return SpanBertTokenClassifier(backbone, ["O", "B-PER", "I-PER"], preprocessor)


@pytest.mark.parametrize(
    ("make", "between", "is_trained"),
    [
        (masked_lm, "keras_bert", True),
        (masked_lm, "keras_bert", False),
        (question_answerer, "huggingface", False),
        (text_classifier, "huggingface", False),
        (token_classifier, "huggingface", False),
    ],
)
@pytest.mark.quick_cases(1)
def test_there_and_back_a_head_is_as_trained_as_before(
    make, between, is_trained, tiny_backbone, tiny_tokenizer, tmp_path, capfd
):
    task = make(tiny_backbone, tiny_tokenizer)
    if is_trained:
        task.is_head_trained = True
        for weight in task.masked_lm_head.weights:  # other formats tell it by biases alone
            weight.assign_add(keras.ops.ones_like(weight))
    preset, middle, back = (str(tmp_path / name) for name in ("preset", "middle", "back"))
    write_preset(task, preset)
    convert_checkpoint("keras", between, preset, middle)
    assert ("its head was never trained: left out" in capfd.readouterr().out) != is_trained
    convert_checkpoint("keras" if between == "keras_bert" else between, "keras", middle, back)
    if is_trained:
        assert Preset(back).trained_task(type(task)).is_head_trained
    else:
        with pytest.raises(BadInputError, match="has no trained head"):
            Preset(back).trained_task(type(task))


def test_what_a_source_does_not_say_its_biases_tell(tmp_path):
    model = torch_model(transformers.BertForSequenceClassification)
    torch.nn.init.zeros_(model.classifier.bias)  # as in a new head
    source = save_torch_model(model, tmp_path / "source")
    convert_checkpoint("huggingface", "keras", str(source), str(tmp_path / "preset"))
    with pytest.raises(BadInputError, match="was never trained"):
        Preset(str(tmp_path / "preset")).trained_task(SpanBertTextClassifier)


def test_an_untrained_head_is_not_taken_over(tiny_backbone, tiny_tokenizer, tmp_path):
    sizes = {"max_span_targets": 4, "span_position_dim": 8}
    pretrainer = SpanBertPretrainer(tiny_backbone, **sizes)
    preset = str(tmp_path / "preset")
    pretrainer.save_to_preset(preset, tokenizer=tiny_tokenizer)
    report = load_preset_into(SpanBertPretrainer(tiny_backbone, **sizes), preset)
    assert report["masked_lm_head"] == report["span_boundary_head"]
    assert report["masked_lm_head"].startswith(FRESH)


def pooler_row(output):
    return next(line for line in output.splitlines() if "pooler" in line)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("between", ["huggingface", "tf1", "keras_bert"])
def test_a_pooler_that_nothing_trained_is_told_there_and_back(
    between, tiny_backbone, tiny_tokenizer, tmp_path, capfd
):
    task = masked_lm(tiny_backbone, tiny_tokenizer)
    task.is_head_trained = True
    preset, middle, back = (str(tmp_path / name) for name in ("preset", "middle", "back"))
    write_preset(task, preset)
    convert_checkpoint("keras", between, preset, middle)
    assert "never trained" in pooler_row(capfd.readouterr().out)
    again = "keras" if between == "keras_bert" else between
    convert_checkpoint(again, "keras", middle, back, lowercase=True)
    assert "never trained" in pooler_row(capfd.readouterr().out)
    for directory in (preset, middle, back) if between == "keras_bert" else (preset, back):
        with open(f"{directory}/README.md") as card:
            assert "| Pooler | never trained" in card.read()


def test_a_trained_pooler_is_found(tmp_path, capfd):
    source = save_torch_model(torch_model(), tmp_path / "source")
    convert_checkpoint("huggingface", "keras", str(source), str(tmp_path / "preset"))
    assert "never trained" not in pooler_row(capfd.readouterr().out)
    assert "Pooler" not in (tmp_path / "preset" / "README.md").read_text()
