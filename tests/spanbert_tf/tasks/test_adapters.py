"""Adapters as directories of their own: this project's commands read them, and so does `peft`."""

import contextlib
import json
import math
import os
import pathlib
import shlex
import shutil
import socket
import sys

import numpy as np
import peft
import pytest
import safetensors.torch
import torch
import transformers
from tiny_models import INPUTS, LENGTH, VOCABULARY, tiny_model

from spanbert_tf.cli import main
from spanbert_tf.conversion.convert import convert_checkpoint
from spanbert_tf.errors import BadInputError, MismatchError
from spanbert_tf.models import SpanBertBackbone, SpanBertTextClassifier
from spanbert_tf.models.adapters import merge_adapters, read_adapter, write_adapter
from spanbert_tf.models.keras_hub_presets import weights_digest
from spanbert_tf.presets.preset import Preset
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


LORA = {"lora_rank": RANK, "lora_alpha": ALPHA}


def write_adapted(directory, name, model=None):
    """Writes an encoder, and a task on it of random adapters, pooler and head, in both ways."""
    model, random = model or tiny_model(name, **LORA), np.random.default_rng(5)

    def move(variables):
        for variable in variables:
            variable.assign_add(random.normal(0, 0.3, variable.shape))

    backbone = model.backbone
    move(weight for weight in backbone.weights if "lora" not in weight.path)
    encoder, preset = str(directory / "encoder"), str(directory / "preset")
    whole = merge_adapters(model)  # B is 0 so far
    write_preset(whole.backbone, encoder, tokenizer=model.preprocessor.tokenizer)
    digest = weights_digest(backbone)
    assert digest == weights_digest(whole.backbone)
    backbone.pooled_dense.trainable = model.reads_pooler
    move(model.trainable_variables)
    model.is_head_trained = True
    write_preset(merge_adapters(model), preset)
    adapter = str(directory / "adapter")
    write_adapter(model, adapter, preset=preset, encoder=encoder, digest=digest)
    return model, adapter


@pytest.fixture(scope="module", params=TASKS)
def adapted(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp(request.param)
    model, _ = write_adapted(directory, request.param)
    return request.param, directory, model


def test_a_head_that_reads_no_pooler_is_not_one_of_transformers(tmp_path):
    base = tiny_model("text_classification", **LORA)
    options = {"preprocessor": base.preprocessor, "pooling": "mean"}
    model = SpanBertTextClassifier(base.backbone, 2, **options)
    _, adapter = write_adapted(tmp_path, "text_classification", model)
    settings = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert settings["task_type"] is settings["modules_to_save"] is None
    rows = model.preprocessor(["ann has the cat .", "bob"])
    loaded = Preset(adapter).trained_task(SpanBertTextClassifier)
    np.testing.assert_allclose(loaded(rows), model(rows), atol=1e-5)


@pytest.fixture(scope="module")
def whole_answerer(tmp_path_factory):
    directory = tmp_path_factory.mktemp("answerer")
    write_adapted(directory, "question_answering")
    return directory


@pytest.fixture
def answerer(whole_answerer, tmp_path):
    """A question answerer's adapter, which a test may damage."""
    shutil.copytree(whole_answerer, tmp_path, dirs_exist_ok=True)
    adapter = str(tmp_path / "adapter")
    edit_config(adapter, base_model_name_or_path=str(tmp_path / "encoder"))
    return adapter


@pytest.mark.quick_cases(2)
def test_it_is_the_preset_with_the_products_in_its_kernels(adapted):
    _, directory, model = adapted
    adapter, preset = str(directory / "adapter"), str(directory / "preset")
    assert not [file for file in os.listdir(adapter) if file.startswith("model") and "h5" in file]
    for precision in ("float32", "bfloat16"):
        loaded, expected = (
            Preset(p).trained_task(type(model), precision) for p in (adapter, preset)
        )
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
            Preset(answerer).task(tiny_class(), dtype=precision)
        message = str(error.value)
        assert "\n" not in message and answerer in message and other in message
        assert "give that one as SPANBERT_TF_ENCODER=" in message


def test_an_encoder_that_was_moved_is_given_anew(answerer, tmp_path, monkeypatch):
    encoder, moved = str(tmp_path / "encoder"), str(tmp_path / "moved")
    shutil.move(encoder, moved)
    with pytest.raises(BadInputError, match=rf"{answerer}: its encoder {encoder} is no preset"):
        Preset(answerer).task(tiny_class())
    with monkeypatch.context() as patch:
        patch.setenv("SPANBERT_TF_ENCODER", moved)
        Preset(answerer).task(tiny_class())
    edit_config(answerer, base_model_name_or_path=moved)
    Preset(answerer).task(tiny_class())
    edit_config(answerer, base_model_name_or_path=answerer)  # and no end
    with pytest.raises(BadInputError, match="is no preset"):
        Preset(answerer).task(tiny_class())


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
            Preset(answerer).task(tiny_class())
        assert answerer in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"r": 4}, r"adapter_model.safetensors: encoder.layer.0.* has shape \[3, 8\].*\[4, 8\]"),
        ({"r": "3"}, r"adapter_config.json: r: "),
        ({"r": 0}, r"adapter_config.json: r: should be greater than or equal to 1"),
        ({"lora_alpha": math.nan}, r"adapter_config.json: lora_alpha: should be a finite number"),
        ({"lora_alpha": -math.inf}, r"adapter_config.json: lora_alpha: should be a finite number"),
        ({"lora_alpha": 10**400}, r"adapter_config.json: lora_alpha: "),
        ({"lora_alpha": 1e300}, r"adapter_config.json: lora_alpha is 1e\+300, with which its"),
        ({"target_modules": []}, r"adapter_config.json: target_modules: "),
        ({"target_modules": ["query"]}, r"value.lora_A.weight', and target_modules in .* not name"),
        (
            {"target_modules": ["query", "key", "value"]},
            r"layer.0.attention.self.key.lora_A.* is missing",
        ),
        ({"target_modules": ["dense"]}, r"target_modules has others than query, key, value"),
        ({"modules_to_save": ["pooler"]}, r"adapter_model.safetensors lacks the pooler"),
    ],
)
def test_what_does_not_fit_its_arrays_is_named(answerer, values, message):
    edit_config(answerer, **values)
    with pytest.raises(BadInputError, match=message):
        Preset(answerer).task(tiny_class())


def change_array(answerer, change):
    """Has another value, or none, for the matrices of queries."""
    path = pathlib.Path(answerer) / "adapter_model.safetensors"
    with safetensors.safe_open(path, "pt") as file:
        metadata = file.metadata()
    arrays = safetensors.torch.load_file(path)
    for name in [name for name in arrays if "query.lora_A" in name]:
        arrays[name] = change(arrays[name])
    safetensors.torch.save_file(arrays, path, metadata)
    golden = pathlib.Path(answerer) / "golden.json"
    golden.unlink()  # as a stranger would, who knows of its checksums


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda array: array.to(torch.int8), "has the type I8, and one of F16, F32, F64"),
        (lambda array: array > 0, "has the type BOOL, and one of"),
        (lambda array: array.to(torch.float8_e4m3fn), "has the type F8_E4M3, and one of"),
        (lambda array: array * math.nan, "holds NaN or infinity"),
        (lambda array: array / 0, "holds NaN or infinity"),
    ],
)
def test_matrices_of_other_numbers_are_named(answerer, change, message):
    change_array(answerer, change)
    with pytest.raises(BadInputError, match=message) as error:
        Preset(answerer).task(tiny_class())
    text = str(error.value)
    assert (
        text.startswith(f"{answerer}/adapter_model.safetensors: 'base_model.") and "\n" not in text
    )


def test_a_pooler_without_its_bias_is_named(tmp_path):
    _, adapter = write_adapted(tmp_path, "text_classification")
    path = pathlib.Path(adapter) / "adapter_model.safetensors"
    with safetensors.safe_open(path, "pt") as file:
        metadata = file.metadata()
    whole = safetensors.torch.load_file(path)
    (pathlib.Path(adapter) / "golden.json").unlink()
    for parts, message in (
        (["pooler.dense.bias"], "pooler.dense.bias is missing"),
        (["pooler.dense.weight"], "lacks the pooler"),
        (["pooler.dense.weight", "pooler.dense.bias"], "lacks the pooler"),
    ):
        left = {name: a for name, a in whole.items() if not name.endswith(tuple(parts))}
        safetensors.torch.save_file(left, path, metadata)
        with pytest.raises(BadInputError, match=message):
            Preset(adapter).task(type(tiny_model("text_classification")))


@pytest.mark.parametrize(
    "name", ["hf://us/encoder", "gs://bucket/encoder", "file:///etc", "kaggle://a/b/keras/c"]
)
def test_nothing_is_fetched_that_an_adapter_names(name, answerer, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("asks the network"))
    edit_config(answerer, base_model_name_or_path=f"{name}\x1b]0;title\x07")
    for load in (lambda preset: Preset(preset).task(tiny_class()), tiny_class().from_preset):
        with pytest.raises(BadInputError, match="nothing is fetched for an adapter") as error:
            load(answerer)
        assert "download it if you trust it, and name its directory" in str(error.value)
    with pytest.raises(SystemExit):
        main(["export", "--preset", answerer, "--output", str(tmp_path / "served")])
    said = capsys.readouterr().err
    assert f"{name}\\x1b]0;title\\x07" in said and said.rstrip("\n").isprintable()


def test_an_encoder_is_named_from_where_its_adapter_lies(answerer, tmp_path, monkeypatch):
    edit_config(answerer, base_model_name_or_path="../encoder")
    monkeypatch.chdir("/")
    Preset(answerer).task(tiny_class())
    shutil.move(tmp_path / "encoder", tmp_path / "adapter" / "inside")
    edit_config(answerer, base_model_name_or_path="inside")
    Preset(answerer).task(tiny_class())


@contextlib.contextmanager
def opened_below(folder):
    """The files below a folder that Python opens in this block."""
    opened = []
    is_over = False

    def look(event, arguments):
        if event == "open" and not is_over:
            path = os.path.realpath(os.fsdecode(arguments[0]))
            opened.extend([path] if path.startswith(str(folder)) else [])

    sys.addaudithook(look)  # of Python itself; it stays for the process, and is idle
    yield opened
    is_over = True


@pytest.mark.parametrize("form", ["absolute", "relative", "link", "chain"])
def test_an_encoder_elsewhere_is_read_if_the_user_gives_it(form, answerer, tmp_path, monkeypatch):
    private = tmp_path.with_name(f"{tmp_path.name}-private")
    shutil.move(tmp_path / "encoder", private / "encoder")
    elsewhere = str(private / "encoder")
    named = {
        "absolute": elsewhere,
        "relative": f"../../{private.name}/encoder",
        "link": "../linked",
        "chain": "folder/linked",
    }[form]
    (tmp_path / "linked").symlink_to(elsewhere)
    (tmp_path / "adapter" / "folder").symlink_to("..")
    edit_config(answerer, base_model_name_or_path=named)
    for load in (lambda preset: Preset(preset).task(tiny_class()), tiny_class().from_preset):
        with (
            opened_below(private) as opened,
            pytest.raises(BadInputError, match="does not lie beside it, and no other") as error,
        ):
            load(answerer)
        assert "\n" not in str(error.value) and not opened
    given = str(error.value).rpartition("SPANBERT_TF_ENCODER=")[2]
    monkeypatch.setenv("SPANBERT_TF_ENCODER", *shlex.split(given))
    with opened_below(private) as opened:
        Preset(answerer).task(tiny_class())
    assert f"{elsewhere}/config.json" in opened


@pytest.mark.parametrize("named", ["", ".", "..", "/", "\0", "../\0", "~", "x" * 5_000])
def test_odd_names_of_an_encoder_are_one_line(named, answerer):
    edit_config(answerer, base_model_name_or_path=named)
    with pytest.raises(BadInputError, match=rf"^{answerer.removesuffix('/adapter')}.*: .*$"):
        Preset(answerer).task(tiny_class())


@pytest.mark.parametrize("name", ["config.json", "task.json", "model.weights.h5"])
def test_the_encoder_goes_through_the_door_of_presets(name, answerer, tmp_path):
    path = tmp_path / "encoder" / name
    path.unlink(missing_ok=True)
    os.mkfifo(path)  # whoever opens it waits for ever
    for load in (lambda preset: Preset(preset).task(tiny_class()), tiny_class().from_preset):
        with pytest.raises(BadInputError, match="is no regular file") as error:
            load(answerer)
        assert str(path) in str(error.value)


def test_classes_and_sizes_of_the_encoder_are_looked_at(answerer, tmp_path):
    path = tmp_path / "encoder" / "config.json"
    whole = json.loads(path.read_text())
    for change, message in (
        ({"module": "keras_cv.x", "registered_name": "X"}, "config.json names 'keras_cv.x."),
        ({"config": whole["config"] | {"num_layers": 10**8}}, "are those of another model"),
    ):
        path.write_text(json.dumps(whole | change))
        with pytest.raises(BadInputError, match=message) as error:
            Preset(answerer).task(tiny_class())
        assert str(tmp_path / "encoder") in str(error.value)


def test_one_that_is_trained_further_computes_the_same_at_first(answerer):
    """Its alpha is not its rank, which a new adapter's is."""
    assert ALPHA != RANK
    merged = Preset(answerer).trained_task(tiny_class())
    adapter = read_adapter(answerer)
    encoder = answerer.replace("adapter", "encoder")
    backbone = SpanBertBackbone.from_preset(encoder, **adapter.options)
    adapter.assign_to(backbone)
    inputs = {"token_ids": ROWS, "segment_ids": 0 * ROWS, "padding_mask": 0 * ROWS + 1}
    expected, found = (model(inputs, training=False) for model in (merged.backbone, backbone))
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], atol=1e-5)
