"""Presets: all heads come back, in a fresh process too; a failure leaves what was there."""

import json
import os
import pathlib
import subprocess
import sys

import keras
import keras_hub
import numpy as np
import pytest

from spanbert_tf.errors import BadInputError, MismatchError
from spanbert_tf.files.preset import HEADS_FILE
from spanbert_tf.models import (
    SpanBertBackbone,
    SpanBertMaskedLM,
    SpanBertMaskedLMPreprocessor,
    SpanBertPretrainer,
    SpanBertTokenizer,
)
from spanbert_tf.models.pretraining_heads import FRESH, LOADED
from spanbert_tf.presets.preset import Preset
from spanbert_tf.presets.pretraining import load_preset_into, save_pretraining_preset

WORDS = ["the", "a", "Cat", "dog", "sat", "##s", "on", "mat", "."]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
PARTS = ("encoder", "masked_lm_head", "span_boundary_head", "next_sentence_head")


def make_pretrainer(seed, vocabulary_size=14, max_span_targets=4, **objectives):
    keras.utils.set_random_seed(seed)
    backbone = SpanBertBackbone(vocabulary_size, 2, 4, 32, 37, max_sequence_length=16)
    model = SpanBertPretrainer(
        backbone, max_span_targets=max_span_targets, span_position_dim=8, **objectives
    )
    # Biases and LayerNorms begin alike in all models; here they do not.
    random = np.random.default_rng(seed)
    model.is_head_trained = True
    model.set_weights([random.normal(size=w.shape).astype("float32") for w in model.get_weights()])
    return model


def save(model, directory, overwrite=False, **options):
    tokenizer = SpanBertTokenizer(VOCABULARY, **options)
    save_pretraining_preset(
        model, tokenizer, str(directory), sequence_length=12, overwrite=overwrite
    )
    return str(directory)


@pytest.fixture(scope="module")
def source():
    return make_pretrainer(seed=1, next_sentence=True)


@pytest.fixture(scope="module")
def preset(source, tmp_path_factory):
    return save(source, tmp_path_factory.mktemp("presets") / "preset")


@pytest.fixture(scope="module")
def encoder_preset(source, tmp_path_factory):
    directory = str(tmp_path_factory.mktemp("presets") / "encoder")
    source.backbone.save_to_preset(directory)
    SpanBertTokenizer(VOCABULARY).save_to_preset(directory)
    return directory


def inputs(num_rows=2):
    random = np.random.default_rng(3)
    return {
        "token_ids": random.integers(5, len(VOCABULARY), (num_rows, 7)).astype("int32"),
        "segment_ids": np.zeros((num_rows, 7), "int32"),
        "padding_mask": np.ones((num_rows, 7), "int32"),
        "mask_positions": np.array([[1, 4, 5]] * num_rows, "int32"),
    }


def test_all_heads_are_taken_over(source, preset):
    target = make_pretrainer(seed=2, next_sentence=True)
    assert load_preset_into(target, preset) == dict.fromkeys(PARTS, LOADED)
    for expected, actual in zip(source.get_weights(), target.get_weights(), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_masked_lm_predicts_what_the_pretrainer_does(source, preset):
    slots = {
        name: np.zeros((2, 3), "int32")
        for name in ("span_left_positions", "span_right_positions", "span_offsets")
    }
    expected = source({**inputs(), **slots}, training=False)["masked_lm"]
    masked_lm = keras_hub.models.MaskedLM.from_preset(preset)
    assert type(masked_lm) is SpanBertMaskedLM
    actual = masked_lm(inputs(), training=False)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)
    assert masked_lm.preprocessor.sequence_length == 12
    assert masked_lm.preprocessor.tokenizer.get_vocabulary() == VOCABULARY


@pytest.mark.slow
def test_preset_loads_alike_in_a_fresh_process(preset, tmp_path):
    np.savez(tmp_path / "inputs.npz", **inputs())
    program = """
import sys, numpy, keras_hub
import spanbert_tf.models
model = keras_hub.models.MaskedLM.from_preset(sys.argv[1])
outputs = model(dict(numpy.load(sys.argv[2])), training=False)
numpy.save(sys.argv[3], outputs)
"""
    paths = [preset, str(tmp_path / "inputs.npz"), str(tmp_path / "outputs.npy")]
    subprocess.run([sys.executable, "-c", program, *paths], check=True)
    expected = SpanBertMaskedLM.from_preset(preset)(inputs(), training=False)
    np.testing.assert_allclose(np.load(paths[2]), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("lowercase", [False, True])
def test_casing_travels_with_the_preset(source, tmp_path, lowercase):
    preset = save(source, tmp_path / "preset", lowercase=lowercase)
    with open(os.path.join(preset, "tokenizer.json")) as file:
        assert json.load(file)["config"]["lowercase"] is lowercase
    tokenizer = keras_hub.models.Tokenizer.from_preset(preset)
    assert type(tokenizer) is SpanBertTokenizer
    cat = VOCABULARY.index("[UNK]" if lowercase else "Cat")
    for reader in (tokenizer, SpanBertMaskedLM.from_preset(preset).preprocessor.tokenizer):
        assert reader("Cat").numpy().tolist() == [cat]


@pytest.mark.parametrize(("language", "says"), [("en", "cased |"), ("de", "cased, language de |")])
def test_the_card_says_the_language_of_the_preset(source, tmp_path, language, says):
    preset = save(source, tmp_path / "preset", language=language)
    assert f"word pieces, {says}" in pathlib.Path(preset, "README.md").read_text()


def test_heads_that_do_not_fit_start_fresh(preset):
    target = make_pretrainer(seed=2, max_span_targets=5)
    before = target.span_boundary_head.get_weights()[-1]
    report = load_preset_into(target, preset)
    assert report["span_boundary_head"].startswith(f"{FRESH}: span_boundary_head/")
    assert "next_sentence_head" not in report  # the model has none
    np.testing.assert_array_equal(target.span_boundary_head.get_weights()[-1], before)


def test_encoder_alone_is_taken_over(source, encoder_preset):
    target = make_pretrainer(seed=2, next_sentence=True)
    report = load_preset_into(target, encoder_preset)
    assert report == dict.fromkeys(PARTS, f"{FRESH}: the preset has none") | {"encoder": LOADED}
    loaded, saved = target.backbone.get_weights(), source.backbone.get_weights()
    for expected, actual in zip(saved, loaded, strict=True):
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.slow
def test_training_step_makes_a_trained_head():
    backbone = SpanBertBackbone(len(VOCABULARY), 2, 4, 32, 37, max_sequence_length=16)
    tokenizer = SpanBertTokenizer(VOCABULARY)
    model = SpanBertMaskedLM(backbone, SpanBertMaskedLMPreprocessor(tokenizer, 12))
    assert not model.is_head_trained
    model.compile(optimizer="adam", jit_compile=False)
    model.fit(["the Cat sat on a mat."] * 2, batch_size=2, verbose=0)
    assert model.is_head_trained


def test_encoder_of_another_shape_is_refused(preset):
    with pytest.raises(MismatchError, match="embedding has 14 rows, the records' vocabulary 15"):
        load_preset_into(make_pretrainer(seed=2, vocabulary_size=15), preset)


def test_damaged_heads_are_named(source, tmp_path):
    preset = save(source, tmp_path / "preset")
    path = os.path.join(preset, HEADS_FILE)
    with open(path, "r+b") as file:
        file.truncate(os.path.getsize(path) // 2)
    with pytest.raises(BadInputError, match=HEADS_FILE) as caught:
        load_preset_into(make_pretrainer(seed=2), preset)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "{}", '{"module": "x"}'])
def test_directories_that_are_no_preset_are_refused(tmp_path, text):
    if text:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(BadInputError) as caught:
        load_preset_into(make_pretrainer(seed=2), str(tmp_path))
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("limit", [0, 10_000, 100_000])
def test_full_disk_leaves_the_earlier_preset(source, tmp_path, limit, full_disk):
    preset = save(source, tmp_path / "preset")
    assert os.path.getsize(os.path.join(preset, "model.weights.h5")) > 100_000
    with full_disk(limit), pytest.raises(BadInputError, match="free some space") as caught:
        save(make_pretrainer(seed=2), preset, overwrite=True)
    assert "\n" not in str(caught.value)
    assert os.listdir(tmp_path) == ["preset"]
    target = make_pretrainer(seed=3, next_sentence=True)
    load_preset_into(target, preset)
    for expected, actual in zip(source.get_weights(), target.get_weights(), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_new_preset_replaces_the_earlier_one(source, tmp_path):
    preset = save(source, tmp_path / "preset")
    save(make_pretrainer(seed=2, span_boundary=False), preset, overwrite=True)
    assert os.listdir(tmp_path) == ["preset"]
    assert not os.path.exists(os.path.join(preset, HEADS_FILE))


def test_pretrainer_saves_what_the_commands_and_all_classes_load(source, tmp_path):
    preset = str(tmp_path / "preset")
    tokenizer = SpanBertTokenizer(VOCABULARY)
    source.save_to_preset(preset, tokenizer=tokenizer)
    target = make_pretrainer(seed=2, next_sentence=True)
    assert load_preset_into(target, preset) == dict.fromkeys(PARTS, LOADED)
    for loaded in (target, SpanBertPretrainer.from_preset(preset)):
        for expected, actual in zip(source.get_weights(), loaded.get_weights(), strict=True):
            np.testing.assert_array_equal(actual, expected)
    masked_lm = Preset(preset).trained_task(SpanBertMaskedLM)
    expected = source.to_masked_lm(tokenizer)(inputs(), training=False)
    np.testing.assert_allclose(masked_lm(inputs(), training=False), expected, rtol=1e-4, atol=1e-4)
    assert masked_lm.preprocessor.sequence_length == 16
    assert masked_lm.preprocessor.tokenizer.get_vocabulary() == VOCABULARY
    without = SpanBertPretrainer.from_preset(preset, next_sentence=False)
    assert without.next_sentence_head is None and without.span_boundary_head is not None


def test_a_head_that_the_preset_lacks_has_the_sizes_of_a_new_model(encoder_preset):
    bare = SpanBertPretrainer.from_preset(encoder_preset)
    assert bare.span_boundary_head is None and bare.next_sentence_head is None
    for sizes in ({}, {"max_span_targets": 6, "span_position_dim": 9}):
        loaded = SpanBertPretrainer.from_preset(encoder_preset, span_boundary=True, **sizes)
        new = SpanBertPretrainer(loaded.backbone, span_boundary=True, **sizes)
        shapes, expected = ([w.shape for w in m.span_boundary_head.weights] for m in (loaded, new))
        assert shapes == expected
