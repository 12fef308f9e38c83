"""The predictor of a pre-trained model: it fills in masks."""

import io
import json
import os
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from task_tests import SPECIAL, write_encoder

from spanbert_tf.errors import BadInputError
from spanbert_tf.models import (
    SpanBertBackbone,
    SpanBertMaskedLM,
    SpanBertMaskedLMPreprocessor,
    SpanBertTokenizer,
)
from spanbert_tf.presets.writing import write_preset
from spanbert_tf.tasks.fill_mask import FillMask, FillMaskGraph
from spanbert_tf.tasks.prediction import Predictor, predict_lines

pytestmark = pytest.mark.usefixtures("presets_opened_once")

VOCABULARY = [*SPECIAL, "ann", "bob", "has", "the", "cat", "?"]


@pytest.fixture(scope="module")
def masked_lm():
    keras.utils.set_random_seed(1)
    tokenizer = SpanBertTokenizer(VOCABULARY, lowercase=True, special_tokens_in_strings=True)
    preprocessor = SpanBertMaskedLMPreprocessor(tokenizer, sequence_length=16)
    backbone = SpanBertBackbone(len(VOCABULARY), 1, 2, 16, 24, max_sequence_length=16)
    model = SpanBertMaskedLM(backbone, preprocessor)
    model.is_head_trained = True
    return model


@pytest.fixture(scope="module")
def preset(masked_lm, tmp_path_factory):
    directory = str(tmp_path_factory.mktemp("masked") / "preset")
    write_preset(masked_lm, directory)
    return directory


@pytest.fixture(scope="module")
def predict(preset):
    return Predictor(preset)


def test_fillings_are_the_model_s_own(masked_lm, predict):
    found = predict({"text": "ann has [MASK] cat"}, top_k=len(VOCABULARY))
    pieces = ["[CLS]", "ann", "has", "[MASK]", "cat", "[SEP]"]
    ids = np.array([[VOCABULARY.index(piece) for piece in pieces]])
    row = {"token_ids": ids, "segment_ids": 0 * ids, "padding_mask": 0 * ids + 1}
    logits = masked_lm({**row, "mask_positions": np.array([[3]])}, training=False)[0, 0]
    expected = keras.ops.convert_to_numpy(keras.ops.softmax(logits))
    assert sorted(filling["token"] for filling in found) == list(range(len(VOCABULARY)))
    for filling in found:
        assert filling["score"] == pytest.approx(float(expected[filling["token"]]), abs=1e-5)
        assert filling["sequence"] == f"ann has {VOCABULARY[filling['token']]} cat"


def test_more_fillings_than_entries_are_refused(predict):
    with pytest.raises(BadInputError, match="--top-k 12: the vocabulary has 11 entries only"):
        predict({"text": "ann has [MASK] cat"}, top_k=12)


def test_texts_are_cut_where_rows_of_the_training_ended(masked_lm):
    """The encoder's table may have more positions, which then are as they were drawn."""
    preprocessor = SpanBertMaskedLMPreprocessor(masked_lm.preprocessor.tokenizer, 6)
    shorter = SpanBertMaskedLM(masked_lm.backbone, preprocessor)
    graph = FillMaskGraph(shorter, top_k=1)
    texts = tf.constant(["ann has the cat bob has the [MASK]"])
    assert tf.function(graph.pack_texts)(texts)["token_ids"].shape == (1, 6)
    assert not tf.function(graph.fill_texts)(texts)["probabilities"].numpy().any()
    shorter.preprocessor.sequence_length = 9  # where the README's example has its mask
    readme = FillMask().served(shorter, 1).readme("served")
    assert "what is beyond 7 word pieces" in readme and "enable_truncation(9)" in readme


def test_model_that_reads_more_than_a_text_is_refused(tmp_path):
    tokenizer = SpanBertTokenizer(VOCABULARY, lowercase=True, special_tokens_in_strings=True)
    preprocessor = SpanBertMaskedLMPreprocessor(tokenizer, sequence_length=16)
    options = {"max_sequence_length": 16, "position_embeddings": "segment_aware"}
    backbone = SpanBertBackbone(len(VOCABULARY), 1, 2, 16, 24, **options)
    model = SpanBertMaskedLM(backbone, preprocessor)
    model.is_head_trained = True
    write_preset(model, str(tmp_path / "preset"))
    predict = Predictor(str(tmp_path / "preset"))
    with pytest.raises(BadInputError, match="reads positions of sentences and paragraphs"):
        predict({"text": "ann has [MASK] cat"})


def test_half_a_surrogate_pair_is_written_as_a_question_mark(preset, tmp_path, capfdbinary):
    (tmp_path / "in.jsonl").write_text('{"text": "\\ud83d [MASK] cat"}\n')
    output = tmp_path / "new" / "out.jsonl"
    predict_lines(preset, str(tmp_path / "in.jsonl"), str(output), top_k=1)
    in_file = output.read_bytes()
    (found,) = json.loads(in_file)
    assert found["sequence"].startswith("? ")
    capfdbinary.readouterr()
    predict_lines(preset, str(tmp_path / "in.jsonl"), "-", top_k=1)
    sys.stdout.flush()
    assert capfdbinary.readouterr().out == in_file


def test_standard_input_and_output_are_utf_8_whatever_the_locale(preset, tmp_path, monkeypatch):
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes('\ufeff{"text": "caf\xe9 → [MASK] cat"}\n'.encode())
    predict_lines(preset, str(source), str(output), top_k=1)
    out = io.TextIOWrapper(io.BytesIO(), "ascii")
    monkeypatch.setattr(sys, "stdout", out)
    kept = os.dup(0)
    try:
        with open(source) as stdin, open(0, encoding="ascii", closefd=False) as ascii_input:
            os.dup2(stdin.fileno(), 0)
            monkeypatch.setattr(sys, "stdin", ascii_input)
            predict_lines(preset, "-", "-", top_k=1)
    finally:
        os.dup2(kept, 0)
        os.close(kept)
    assert "caf\xe9 → " in output.read_text("utf-8")
    assert out.buffer.getvalue() == output.read_bytes()


def test_errors_name_the_line_of_the_file(preset, tmp_path):
    source = tmp_path / "in.jsonl"
    for line, words in (("{}", "has no text 'text'"), ('{"text": "the cat"}', "has no [MASK]")):
        source.write_text(f'{{"text": "[MASK]"}}\n\n{line}\n')
        with pytest.raises(BadInputError) as caught:
            predict_lines(preset, str(source), "-")
        message = str(caught.value)
        assert message.startswith(f"{source}: line 3: ") and words in message


def test_preset_that_is_called_as_an_input_is_named_itself(tmp_path, monkeypatch):
    """The line's number has its place in the error, and is not read out of its text."""
    monkeypatch.chdir(tmp_path)
    write_encoder(tmp_path / "input 9", VOCABULARY, seed=1)
    (tmp_path / "in.jsonl").write_text('{"text": "[MASK]"}\n')
    with pytest.raises(BadInputError, match=r"^input 9: holds an encoder and no trained head"):
        predict_lines("input 9", "in.jsonl", "-")


def test_texts_of_json_may_have_halves_of_surrogate_pairs(predict):
    odd, plain = predict([{"text": "\ud83d [MASK] cat"}, {"text": "? [MASK] cat"}])
    for one, other in zip(odd, plain, strict=True):
        assert one["token"] == other["token"]
        assert one["score"] == pytest.approx(other["score"], abs=1e-5)


def test_text_without_a_mask_is_refused(predict):
    with pytest.raises(BadInputError, match=r"input 2: its text has no \[MASK\]"):
        predict([{"text": "[MASK]"}, {"text": "the cat"}])


def test_only_earlier_predictions_are_replaced(preset, tmp_path):
    source, output = tmp_path / "texts.jsonl", tmp_path / "predictions.jsonl"
    source.write_text('{"text": "[MASK] has the cat"}\n')
    predict_lines(preset, str(source), str(output), top_k=1)
    first = output.read_text()
    assert list(map(len, map(json.loads, first.splitlines()))) == [1]
    with pytest.raises(BadInputError, match="holds predictions; name another output, or give --ov"):
        predict_lines(preset, str(source), str(output))
    predict_lines(preset, str(source), str(output), top_k=2, overwrite=True)
    assert list(map(len, map(json.loads, output.read_text().splitlines()))) == [2]
    thesis = tmp_path / "thesis.txt"
    thesis.write_text("Do not touch.")
    for kept, said in ((source, "is also --input"), (thesis, "other things than predictions")):
        text = kept.read_text()
        with pytest.raises(BadInputError, match=said):
            predict_lines(preset, str(source), str(kept), overwrite=True)
        assert kept.read_text() == text
    with pytest.raises(BadInputError, match="is no directory"):
        predict_lines(preset, str(source), str(thesis / "predictions.jsonl"))
