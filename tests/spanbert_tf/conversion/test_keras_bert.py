"""Presets for KerasHub's own BERT, loaded where this project is not."""

import re
import subprocess
import sys

import keras_hub
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
from spanbert_tf.models import SpanBertBackbone
from spanbert_tf.presets.golden import SENTENCES

TOLERANCE = 2e-5

PROGRAM = """
import sys
sys.modules["spanbert_tf"] = None
import keras_nlp
import numpy

backbone = keras_nlp.models.Backbone.from_preset(sys.argv[1])
assert type(backbone) is keras_nlp.models.BertBackbone
classifier = keras_nlp.models.TextClassifier.from_preset(sys.argv[1], num_classes=2)
before = classifier.backbone.token_embedding.get_weights()[0]
history = classifier.fit(["the cat sat", "a dog"] * 4, [0, 1] * 4, batch_size=4, verbose=0)
assert numpy.isfinite(history.history["loss"]).all()
after = classifier.backbone.token_embedding.get_weights()[0]
assert (before != after).any(axis=1).sum() >= 7  # [CLS], [SEP], [PAD] and four words
masked_lm = keras_nlp.models.MaskedLM.from_preset(sys.argv[1])
assert masked_lm.preprocessor.tokenizer.lowercase
"""


@pytest.fixture(scope="module")
def model():
    # KerasHub packs rows of 512 unless told otherwise.
    model = torch_model(max_position_embeddings=512)
    for layer in model.bert.encoder.layer:  # the two GELUs differ most around 2
        torch.nn.init.normal_(layer.intermediate.dense.bias, std=2.0)
    return model


def approximated(model):
    """The encoder with the tanh GELU."""
    config = {**model.config.to_dict(), "hidden_act": "gelu_pytorch_tanh"}
    encoder = transformers.BertModel(transformers.BertConfig(**config)).eval()
    encoder.load_state_dict(model.bert.state_dict())
    return encoder


@pytest.fixture(scope="module")
def presets(model, tmp_path_factory):
    directory = tmp_path_factory.mktemp("presets")
    save_torch_model(model, directory / "source")
    convert_checkpoint("huggingface", "keras", str(directory / "source"), str(directory / "ours"))
    convert_checkpoint("keras", "keras_bert", str(directory / "ours"), str(directory / "theirs"))
    convert_checkpoint("keras", "keras", str(directory / "theirs"), str(directory / "back"))
    return directory


@pytest.mark.slow
def test_fine_tunes_without_this_project(presets):
    child = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(presets / "theirs")], capture_output=True, text=True
    )
    assert child.returncode == 0, child.stderr[-2000:]


def test_computes_bert_with_the_approximate_gelu(presets, model):
    rows = rows_of(VOCABULARY)
    expected = torch_outputs(approximated(model), rows).last_hidden_state.numpy()
    backbone = keras_hub.models.Backbone.from_preset(str(presets / "theirs"))
    actual = backbone(keras_inputs(rows), training=False)["sequence_output"]
    assert largest_difference(actual, expected, rows) < TOLERANCE


def test_difference_of_the_gelu_is_printed(presets, model, tmp_path, capsys):
    convert_checkpoint("keras", "keras_bert", str(presets / "ours"), str(tmp_path / "again"))
    printed = float(re.search(r"differ by up to (\S+) from", capsys.readouterr().out).group(1))
    differences = []
    for sentence in SENTENCES:
        rows = rows_of(VOCABULARY, [sentence])
        rows["token_type_ids"][:] = 0
        outputs = [torch_outputs(encoder, rows) for encoder in (model.bert, approximated(model))]
        exact, approximate = (output.last_hidden_state.numpy() for output in outputs)
        differences.append(largest_difference(exact, approximate, rows))
    assert max(differences) > 1e-5
    assert printed == pytest.approx(max(differences), rel=0.06)


@pytest.mark.parametrize("target", ["tf1", "keras_bert"])
def test_difference_is_printed_where_the_gelu_changes(target, presets, tmp_path, capsys):
    convert_checkpoint("keras", target, str(presets / "theirs"), str(tmp_path / "copy"))
    assert ("approximates the GELU" in capsys.readouterr().out) == (target == "tf1")


def test_way_back_has_the_same_weights(presets):
    ours, back = (SpanBertBackbone.from_preset(str(presets / name)) for name in ("ours", "back"))
    for expected, actual in zip(ours.get_weights(), back.get_weights(), strict=True):
        np.testing.assert_array_equal(actual, expected)
