import dataclasses
import os
import shutil

import keras
import numpy as np
import pytest
from record_files import VOCABULARY, random_records, write_records

from spanbert_tf.config import load_config
from spanbert_tf.data.manifest import PretrainingManifest
from spanbert_tf.errors import BadInputError, MismatchError
from spanbert_tf.models import SpanBertTokenizer
from spanbert_tf.presets.preset import Preset, check_tokenizer
from spanbert_tf.presets.pretraining import save_pretraining_preset
from spanbert_tf.pretraining.job import run_pretraining
from spanbert_tf.pretraining.model import begin_with_preset, build_pretrainer

SPECIAL, WORDS = VOCABULARY[:5], VOCABULARY[5:]


@pytest.fixture(scope="module")
def config(tiny_overrides):
    return load_config("spanbert_base", [*tiny_overrides, "training.steps=2"])


@pytest.fixture(scope="module")
def save_preset(config, tmp_path_factory):
    """Saves a model of random weights with a tokenizer; returns it and the preset."""

    def save(vocabulary=VOCABULARY, lowercase=False, strip_accents=None):
        keras.utils.set_random_seed(7)
        model = build_pretrainer(config, len(vocabulary))
        model.is_head_trained = True  # as far as can be told
        preset = str(tmp_path_factory.mktemp("presets") / "preset")
        tokenizer = SpanBertTokenizer(list(vocabulary), lowercase, strip_accents)
        save_pretraining_preset(model, tokenizer, preset, sequence_length=24)
        return model, preset

    return save


@pytest.fixture(scope="module")
def saved(save_preset):
    return save_preset()


def test_weights_are_taken_over_and_reported(saved, config, tiny_records, capfd):
    source, preset = saved
    keras.utils.set_random_seed(8)
    model = build_pretrainer(config, len(VOCABULARY))
    begin_with_preset(model, preset, tiny_records, PretrainingManifest.load(tiny_records))
    for expected, actual in zip(source.weights, model.weights, strict=True):
        np.testing.assert_array_equal(actual.numpy(), expected.numpy(), expected.path)
    lines = capfd.readouterr().out.splitlines()
    assert lines == [
        f"{preset}:",
        "  encoder: taken over",
        "  masked lm head: taken over",
        "  span boundary head: taken over",
        "  optimizer and schedule: starts fresh",
    ]


def test_head_that_the_preset_lacks_starts_fresh(saved, config, tiny_records, tmp_path, capfd):
    preset = shutil.copytree(saved[1], tmp_path / "preset")
    (preset / "pretraining_heads.npz").unlink()
    (preset / "golden.json").unlink()  # it lists the file
    model = build_pretrainer(config, len(VOCABULARY))
    begin_with_preset(model, str(preset), tiny_records, PretrainingManifest.load(tiny_records))
    assert "span boundary head: starts fresh: the preset has none" in capfd.readouterr().out


@pytest.mark.slow
def test_resumed_run_does_not_read_the_preset_again(
    saved, config, tiny_overrides, tiny_records, tmp_path, capfd
):
    preset, run = str(shutil.copytree(saved[1], tmp_path / "preset")), str(tmp_path / "run")
    run_pretraining(config, tiny_records, run, preset)
    assert "encoder: taken over" in capfd.readouterr().out
    shutil.rmtree(preset)
    longer = load_config("spanbert_base", [*tiny_overrides, "training.steps=3"])
    run_pretraining(longer, tiny_records, run, preset)
    assert "going on after step 2 of 3" in capfd.readouterr().out


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("vocabulary", "lowercase", "message"),
    [
        (
            VOCABULARY,
            True,
            r"text is lower-cased, accents stripped, that of the records in .* cased",
        ),
        ([*SPECIAL, *WORDS[::-1]], False, r"vocabulary is not that of the records .*_hash\)"),
        ([*VOCABULARY, "more"], False, r"vocabulary is not that of the records .*_hash\)"),
    ],
    ids=["case", "order", "size"],
)
def test_preset_that_reads_text_otherwise_is_refused(
    vocabulary, lowercase, message, save_preset, config, tiny_records, tmp_path
):
    _, preset = save_preset(vocabulary, lowercase)
    with pytest.raises(MismatchError, match=message) as raised:
        run_pretraining(config, tiny_records, str(tmp_path / "run"), preset)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_uncased_preset_fits_uncased_records(save_preset, config, tmp_path, capfd):
    records = write_records(
        tmp_path / "records",
        random_records(8, 24),
        random_records(4, 24),
        sequence_length=24,
        lowercase=True,
    )
    _, preset = save_preset(lowercase=True)
    run = tmp_path / "run"
    run_pretraining(config, str(records), str(run), preset)
    assert SpanBertTokenizer.from_preset(str(run / "preset")).lowercase


def test_directory_that_is_no_preset(config, tiny_records, tmp_path):
    os.mkdir(tmp_path / "empty")
    with pytest.raises(BadInputError, match=r"empty: is an empty directory, no preset") as raised:
        run_pretraining(config, tiny_records, str(tmp_path / "run"), str(tmp_path / "empty"))
    assert "\n" not in str(raised.value)


def test_rows_of_the_embedding_without_an_entry_are_left_out(config, tiny_records, tmp_path):
    keras.utils.set_random_seed(7)
    source = build_pretrainer(config, len(VOCABULARY) + 3)  # padded
    random = np.random.default_rng(7)
    source.is_head_trained = True
    source.set_weights([random.normal(size=w.shape) for w in source.get_weights()])
    preset = str(tmp_path / "preset")
    save_pretraining_preset(source, SpanBertTokenizer(VOCABULARY), preset, sequence_length=24)
    model = build_pretrainer(config, len(VOCABULARY))
    begin_with_preset(model, preset, tiny_records, PretrainingManifest.load(tiny_records))
    num_cut = 0
    for expected, actual in zip(source.get_weights(), model.get_weights(), strict=True):
        num_cut += len(expected) > len(actual)
        np.testing.assert_array_equal(actual, expected[: len(actual)])
    assert num_cut == 3  # the embedding, and the output biases of the two heads


def test_accents_must_be_treated_as_in_the_records(save_preset, tiny_records):
    manifest = PretrainingManifest.load(tiny_records)
    manifest = dataclasses.replace(manifest, lowercase=True, strip_accents=True)
    _, preset = save_preset(lowercase=True, strip_accents=False)
    tokenizer = Preset(preset).tokenizer
    with pytest.raises(MismatchError, match=r"accents kept, .* again with --preset "):
        check_tokenizer(tokenizer, preset, tiny_records, manifest)
    of_kept = dataclasses.replace(manifest, strip_accents=False)
    check_tokenizer(tokenizer, preset, tiny_records, of_kept)
    assert tokenizer.text_rules == (True, False, "en")
