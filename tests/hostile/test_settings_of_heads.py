"""Settings in `task.json` are looked at before a model predicts: lists and loops are as long."""

import json
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf
from tiny_models import tiny_model

from spanbert_tf.errors import SpanBertError
from spanbert_tf.presets.writing import write_preset
from spanbert_tf.tasks.prediction import Predictor
from spanbert_tf.tasks.question_answering.graph import best_spans

TASKS = ("question_answering", "coreference", "text_classification")


@pytest.fixture(scope="module")
def presets(tmp_path_factory):
    directory = tmp_path_factory.mktemp("presets")
    for name in TASKS:
        model = tiny_model(name)
        model.is_head_trained = True
        write_preset(model, str(directory / name))
    return directory


def changed(preset, value, *keys):
    """Sets a value of `task.json`, in `config` of the task or of an object in it."""
    path = pathlib.Path(preset) / "task.json"
    description = json.loads(path.read_text())
    place = description["config"]
    *outer, key = keys
    for name in outer:
        place = place[name]["config"]
    assert key in place
    place[key] = value
    path.write_text(json.dumps(description))


@pytest.mark.parametrize("value", [0, -1, 2**31, 1.5, "x", None, [], {}], ids=str)
@pytest.mark.parametrize(
    ("task", "key"),
    [
        ("question_answering", "stride"),
        ("question_answering", "max_answer_tokens"),
        ("question_answering", "num_candidates"),
        ("coreference", "max_span_width"),
        ("coreference", "depth"),
    ],
)
def test_settings_are_numbers_that_heads_have(task, key, value, presets, tmp_path):
    preset = shutil.copytree(presets / task, tmp_path / "preset")
    changed(preset, value, key)
    with pytest.raises(SpanBertError) as caught:
        Predictor(str(preset))
    message = str(caught.value)
    assert message.startswith(f"{preset}: ") and "\n" not in message


@pytest.mark.parametrize(
    ("task", "keys", "value", "words"),
    [
        ("question_answering", ["num_candidates"], 10**6, "no number from 1 to 10,000"),
        ("question_answering", ["null_threshold"], "x", "could not convert"),
        ("coreference", ["max_span_width"], 10**6, "no number from 1 to 1,000"),
        ("coreference", ["depth"], 10**6, "no number from 1 to 100"),
        ("coreference", ["preprocessor", "sequence_length"], "x", "is 'x', no number from 1 to 2,"),
        ("text_classification", ["preprocessor", "truncate"], "x", "truncate must be one of"),
        ("text_classification", ["preprocessor", "sequence_length"], 2, "must be at least 3"),
        (
            "text_classification",
            ["preprocessor", "sequence_length"],
            2**31 - 1,
            "are those of another model",
        ),
    ],
)
def test_settings_that_cannot_be_used_are_named(task, keys, value, words, presets, tmp_path):
    preset = shutil.copytree(presets / task, tmp_path / "preset")
    changed(preset, value, *keys)
    with pytest.raises(SpanBertError) as caught:
        Predictor(str(preset))
    message = str(caught.value)
    assert message.startswith(f"{preset}: ") and words in message and "\n" not in message


@pytest.mark.parametrize("max_answer_tokens", [1, 3, 6, 7, 2**31 - 1])
def test_the_best_spans_are_the_best_of_all(max_answer_tokens):
    """And rows of six positions have no more than 21, whatever the longest answer may be."""
    random = np.random.default_rng(max_answer_tokens)
    starts, ends = random.normal(size=(2, 2, 6)).astype("float32")
    every = tf.ones([2, 6], tf.bool)
    options = {"max_answer_tokens": max_answer_tokens, "num_spans": 4}
    found = best_spans(tf.constant(starts), tf.constant(ends), every, every, **options)
    for row in range(2):
        spans = [
            (float(starts[row, first] + ends[row, last]), first, last)
            for first in range(6)
            for last in range(first, min(first + max_answer_tokens, 6))
        ]
        expected = sorted(spans, reverse=True)[:4]
        places = zip(found.starts[row].numpy(), found.ends[row].numpy(), strict=True)
        assert list(places) == [(first, last) for _, first, last in expected]
        np.testing.assert_allclose(found.scores[row], [score for score, *_ in expected], rtol=1e-6)
