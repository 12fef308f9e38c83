"""`compare --initial-preset`: all begin with one encoder, in its shape."""

import csv

import keras
import numpy as np
import pytest
from record_files import VOCABULARY

from spanbert_tf.config import load_config
from spanbert_tf.console import DataConsole
from spanbert_tf.errors import MismatchError
from spanbert_tf.models import SpanBertBackbone, SpanBertTokenizer
from spanbert_tf.studies.comparison import compare_systems

pytestmark = pytest.mark.slow

STEPS = 10
SETTINGS = ["training.batch_size=4", "training.log_every=1"]


def save_encoder(directory, seed, vocabulary=VOCABULARY):
    keras.utils.set_random_seed(seed)
    sizes = {"num_layers": 1, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 24}
    SpanBertBackbone(len(vocabulary), **sizes).save_to_preset(str(directory))
    SpanBertTokenizer(vocabulary).save_to_preset(str(directory))
    return str(directory)


@pytest.fixture(scope="module")
def compared(tiny_records, tmp_path_factory):
    directory = tmp_path_factory.mktemp("ways")
    preset = save_encoder(directory / "preset", 7)
    alone, output = directory / "heads_alone.yaml", directory / "output"
    alone.write_text("base: continue\ntraining:\n  head_steps: 1000000\n")
    console = DataConsole(record=True, width=160)
    results = compare_systems(
        ["continue", "spanbert_base", str(alone)],
        tiny_records,
        str(output),
        steps=STEPS,
        seeds=[1],
        overrides=SETTINGS,
        initial_preset=preset,
        console=console,
    )
    return preset, output, results, console.export_text()


def weights(preset):
    return np.concatenate(
        [w.ravel() for w in SpanBertBackbone.from_preset(str(preset)).get_weights()]
    ).astype("float64")


def test_change_is_that_of_the_saved_encoders(compared):
    preset, output, results, text = compared
    before = weights(preset)
    for result, name in zip(results, ["continue", "spanbert_base", "heads_alone"], strict=True):
        after = weights(output / "runs" / f"{name}-seed1" / "preset")
        expected = np.linalg.norm(after - before) / np.linalg.norm(before)
        assert result.encoder_change == pytest.approx(expected, rel=1e-6)
        assert f"{result.encoder_change:.3f}" in text
    assert [result.encoder_change > 0 for result in results] == [True, True, False]
    rows = list(csv.DictReader((output / "results.csv").read_text().splitlines()))
    assert [float(row["encoder_change"]) for row in rows] == [r.encoder_change for r in results]


def test_ways_keep_their_method_in_one_shape_and_time(compared):
    _, output, *_ = compared
    found = {
        name: load_config(str(output / "runs" / f"{name}-seed1" / "config.yaml"))
        for name in ("continue", "spanbert_base", "heads_alone")
    }
    for config in found.values():
        assert (config.model.num_layers, config.model.hidden_dim) == (1, 16)
        assert (config.training.steps, config.training.schedule_steps) == (STEPS, STEPS)
    # A fifth of the steps, as of 2,000.
    assert [c.training.head_steps for c in found.values()] == [2, 0, 5000]
    assert [c.objectives.output_bias for c in found.values()] == ["unigrams", "zeros", "unigrams"]
    assert [c.optimizer.learning_rate for c in found.values()] == [5e-4, 1e-4, 5e-4]


def test_another_encoder_is_refused_in_the_same_directory(compared, tiny_records, tmp_path):
    _, output, *_ = compared
    other = save_encoder(tmp_path / "other", 8)
    with pytest.raises(MismatchError, match="begun with another --initial-preset"):
        compare_systems(
            ["continue"],
            tiny_records,
            str(output),
            steps=STEPS,
            seeds=[1],
            overrides=SETTINGS,
            initial_preset=other,
        )


def test_encoder_of_another_vocabulary_is_refused_before_any_training(tiny_records, tmp_path):
    other = save_encoder(tmp_path / "other", 7, [*VOCABULARY, "more"])
    with pytest.raises(MismatchError, match="vocabulary is not that of the records"):
        compare_systems(
            ["continue"],
            tiny_records,
            str(tmp_path / "output"),
            steps=STEPS,
            seeds=[1],
            overrides=SETTINGS,
            initial_preset=other,
        )
    assert not (tmp_path / "output").exists()
