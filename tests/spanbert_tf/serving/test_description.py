"""What an export says of itself answers raw inputs as its preset does."""

import gc
import json
import os

import pytest
from tiny_models import ALL_INPUTS, SENTENCE, pipeline_of, tiny_model

from spanbert_tf.errors import BadInputError
from spanbert_tf.serving.description import read_description
from spanbert_tf.tasks.prediction import Predictor, export_preset

TOP_K = 2


CASES = [
    pytest.param(name, marks=[pytest.mark.slow] if name == "coreference" else [])
    for name in ALL_INPUTS
]


@pytest.fixture(scope="module", params=CASES)
def served(request, tmp_path_factory):
    """A preset of each pipeline, and its export."""
    directory = tmp_path_factory.mktemp(request.param)
    model = tiny_model(request.param)
    model.is_head_trained = True
    model.save_to_preset(str(directory / "preset"))
    version = export_preset(str(directory / "preset"), str(directory / "served"), top_k=TOP_K)
    return request.param, str(directory / "preset"), version


def test_an_export_answers_without_its_preset(served):
    """By its version, and by its directory."""
    name, preset, version = served
    assert read_description(version).task == name
    expected = Predictor(preset)
    for path in (version, os.path.dirname(version)):
        found = Predictor(path)
        gc.collect()  # nothing but the predictor holds the weights
        assert (found.task, found.fields, found.labels) == (name, expected.fields, expected.labels)
        answer = found(ALL_INPUTS[name], top_k=TOP_K)
        assert rounded(answer) == rounded(expected(ALL_INPUTS[name], top_k=TOP_K))


def test_an_export_gives_what_was_exported(served):
    _, _, version = served
    expected = "gives 1 to 2 predictions, and not 3; export it with --top-k 3"
    with pytest.raises(BadInputError, match=expected):
        Predictor(version)(SENTENCE, top_k=TOP_K + 1)
    with pytest.raises(BadInputError, match="is an export, which has its own precision"):
        Predictor(version, precision="bfloat16")


def rounded(answer):
    return json.loads(json.dumps(answer), parse_float=lambda text: round(float(text), 4))


def test_an_example_is_a_raw_input(served):
    name, _, version = served
    description = read_description(version)
    pipeline_of(name).check_all(description, [dict(description.example)])


def test_a_description_holds_what_its_model_states(served):
    name, _, version = served
    description = read_description(version)
    model = tiny_model(name)
    assert description == pipeline_of(name).describe(model, TOP_K, description.signature)
    assert description.token_ids["[MASK]"] == model.preprocessor.tokenizer.mask_token_id


@pytest.mark.parametrize("content", ["", "[]", '{"task": 3}', "{" * 10_000, "\x00"])
def test_a_damaged_description_is_named(content, tmp_path):
    path = tmp_path / "assets.extra" / "pipeline.json"
    path.parent.mkdir()
    path.write_text(content)
    with pytest.raises(BadInputError, match=r"pipeline\.json"):
        read_description(str(tmp_path))


def test_an_export_without_a_description_is_named(tmp_path):
    with pytest.raises(BadInputError, match="export the model again"):
        read_description(str(tmp_path))
