"""The shape of a run comes from its preset, and from the run itself once it has begun."""

import json
import subprocess
import sys

import numpy as np
import pytest

from spanbert_tf.config import load_config, load_run_config
from spanbert_tf.errors import BadInputError, ConfigurationError

ENCODER = {
    "vocabulary_size": 60,
    "num_layers": 3,
    "num_heads": 5,
    "hidden_dim": 35,
    "intermediate_dim": 77,
    "dropout": 0.05,
    "max_sequence_length": 768,
    "num_segments": 2,
    "layer_norm_epsilon": 1e-7,
    "position_embeddings": "absolute",
    "num_paragraphs": 51,
    "num_sentences": 49,
    "max_sentence_length": 512,
    "attention_dropout": 0.0,
}
SHAPE = {name: ENCODER[name] for name in ENCODER if name not in ("vocabulary_size", "num_segments")}


def write_preset(directory, class_name="SpanBertBackbone", head_shape=None, **changed):
    directory.mkdir()
    saved = {"class_name": class_name, "config": ENCODER | changed}
    (directory / "config.json").write_text(json.dumps(saved))
    if head_shape:
        name = "span_boundary_head/position_embedding/embeddings"
        np.savez(directory / "pretraining_heads.npz", **{name: np.zeros(head_shape)})
    return str(directory)


def load(tmp_path, preset, overrides=(), name="continue"):
    return load_run_config(name, overrides, preset=preset, run=str(tmp_path / "run"))


def test_shape_is_the_presets(tmp_path):
    config = load(tmp_path, write_preset(tmp_path / "preset"))
    assert config.model.encoder_options() == SHAPE
    assert config.model.from_preset
    plain = load_config("continue")  # the preset has no further heads: theirs are the defaults
    assert config.objectives == plain.objectives
    assert (config.masking, config.training) == (plain.masking, plain.training)


def test_sizes_of_the_presets_head_follow(tmp_path):
    config = load(tmp_path, write_preset(tmp_path / "preset", head_shape=(15, 24)))
    assert (config.masking.max_span_targets, config.objectives.span_position_dim) == (15, 24)


def test_what_is_written_lies_over_the_preset(tmp_path):
    preset = write_preset(tmp_path / "preset", head_shape=(15, 24))
    overrides = ["model.dropout=0.2", "model.num_layers=4", "masking.max_span_targets=9"]
    config = load(tmp_path, preset, overrides)
    assert config.model.encoder_options() == SHAPE | {"dropout": 0.2, "num_layers": 4}
    assert (config.masking.max_span_targets, config.objectives.span_position_dim) == (9, 24)


def test_configuration_that_does_not_ask_for_it_keeps_its_shape(tmp_path):
    preset = write_preset(tmp_path / "preset", head_shape=(15, 24))
    assert load(tmp_path, preset, name="spanbert_base") == load_config("spanbert_base")


def test_a_file_of_ones_own_that_has_continue_as_its_base(tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text("base: continue\ntraining:\n  head_steps: 0\n")
    config = load(tmp_path, write_preset(tmp_path / "preset"), name=str(mine))
    assert (config.model.num_layers, config.training.head_steps) == (3, 0)


def test_run_that_has_begun_keeps_its_shape(tmp_path):
    preset = write_preset(tmp_path / "preset", head_shape=(15, 24))
    begun = load(tmp_path, preset)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text(begun.to_yaml())
    other = write_preset(tmp_path / "other", num_layers=7)
    assert load(tmp_path, other) == load(tmp_path, None) == begun
    assert load_config(str(tmp_path / "run" / "config.yaml")) == begun


def message_of(tmp_path, preset, overrides=()):
    with pytest.raises((ConfigurationError, BadInputError)) as raised:
        load(tmp_path, preset, overrides)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_without_a_preset_it_says_what_is_missing(tmp_path):
    message = message_of(tmp_path, None)
    assert "continue.yaml: line " in message and "give it as --initial-preset" in message


def test_preset_of_another_class_is_refused(tmp_path):
    preset = write_preset(tmp_path / "preset", class_name="BertBackbone")
    assert f"{preset}: no preset of a SpanBertBackbone but of a BertBackbone" in message_of(
        tmp_path, preset
    )


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        '{"config": {}}',
        '{"class_name": 1}',
        '{"class_name": "SpanBertBackbone", "config": 1}',
    ],
)
def test_damaged_description_is_named(content, tmp_path):
    preset = write_preset(tmp_path / "preset")
    (tmp_path / "preset" / "config.json").write_text(content)
    assert f"{preset}: config.json" in message_of(tmp_path, preset)


def test_directory_that_is_no_preset(tmp_path):
    (tmp_path / "empty").mkdir()
    assert "is an empty directory, no preset" in message_of(tmp_path, str(tmp_path / "empty"))


def test_wrong_value_in_a_preset_names_the_preset(tmp_path):
    preset = write_preset(tmp_path / "preset", num_layers="three")
    message = message_of(tmp_path, preset)
    assert message.startswith(f"{preset}: model.num_layers: 'three' must be a valid integer")


def test_rows_longer_than_the_presets_positions(tmp_path):
    """The proposal fits: the table of positions cannot grow."""
    preset = write_preset(tmp_path / "preset", max_sequence_length=128)
    message = message_of(tmp_path, preset)
    assert "data.sequence_length: 512 is more than model.max_sequence_length (128)" in message
    proposal = message.rpartition("--set ")[2]
    assert load(tmp_path, preset, [proposal]).data.sequence_length == 128


@pytest.mark.parametrize("has_preset", [False, True])
def test_a_mistake_is_reported_before_tensorflow_is_imported(has_preset, tmp_path):
    command = ["pretrain", "--config", "continue", "--data", str(tmp_path)]
    command += ["--output", str(tmp_path / "run")]
    if has_preset:
        preset = write_preset(tmp_path / "preset")
        command += ["--initial-preset", preset, "--set", "training.stepz=5"]
    program = (
        "import sys, spanbert_tf.cli\n"
        "try:\n"
        f"    spanbert_tf.cli.main({command!r})\n"
        "finally:\n"
        "    print(sorted({'tensorflow', 'keras'} & set(sys.modules)))\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (result.returncode, result.stdout.strip()) == (2, "[]"), result.stderr
    assert ("training.stepz" if has_preset else "--initial-preset") in result.stderr
    assert result.stderr.count("\n") == 1
