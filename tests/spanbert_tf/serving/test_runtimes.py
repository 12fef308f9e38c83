"""Exports for other runtimes, each run by its own as its README says."""

import os
import re
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from tiny_models import ALL_INPUTS, LENGTH, VOCABULARY, pipeline_of, tiny_model

from spanbert_tf.cli import main
from spanbert_tf.models import SpanBertBackbone, SpanBertTextClassifier
from spanbert_tf.presets.writing import write_preset

OPTIONS = {"onnx": "", "litert": f"--sequence-length {LENGTH}"}
TASKS = [name for name in ALL_INPUTS if name != "coreference"]


@pytest.fixture(scope="module")
def preset_of(tmp_path_factory):
    """Task → a tiny model with weights that matter, and its preset."""
    directory, made = tmp_path_factory.mktemp("presets"), {}

    def make(name):
        if name not in made:
            model, random = tiny_model(name), np.random.default_rng(3)
            model.set_weights([w + random.normal(0, 0.2, w.shape) for w in model.get_weights()])
            model.is_head_trained = True
            write_preset(model, str(directory / name))
            made[name] = model, str(directory / name)
        return made[name]

    return make


def export(preset, output, options):
    with pytest.raises(SystemExit) as stop:
        main(["export", "--preset", preset, "--output", str(output), *options.split()])
    return stop.value.code


def some_are_quick(names):
    """What of the rest a quick run leaves out differs in the head alone."""
    quick = ("text_classification", "fill_mask")
    return [pytest.param(n, marks=() if n in quick else pytest.mark.slow) for n in names]


def run_in(version, program):
    """Runs a README's program beside its model, in a process of its own."""
    child = subprocess.run(
        [sys.executable, "-c", program], cwd=version, capture_output=True, text=True
    )
    assert child.returncode == 0, child.stderr[-2000:]


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("file_format", OPTIONS)
@pytest.mark.parametrize("name", some_are_quick(TASKS))
def test_each_runtime_answers_the_readmes_rows_as_tensorflow_does(
    name, file_format, preset_of, tmp_path, capfd
):
    model, preset = preset_of(name)
    assert export(preset, tmp_path / "m", f"--format {file_format} {OPTIONS[file_format]}") == 0
    printed = capfd.readouterr().out
    said = re.search(r"/m/1: ([\d,]+) bytes; .* differs by up to (\S+) from", printed)
    assert float(said[2]) < 1e-5
    assert int(said[1].replace(",", "")) > 4 * sum(w.size for w in model.get_weights()) / 2
    programs = re.findall(r"```python\n(.*?)```", (tmp_path / "m" / "README.md").read_text(), re.S)
    save = 'np.savez("outputs.npz", **{name: np.array(values) for name, values in outputs.items()})'
    keep = 'np.savez("inputs.npz", **{name: np.array(rows) for name, rows in inputs.items()})'
    run_in(tmp_path / "m" / "1", "\n".join((*programs, save, keep)))
    inputs, outputs = (
        np.load(tmp_path / "m" / "1" / f"{kind}.npz") for kind in ("inputs", "outputs")
    )
    x = {key: tf.constant(inputs[key], tf.int32) for key in inputs}
    expected = pipeline_of(name).of_rows(model, x, 5)
    assert set(outputs) == expected.keys()
    for key, values in expected.items():
        found = outputs[key]
        if file_format == "litert" and found.shape != values.shape:
            found = found[:, : values.shape[1]]  # of a padded row
        np.testing.assert_allclose(found, values, rtol=0, atol=1e-5, err_msg=key)


@pytest.mark.slow
@pytest.mark.parametrize("options", ["", "--format onnx"])
def test_a_classifier_of_the_mean_of_tokens_is_exported(options, tmp_path, capfd):
    """(The command compares the export's answers with the model's.)"""
    pooler = tiny_model("text_classification")
    model = SpanBertTextClassifier(pooler.backbone, 2, pooler.preprocessor, pooling="mean")
    model.is_head_trained = True
    write_preset(model, str(tmp_path / "preset"))
    assert export(str(tmp_path / "preset"), tmp_path / "m", options) == 0


@pytest.mark.slow
def test_weights_of_8_bits_are_smaller_and_their_difference_is_told(tmp_path, capfd):
    """(LiteRT leaves tensors of less than 1,024 numbers as they are.)"""
    small = tiny_model("text_classification")
    backbone = SpanBertBackbone(len(VOCABULARY), 1, 2, 64, 256, max_sequence_length=LENGTH)
    model = SpanBertTextClassifier(backbone, 2, small.preprocessor)
    model.is_head_trained = True
    write_preset(model, str(tmp_path / "preset"))
    said = []
    for more in ("", "--int8"):
        options = f"--format litert --sequence-length {LENGTH} --overwrite {more}"
        assert export(str(tmp_path / "preset"), tmp_path / "m", options) == 0
        found = re.search(r"([\d,]+) bytes; .* by up to (\S+) from", capfd.readouterr().out)
        said.append((int(found[1].replace(",", "")), float(found[2])))
    (plain, exact), (quantized, rounded) = said
    assert exact < 1e-5 and 1e-5 < rounded < 0.1
    assert quantized < 0.5 * plain


def test_texts_longer_than_the_row_are_cut_by_the_readmes_program(preset_of, tmp_path):
    _, preset = preset_of("text_classification")
    assert export(preset, tmp_path / "m", "--format litert --sequence-length 5") == 0
    readme = (tmp_path / "m" / "README.md").read_text()
    packing, call = re.findall(r"```python\n(.*?)```", readme, re.S)
    program = packing.replace("It rains.", "ann has the cat . " * 9) + call
    check = "assert outputs['probabilities'].shape == (1, 2)"
    run_in(tmp_path / "m" / "1", f"{program}\n{check}")


def test_a_row_of_litert_has_as_many_masks_as_its_text(preset_of, tmp_path):
    """The file takes one place, which the README says; its program runs it once for each."""
    model, preset = preset_of("fill_mask")
    assert export(preset, tmp_path / "m", "--format litert --sequence-length 12") == 0
    readme = (tmp_path / "m" / "README.md").read_text()
    assert "`token_ids` [1, 12], `padding_mask` [1, 12], `mask_positions` [1, 1]." in readme
    packing, call = re.findall(r"```python\n(.*?)```", readme, re.S)
    program = packing.replace("The [MASK] of the function.", "ann [MASK] the [MASK] .") + call
    save = 'np.savez("found.npz", **outputs, **{n: np.array(rows) for n, rows in inputs.items()})'
    run_in(tmp_path / "m" / "1", f"{program}\n{save}")
    found = np.load(tmp_path / "m" / "1" / "found.npz")
    assert found["mask_positions"].tolist() == [[2, 4]]
    names = ("token_ids", "padding_mask", "mask_positions")
    x = {name: tf.constant(found[name], tf.int32) for name in names}
    for name, values in pipeline_of("fill_mask").of_rows(model, x, 5).items():
        np.testing.assert_allclose(found[name], values, rtol=0, atol=1e-5, err_msg=name)


def test_a_server_never_finds_a_version_for_another_runtime(preset_of, tmp_path, capfd):
    _, preset = preset_of("text_classification")
    for first, second in (("", "--format onnx"), ("--format onnx", "")):
        output = tmp_path / f"m{len(first)}"
        assert export(preset, output, first) == 0
        for options in ("--version 2", "--overwrite"):
            assert export(preset, output, f"{second} {options}") == 2
            assert "name another --output" in capfd.readouterr().err
        assert sorted(path.name for path in output.iterdir() if path.is_dir()) == ["1"]


@pytest.mark.parametrize(
    ("name", "options", "line"),
    [
        ("coreference", "--format onnx", "--format onnx: coreference sorts and links spans"),
        ("fill_mask", "--format onnx --int8", "--format onnx: --int8 is of --format litert"),
        ("fill_mask", "--int8", "--sequence-length and --int8 are options of --format litert"),
        ("fill_mask", "--format litert", "--format litert: its rows have one width; give --seq"),
        ("fill_mask", "--format onnx --sequence-length 9", "--format onnx: --sequence-length is"),
        ("fill_mask", "--format onnx --precision bfloat16", "--format onnx: computes in float32"),
        ("fill_mask", "--format litert --sequence-length 17", "--sequence-length 17: the model r"),
        ("fill_mask", "--format litert --sequence-length 3", "Invalid value for '--sequence-len"),
    ],
)
def test_what_does_not_go_together_is_refused(name, options, line, preset_of, tmp_path, capfd):
    _, preset = preset_of(name)
    assert export(preset, tmp_path / "m", options) == 2
    assert capfd.readouterr().err.startswith(f"spanbert-tf: {line}")
    assert not os.path.exists(tmp_path / "m" / "1")


def test_a_runtime_that_is_not_installed_is_named(preset_of, tmp_path, capfd, monkeypatch):
    _, preset = preset_of("fill_mask")
    monkeypatch.setitem(sys.modules, "tf2onnx", None)
    assert export(preset, tmp_path / "m", "--format onnx") == 2
    assert "pip install 'spanbert_tf[onnx]'" in capfd.readouterr().err


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("part", ["backbone", *TASKS])
def test_keras_own_export_to_onnx_loads_and_is_equal(part, preset_of, tmp_path):
    """Exact GELU is an operation that tf2onnx leaves in the file as TensorFlow's."""
    import onnxruntime

    model, _ = preset_of("text_classification" if part == "backbone" else part)
    model = model.backbone if part == "backbone" else model
    path = str(tmp_path / "model.onnx")
    random = np.random.default_rng(1)
    x = {name: random.integers(0, 2, (3, 7)).astype("int32") for name in model.input}
    x["token_ids"] = random.integers(5, 20, (3, 7)).astype("int32")
    x["padding_mask"] = np.sort(x["padding_mask"])[:, ::-1] | (np.arange(7) == 0)
    x = {name: np.ascontiguousarray(values, "int32") for name, values in x.items()}
    expected = keras.tree.flatten(model(x, training=False))
    model.export(path, format="onnx", verbose=False)
    session = onnxruntime.InferenceSession(path)
    found = session.run(None, {put.name: x[put.name] for put in session.get_inputs()})
    assert len(found) == len(expected)
    for values, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(values, wanted, rtol=0, atol=1e-5)


def test_keras_own_export_of_coreference_to_onnx_is_refused(tmp_path):
    model = tiny_model("coreference")
    with pytest.raises(ValueError, match="sorts and links spans"):
        model.export(str(tmp_path / "model.onnx"), format="onnx")
    assert not list(tmp_path.iterdir())
