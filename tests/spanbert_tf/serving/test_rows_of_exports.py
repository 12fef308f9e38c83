"""Every export takes rows of ids, which a client packs as its README says."""

import re
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from tiny_models import ALL_INPUTS, VOCABULARY, pipeline_of, tiny_model

from spanbert_tf.cli import main
from spanbert_tf.models import SpanBertTextClassifier
from spanbert_tf.presets.writing import write_preset
from spanbert_tf.serving.readme import code_list


def packed_as_the_readme_says(served, model, directory, monkeypatch):
    """What the program in a README of an export calls `inputs`."""
    vocabulary = directory / "assets.extra" / "assets" / "tokenizer" / "vocabulary.txt"
    vocabulary.parent.mkdir(parents=True)
    entries = model.preprocessor.tokenizer.get_vocabulary()
    vocabulary.write_text("".join(f"{entry}\n" for entry in entries))
    monkeypatch.chdir(directory)
    _, rows = served.readme("served").split("## Rows of ids")
    (program,) = re.findall(r"```python\n(.*?)```", rows, re.S)
    names = {}
    exec(program, names)
    return names["inputs"]


def answer(served, name, inputs):
    function, specs = served.signatures[name]
    values = (tf.constant(inputs[spec.name], spec.dtype) for spec in specs)
    return tf.function(function, input_signature=specs)(*values)


@pytest.mark.quick_cases(7)  # each pipeline once
@pytest.mark.parametrize("name", ALL_INPUTS)
@pytest.mark.parametrize("is_lowercase", [True, False])
def test_the_readmes_program_packs_what_the_preprocessor_packs(
    name, is_lowercase, tmp_path, monkeypatch
):
    model = tiny_model(name, is_lowercase)
    pipeline = pipeline_of(name)
    served = pipeline.served(model, 2)
    inputs = packed_as_the_readme_says(served, model, tmp_path, monkeypatch)
    expected = {key: values.numpy() for key, values in pipeline.example_rows(model).items()}
    expected = {key: values for key, values in expected.items() if key in inputs}
    assert expected.keys() == inputs.keys() >= {"token_ids", "padding_mask"}
    if name == "coreference":  # segments are padded to a multiple of positions
        width = len(inputs["token_ids"][0][0])
        for key in ("token_ids", "padding_mask"):
            assert not expected["padding_mask"][0, width:].any()
            expected[key] = expected[key][:, :width]
    for key, values in expected.items():
        np.testing.assert_array_equal(np.array(inputs[key], "int32")[0], values, key)


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name == "coreference" else ())
        for name in ALL_INPUTS
    ],
)
def test_rows_have_the_answers_of_their_texts(name, tmp_path, monkeypatch):
    """By what both signatures return; questions and entities are put together of rows later."""
    model = tiny_model(name)
    random = np.random.default_rng(3)
    model.set_weights([w + random.normal(0, 0.3, w.shape) for w in model.get_weights()])
    served = pipeline_of(name).served(model, 2)
    inputs = packed_as_the_readme_says(served, model, tmp_path, monkeypatch)
    of_rows = answer(served, "token_ids", inputs)
    assert all(values.dtype != tf.string for values in of_rows.values())
    if name == "question_answering":
        expected = model({key: np.array(values) for key, values in inputs.items()})
    elif name == "named_entities":
        x = {key: np.array(values) for key, values in inputs.items()}
        probabilities = tf.nn.softmax(model(x)).numpy()
        expected = {"labels": probabilities.argmax(-1), "scores": probabilities.max(-1)}
    else:
        expected = served.answer_example()
    if name == "relation_extraction":  # those of texts are the best ones
        of_rows = {"probabilities": tf.math.top_k(of_rows["probabilities"], 2).values}
    if name == "fill_mask":  # ids in place of strings
        vocabulary = np.array(VOCABULARY)
        of_rows["fillings"] = vocabulary[of_rows.pop("filling_ids")].astype("S")
    if name == "coreference":
        of_rows, expected = ({"clusters": mentions(found)} for found in (of_rows, expected))
    assert of_rows.keys() <= expected.keys()
    for key, values in of_rows.items():
        if np.array(values).dtype.kind == "S":
            np.testing.assert_array_equal(values, expected[key].numpy().astype("S"))
        else:
            np.testing.assert_allclose(values, expected[key], rtol=1e-4, atol=1e-6, err_msg=key)


def mentions(found):
    """The clusters of the mentions of one document, in their order."""
    clusters = np.array(found["clusters"])
    return clusters[clusters >= 0]


@pytest.mark.slow
def test_an_export_without_operations_of_tensorflow_text_runs_without_it(tmp_path):
    model = tiny_model("text_classification")
    model.is_head_trained = True
    write_preset(model, str(tmp_path / "preset"))
    with pytest.raises(SystemExit) as stop:
        main(
            f"export --preset {tmp_path}/preset --output {tmp_path}/served "
            "--without-text-ops".split()
        )
    assert stop.value.code == 0
    ids = [[2, 5, 6, 7, 3], [2, 9, 3, 0, 0]]
    mask = [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]
    values = f"token_ids={ids};segment_ids={[[0] * 5] * 2};padding_mask={mask}"
    program = (
        "import sys; sys.modules['tensorflow_text'] = None\n"
        "from tensorflow.python.tools.saved_model_cli import main; main()"
    )
    command = (sys.executable, "-c", program, "run", "--dir", str(tmp_path / "served" / "1"))
    options = ("--tag_set", "serve", "--signature_def", "serving_default")
    child = subprocess.run(
        [*command, *options, "--input_exprs", values, "--outdir", str(tmp_path)],
        capture_output=True,
        text=True,
    )
    assert child.returncode == 0, child.stderr[-2000:]
    x = {"token_ids": ids, "segment_ids": [[0] * 5] * 2, "padding_mask": mask}
    loaded = SpanBertTextClassifier.from_preset(str(tmp_path / "preset"))
    expected = tf.nn.softmax(loaded({key: np.array(rows) for key, rows in x.items()}))
    np.testing.assert_allclose(np.load(tmp_path / "probabilities.npy"), expected, rtol=1e-5)
    readme = (tmp_path / "served" / "README.md").read_text()
    assert '"token_ids": [[' in readme and 'response.outputs["probabilities"])  # [1, 2]' in readme
    assert "text" not in re.findall(r"curl -d '(.*?)'", readme)[0]


def test_labels_of_strangers_stay_in_their_span_of_code():
    label = "x` <img src=https://example.org> [y](https://example.org) ``z"
    (span,) = re.findall(r"^(`+) .* \1$", code_list([label, "plain"]).split(", `plain`")[0])
    assert span not in label
