"""Sources that cannot be converted: one line that names file and key, and nothing written."""

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile

import keras_hub
import pytest
import tensorflow as tf
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch_models import VOCABULARY, save_torch_model, torch_model

from spanbert_tf.conversion.convert import convert_checkpoint
from spanbert_tf.errors import SpanBertError


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return save_torch_model(torch_model(), tmp_path_factory.mktemp("whole"))


@pytest.fixture
def source(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "source")


def edit_json(path, **changes):
    content = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not ...}))


class Intruder:
    """Runs code when it is unpickled."""

    def __reduce__(self):
        return os.system, ("touch /tmp/spanbert_tf_intruder",)


def no_config(source):
    (source / "config.json").unlink()


def broken_config(source):
    (source / "config.json").write_text("{")


def missing_key(source):
    edit_json(source / "config.json", hidden_size=...)


def wrong_type(source):
    edit_json(source / "config.json", num_hidden_layers="two")


def other_activation(source):
    edit_json(source / "config.json", hidden_act="gelu_new")


def other_model(source):
    edit_json(source / "config.json", model_type="roberta")


def other_shape(source):
    edit_json(source / "config.json", intermediate_size=36)


def one_layer_more(source):
    edit_json(source / "config.json", num_hidden_layers=3)


def no_weights(source):
    (source / "model.safetensors").unlink()


def short_weights(source):
    file = source / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def code_in_pickle(source):
    (source / "model.safetensors").unlink()
    torch.save({"a": Intruder()}, source / "pytorch_model.bin")


def no_pickle(source):
    (source / "model.safetensors").unlink()
    (source / "pytorch_model.bin").write_bytes(b"PK\x03\x04 not at all")


def no_vocabulary(source):
    (source / "vocab.txt").unlink()


def long_vocabulary(source):
    (source / "vocab.txt").write_text("\n".join([*VOCABULARY, "one", "more"]))


def unstated_casing(source):
    (source / "tokenizer_config.json").unlink()


def ids_with_a_gap(source):
    (source / "vocab.txt").unlink()
    ids = {piece: number + (number > 4) for number, piece in enumerate(VOCABULARY)}
    (source / "tokenizer.json").write_text(json.dumps({"model": {"vocab": ids}}))


def other_tokenizer(source):
    edit_json(source / "tokenizer_config.json", tokenizer_class="BertJapaneseTokenizer")


def other_pieces(source):
    (source / "tokenizer.json").write_text(json.dumps({"model": {"type": "BPE"}}))


def other_prefix(source):
    model = {"type": "WordPiece", "continuing_subword_prefix": ""}
    (source / "tokenizer.json").write_text(json.dumps({"model": model}))


def whole_chinese_words(source):
    edit_json(source / "tokenizer_config.json", tokenize_chinese_chars=False)


def whole_chinese_words_of_the_tokenizer(source):
    normalizer = {"type": "BertNormalizer", "handle_chinese_chars": False}
    (source / "tokenizer.json").write_text(json.dumps({"normalizer": normalizer}))


CASES = {
    other_tokenizer: 'tokenizer_config.json: tokenizer_class is "BertJapaneseTokenizer"',
    other_pieces: 'tokenizer.json: model.type is "BPE"',
    other_prefix: 'tokenizer.json: model.continuing_subword_prefix is ""',
    whole_chinese_words: "states that Chinese characters are not split into words of their own",
    whole_chinese_words_of_the_tokenizer: "Chinese characters are not split into words of",
    ids_with_a_gap: r"tokenizer.json: no piece has the id 5, and 18 pieces need the ids from 0 to",
    no_config: "holds no config.json",
    broken_config: "config.json: cannot be read as JSON",
    missing_key: "config.json: lacks hidden_size",
    wrong_type: 'config.json: num_hidden_layers is "two", no positive integer',
    other_activation: "hidden_act is 'gelu_new'; only 'gelu'",
    other_model: "model_type is 'roberta'",
    other_shape: r"dense.weight has shape \[37, 32\], the configuration says \[36, 32\]",
    one_layer_more: "lacks bert.encoder.layer.2.attention.self.query.weight",
    no_weights: "holds no model.safetensors or pytorch_model.bin",
    short_weights: "model.safetensors: is damaged",
    code_in_pickle: r"pytorch_model.bin: holds more than tensors \((os|posix).system\)",
    no_pickle: "pytorch_model.bin: is damaged",
    no_vocabulary: "holds no vocabulary; give it with --vocabulary",
    long_vocabulary: "has 20 entries, the token embedding 18",
    unstated_casing: "does not state whether it is cased; give --cased or --lowercase",
}


def refused(tmp_path, words, *arguments, **options):
    destination = tmp_path / "destination"
    with pytest.raises(SpanBertError, match=words) as caught:
        convert_checkpoint(*arguments, str(destination), **options)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("destination*"))


@pytest.mark.parametrize(
    ("spoil", "words"), CASES.items(), ids=lambda case: getattr(case, "__name__", "")
)
def test_one_line_names_the_file_and_the_key(spoil, words, source, tmp_path):
    spoil(source)
    refused(tmp_path, words, "huggingface", "keras", str(source))
    assert not os.path.exists("/tmp/spanbert_tf_intruder")


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("bert.embeddings.position_embeddings.weight", []),
        ("bert.embeddings.word_embeddings.weight", [18]),
        ("cls.pair_target_predictions.position_embeddings.weight", [5]),
        ("coreference.span_width_embeddings", [3]),
        ("classifier.weight", []),
    ],
)
def test_tensors_of_other_axes_are_refused(name, shape, source, tmp_path):
    file = source / "model.safetensors"
    tensors = load_file(file) | {"classifier.bias": torch.zeros(2), name: torch.zeros(shape)}
    save_file(tensors, file, {"format": "pt"})
    edit_json(source / "config.json", architectures=["BertForTokenClassification"])
    words = rf"{name.removeprefix('classifier')} has shape \[{', '.join(map(str, shape))}\]"
    refused(tmp_path, words, "huggingface", "keras", str(source))


def test_stated_casing_is_not_overruled(source, tmp_path):
    refused(tmp_path, "states --lowercase", "huggingface", "keras", str(source), lowercase=False)


@pytest.mark.parametrize("name", ["../outside.txt", "/tmp/outside.txt", "link"])
def test_archives_stay_inside(name, tmp_path):
    path = str(tmp_path / "archive.tar.gz")
    with tarfile.open(path, "w:gz") as archive:
        member = tarfile.TarInfo(name)
        content = b"x"
        if name == "link":
            member.type, member.linkname, content = tarfile.SYMTYPE, "/etc/passwd", b""
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    refused(tmp_path, "archive.tar.gz: ", "huggingface", "keras", path)
    assert not os.path.exists("/tmp/outside.txt")
    assert not (tmp_path.parent / "outside.txt").exists()


@pytest.mark.parametrize("content", [b"", b"no archive", b"\x1f\x8b\x08\x00broken"])
def test_what_is_no_archive(content, tmp_path):
    (tmp_path / "archive.tar.gz").write_bytes(content)
    refused(tmp_path, "archive", "huggingface", "keras", str(tmp_path / "archive.tar.gz"))


@pytest.mark.parametrize("source_format", ["huggingface", "fairseq", "tf1", "keras"])
def test_nothing_there(source_format, tmp_path):
    refused(tmp_path, "nothing", source_format, "keras", str(tmp_path / "nothing"), lowercase=True)


def test_changed_weights_of_a_preset_are_noticed(whole, tmp_path):
    preset = tmp_path / "preset"
    convert_checkpoint("huggingface", "keras", str(whole), str(preset))
    weights = preset / "model.weights.h5"
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)
    refused(tmp_path, "model.weights.h5 is not the file that", "keras", "tf1", str(preset))


def test_changed_computation_of_a_preset_is_noticed(whole, tmp_path):
    preset = tmp_path / "preset"
    convert_checkpoint("huggingface", "keras", str(whole), str(preset))
    for name in ("config.json", "task.json"):
        text = (preset / name).read_text()
        (preset / name).write_text(text.replace("1e-12", "0.1"))
    refused(tmp_path, r"is [\d.]+% off golden.json", "keras", "tf1", str(preset))


def test_sega_bert_has_no_place_elsewhere(tmp_path):
    from spanbert_tf.models import SpanBertBackbone, SpanBertTokenizer

    backbone = SpanBertBackbone(
        len(VOCABULARY), 1, 2, 8, 8, max_sequence_length=16, position_embeddings="segment_aware"
    )
    backbone.save_to_preset(str(tmp_path / "preset"))
    SpanBertTokenizer(VOCABULARY).save_to_preset(str(tmp_path / "preset"))
    refused(tmp_path, "has SegaBERT's positions", "keras", "tf1", str(tmp_path / "preset"))


def test_keras_hubs_other_models_are_refused(tmp_path):
    preset = str(tmp_path / "preset")
    keras_hub.models.DistilBertBackbone(len(VOCABULARY), 1, 2, 8, 8).save_to_preset(preset)
    keras_hub.models.DistilBertTokenizer(VOCABULARY).save_to_preset(preset)
    refused(tmp_path, r"names '.*\.DistilBertBackbone', which is no class", "keras", "tf1", preset)


def test_command_line_exits_with_2(source, tmp_path):
    missing_key(source)
    command = [sys.executable, "-m", "spanbert_tf.cli", "convert", "--from", "huggingface"]
    command += ["--to", "keras", str(source), str(tmp_path / "preset")]
    child = subprocess.run(command, capture_output=True, text=True)
    assert child.returncode == 2
    assert child.stderr.splitlines() == [f"spanbert-tf: {source}: config.json: lacks hidden_size"]


def test_a_file_of_weights_is_no_directory(source, tmp_path):
    path = str(source / "model.safetensors")
    words = f"is a file of weights; name the directory that holds it .*{source}$"
    refused(tmp_path, words, "huggingface", "keras", path)


def test_a_source_is_not_written_over(whole, tmp_path):
    preset = str(tmp_path / "preset")
    convert_checkpoint("huggingface", "keras", str(whole), preset)
    with pytest.raises(SpanBertError, match="SRC and DST at once"):
        convert_checkpoint("keras", "keras", preset, f"{preset}/", overwrite=True)


def change_weight(source, change, name="bert.encoder.layer.0.output.dense.weight"):
    arrays = load_file(source / "model.safetensors")
    arrays[name] = change(arrays[name]).contiguous()
    save_file(arrays, source / "model.safetensors")


@pytest.mark.parametrize("target", ["keras", "keras_bert", "tf1", "model_garden"])
@pytest.mark.parametrize("value", ["nan", "inf"])
def test_weights_that_are_not_finite_are_named(target, value, source, tmp_path):
    change_weight(source, lambda array: array * float(value))
    words = "'bert.encoder.layer.0.output.dense.weight' holds NaN or infinity"
    refused(tmp_path, words, "huggingface", target, str(source))


@pytest.mark.parametrize(
    ("kind", "name", "name_in_safetensors"),
    [
        (torch.int8, "int8", "I8"),
        (torch.bool, "bool", "BOOL"),
        (torch.int64, "int64", "I64"),
        (torch.float8_e4m3fn, "float8_e4m3fn", "F8_E4M3"),
    ],
)
@pytest.mark.parametrize("is_pickled", [False, True])
def test_weights_of_other_numbers_are_named(
    kind, name, name_in_safetensors, is_pickled, source, tmp_path
):
    change_weight(source, lambda array: array.to(kind))
    if is_pickled:
        torch.save(load_file(source / "model.safetensors"), source / "pytorch_model.bin")
        (source / "model.safetensors").unlink()
    shown = name if is_pickled else name_in_safetensors
    words = f"'bert.encoder.layer.0.output.dense.weight' has the type {shown}, and only float16"
    refused(tmp_path, words, "huggingface", "keras", str(source))


def test_variables_of_other_numbers_are_named(whole, tmp_path):
    convert_checkpoint("huggingface", "tf1", str(whole), str(tmp_path / "tf1"))
    prefix, name = str(tmp_path / "tf1" / "bert_model.ckpt"), "bert/pooler/dense/kernel"
    reader = tf.train.load_checkpoint(prefix)
    arrays = {key: reader.get_tensor(key) for key in reader.get_variable_to_shape_map()}
    for kind in ("int8", "bool"):
        changed = {**arrays, name: arrays[name].astype(kind)}
        tf.raw_ops.SaveV2(
            prefix=prefix,
            tensor_names=list(changed),
            shape_and_slices=[""] * len(changed),
            tensors=list(changed.values()),
        )
        words = f"bert_model.ckpt.index: '{name}' has the type {kind}"
        refused(tmp_path, words, "tf1", "keras", str(tmp_path / "tf1"), lowercase=True)


def test_labels_that_are_no_text_are_named(tmp_path):
    model = torch_model(transformers.BertForSequenceClassification, num_labels=2)
    source = save_torch_model(model, tmp_path / "classifier")
    edit_json(source / "config.json", id2label={"0": "a", "1": "b\ud800"})
    words = "id2label does not name 2 different classes"
    refused(tmp_path, words, "huggingface", "keras", str(source))
