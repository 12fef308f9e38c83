"""Adapters as directories of their own: this project's commands read them, and so does `peft`."""

import json
import os
import pathlib
import shutil

import numpy as np
import peft
import pytest
import torch
import transformers
from tiny_models import INPUTS, LENGTH, VOCABULARY, tiny_model

from spanbert_tf.conversion.convert import convert_checkpoint
from spanbert_tf.errors import BadInputError, MismatchError
from spanbert_tf.models import SpanBertBackbone
from spanbert_tf.models.adapters import write_adapter
from spanbert_tf.models.keras_hub_presets import weights_digest
from spanbert_tf.presets.loading import load_checked, load_trained
from spanbert_tf.presets.writing import write_preset
from spanbert_tf.tasks.prediction import Predictor

RANK, ALPHA = 3, 5
ROWS = np.random.default_rng(4).integers(5, len(VOCABULARY), (3, LENGTH))
# Where `transformers` has the same head: its class, and its outputs.
PEERS = {
    "question_answering": (transformers.BertForQuestionAnswering, ("start_logits", "end_logits")),
    "text_classification": (transformers.BertForSequenceClassification, ("logits",)),
    "named_entities": (transformers.BertForTokenClassification, ("logits",)),
}
OTHERS = (transformers.BertModel, ("last_hidden_state",))
TASKS = sorted(INPUTS.keys() - {"fill_mask"})


def write_adapted(directory, name):
    """Writes an encoder, and a task on it of random adapters, pooler and head, in both ways."""
    model, random = tiny_model(name), np.random.default_rng(5)

    def move(variables):
        for variable in variables:
            variable.assign_add(random.normal(0, 0.3, variable.shape))

    backbone = model.backbone
    move(backbone.weights)
    encoder, preset = str(directory / "encoder"), str(directory / "preset")
    write_preset(backbone, encoder, tokenizer=model.preprocessor.tokenizer)
    digest = weights_digest(backbone)
    backbone.enable_lora(RANK)
    backbone.pooled_dense.trainable = model.reads_pooler
    for layer in backbone.transformer_layers:
        for part in ("query", "value"):
            getattr(layer._self_attention_layer, f"{part}_dense").lora_alpha = ALPHA
    move(model.trainable_variables)
    model.is_head_trained = True
    write_preset(model, preset)
    adapter = str(directory / "adapter")
    write_adapter(model, adapter, preset=preset, encoder=encoder, digest=digest)
    return model, adapter


@pytest.fixture(scope="module", params=TASKS)
def adapted(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp(request.param)
    model, _ = write_adapted(directory, request.param)
    return request.param, directory, model


@pytest.fixture
def answerer(tmp_path):
    """A question answerer's adapter, which a test may damage."""
    return write_adapted(tmp_path, "question_answering")[1]


@pytest.mark.quick_cases(2)
def test_it_is_the_preset_with_the_products_in_its_kernels(adapted):
    _, directory, model = adapted
    adapter, preset = str(directory / "adapter"), str(directory / "preset")
    assert not [file for file in os.listdir(adapter) if file.startswith("model") and "h5" in file]
    for precision in ("float32", "bfloat16"):
        loaded, expected = (load_trained(type(model), p, precision) for p in (adapter, preset))
        for ours, theirs in zip(loaded.weights, expected.weights, strict=True):
            assert ours.dtype == theirs.dtype and ours.path == theirs.path
            ours, theirs = np.array(ours, "float32"), np.array(theirs, "float32")
            tolerance = 1e-6 if precision == "float32" else 0.01
            np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=1e-6)


def test_it_answers(answerer):
    found, (expected,) = (
        Predictor(answerer)([INPUTS["question_answering"]] * 2),
        Predictor(answerer.replace("adapter", "preset"))([INPUTS["question_answering"]]),
    )
    assert [answer["answer"] for answer in found] == [expected["answer"]] * 2
    assert found[0]["score"] == pytest.approx(expected["score"], abs=1e-6)


def test_peft_computes_the_same_over_the_converted_encoder(adapted, tmp_path):
    name, directory, model = adapted
    peer, names = PEERS.get(name, OTHERS)
    convert_checkpoint("keras", "huggingface", str(directory / "encoder"), str(tmp_path / "theirs"))
    options = {"num_labels": len(model.labels)} if names == ("logits",) else {}
    theirs = peer.from_pretrained(str(tmp_path / "theirs"), **options)
    theirs = peft.PeftModel.from_pretrained(theirs, str(directory / "adapter")).eval()
    lengths = np.array([[LENGTH], [7], [3]])
    mask = (np.arange(LENGTH) < lengths).astype("int32")
    with torch.no_grad():
        found = theirs(input_ids=torch.tensor(ROWS), attention_mask=torch.tensor(mask))
    inputs = {"token_ids": ROWS, "segment_ids": 0 * ROWS, "padding_mask": mask}
    ours = (model if name in PEERS else model.backbone)(inputs, training=False)
    if names != ("start_logits", "end_logits"):
        ours = {names[0]: ours["sequence_output"] if isinstance(ours, dict) else ours}
    for output in names:
        actual, expected = np.array(ours[output]), found[output].numpy()
        if actual.shape[:2] == mask.shape:
            actual, expected = actual[mask > 0], expected[mask > 0]
        np.testing.assert_allclose(actual, expected, atol=1e-5)


def test_it_is_converted_as_a_whole_model(tmp_path):
    write_adapted(tmp_path, "text_classification")
    models = []
    for name in ("adapter", "preset"):
        convert_checkpoint("keras", "huggingface", str(tmp_path / name), str(tmp_path / f"{name}s"))
        peer = PEERS["text_classification"][0]
        models.append(peer.from_pretrained(str(tmp_path / f"{name}s")).state_dict())
    assert models[0].keys() == models[1].keys()
    for name, values in models[0].items():
        np.testing.assert_allclose(values, models[1][name], atol=1e-6)


def tiny_class():
    return type(tiny_model("question_answering"))


@pytest.mark.parametrize("hidden_dim", [8, 6])
def test_another_encoder_is_refused(hidden_dim, answerer, tmp_path):
    other, model = str(tmp_path / "other"), tiny_model("question_answering")
    backbone = SpanBertBackbone(len(VOCABULARY), 1, 2, hidden_dim, 8, max_sequence_length=LENGTH)
    write_preset(backbone, other, tokenizer=model.preprocessor.tokenizer)
    edit_config(answerer, base_model_name_or_path=other)
    for precision in ("float32", "bfloat16"):
        with pytest.raises(MismatchError) as error:
            load_checked(tiny_class(), answerer, dtype=precision)
        message = str(error.value)
        assert "\n" not in message and answerer in message and other in message
        assert "adapter_config.json" in message


def test_an_encoder_that_was_moved_is_named_anew(answerer, tmp_path):
    encoder = str(tmp_path / "encoder")
    shutil.move(encoder, tmp_path / "moved")
    edit_config(answerer, base_model_name_or_path=encoder)
    with pytest.raises(BadInputError, match=rf"{answerer}: its encoder {encoder} is no preset"):
        load_checked(tiny_class(), answerer)
    edit_config(answerer, base_model_name_or_path=str(tmp_path / "moved"))
    load_checked(tiny_class(), answerer)
    edit_config(answerer, base_model_name_or_path=answerer)  # and no end
    with pytest.raises(BadInputError, match="is no preset"):
        load_checked(tiny_class(), answerer)


def edit_config(adapter, **values):
    path = os.path.join(adapter, "adapter_config.json")
    with open(path, encoding="utf-8") as file:
        config = json.load(file)
    with open(path, "w", encoding="utf-8") as file:
        json.dump({**config, **values}, file)


@pytest.mark.parametrize("has_checksums", [True, False])
def test_a_damaged_file_is_named(answerer, has_checksums):
    if not has_checksums:
        os.remove(os.path.join(answerer, "golden.json"))
    path = pathlib.Path(answerer) / "adapter_model.safetensors"
    for content in (b"", b"\x10\0\0\0\0\0\0\0{}", path.read_bytes()[:-1]):
        path.write_bytes(content)
        with pytest.raises(BadInputError, match=r"adapter_model.safetensors.* again") as error:
            load_checked(tiny_class(), answerer)
        assert answerer in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"r": 4}, r"adapter_model.safetensors: encoder.layer.0.* has shape \[3, 8\].*\[4, 8\]"),
        ({"r": "3"}, r"adapter_config.json: r: "),
        ({"target_modules": ["query", "key"]}, r"layer.0.attention.self.key.lora_A.* is missing"),
        ({"target_modules": ["dense"]}, r"target_modules has others than query, key, value"),
    ],
)
def test_what_does_not_fit_its_arrays_is_named(answerer, values, message):
    edit_config(answerer, **values)
    with pytest.raises(BadInputError, match=message):
        load_checked(tiny_class(), answerer)
