"""Files of weights that lead elsewhere or tell of more than they hold: named, and nothing read."""

import json
import os
import pathlib
import pickle
import shutil
import struct
import zipfile

import h5py
import numpy as np
import pytest
import torch
from torch_models import save_torch_model, torch_model

from spanbert_tf.conversion.convert import convert_checkpoint
from spanbert_tf.conversion.torch_files import read_pickled
from spanbert_tf.errors import SpanBertError
from spanbert_tf.models import SpanBertBackbone, SpanBertTokenizer
from spanbert_tf.presets.preset import Preset
from spanbert_tf.presets.writing import write_preset

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "."]
TABLE = (8, 8)  # of several weights


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    directory = tmp_path_factory.mktemp("whole")
    backbone = SpanBertBackbone(len(VOCABULARY), 1, 2, *TABLE[1:], 8, max_sequence_length=16)
    write_preset(backbone, str(directory / "preset"), tokenizer=SpanBertTokenizer(VOCABULARY))
    save_torch_model(torch_model(), directory / "huggingface")
    return directory


@pytest.fixture
def preset(whole, tmp_path):
    """A preset without checksums, as a stranger who knows of them would send it."""
    copy = pathlib.Path(shutil.copytree(whole / "preset", tmp_path / "preset"))
    (copy / "golden.json").unlink()
    return copy


@pytest.fixture
def secret(tmp_path):
    """Values of another file that a link could bring into the weights."""
    path = tmp_path / "secret.h5"
    with h5py.File(path, "w") as file:
        file["values"] = np.full(TABLE, 42, "f4")
    (tmp_path / "secret.bin").write_bytes(np.full(TABLE, 42, "f4").tobytes())
    return path


def replace_table(preset, make):
    """Puts something else in place of a table of weights."""

    def find(name, item):
        return name if isinstance(item, h5py.Dataset) and item.shape == TABLE else None

    with h5py.File(preset / "model.weights.h5", "a") as file:
        name = file.visititems(find)
        del file[name]
        make(file, name)


def external_link(file, name, secret):
    file[name] = h5py.ExternalLink(str(secret), "values")


def external_storage(file, name, secret):
    raw = str(secret.with_suffix(".bin"))
    file.create_dataset(name, TABLE, "f4", external=[(raw, 0, h5py.h5f.UNLIMITED)])


def virtual_data_set(file, name, secret):
    layout = h5py.VirtualLayout(TABLE, "f4")
    layout[:] = h5py.VirtualSource(str(secret), "values", TABLE)
    file.create_virtual_dataset(name, layout)


def soft_link_to_nothing(file, name, secret):
    file[name] = h5py.SoftLink("/nowhere")


def absurd_shape(file, name, secret):
    file.create_dataset(name, (2**40, 8), "f4", chunks=(1024, 8))


def text(file, name, secret):
    file[name] = "text"


@pytest.mark.parametrize(
    "make",
    [external_link, external_storage, virtual_data_set, soft_link_to_nothing, absurd_shape, text],
)
def test_weights_are_in_their_own_file(make, preset, secret):
    replace_table(preset, lambda file, name: make(file, name, secret))
    with pytest.raises(SpanBertError) as caught:
        Preset(str(preset)).encoder()
    assert "\n" not in str(caught.value) and str(preset) in str(caught.value)


def test_what_hdf5_says_of_damage_is_one_line(preset):
    """Its heaps of names are spoilt: of that h5py makes a `RuntimeError`."""
    path = preset / "model.weights.h5"
    path.write_bytes(path.read_bytes().replace(b"HEAP\0", b"HEAP\1"))
    with pytest.raises(SpanBertError, match=r"model\.weights\.h5 is damaged") as caught:
        Preset(str(preset)).encoder()
    assert "\n" not in str(caught.value)


def huge_chunk(file):
    """One value of it would need 4 GiB; on the disk it is empty."""
    file.create_dataset("more", TABLE, "f4", maxshape=(None, None), chunks=(32_768, 32_768))


def nested_groups(file):
    group = file
    for _ in range(6_000):
        group = group.create_group("g")


def group_in_itself(file):
    file["layers/itself"] = file["layers"]


def many_groups(file):
    for number in range(10_001):
        file.create_group(f"g{number}")


def soft_link(file):
    file["more"] = h5py.SoftLink("/layers")


def link_to_a_pipe(file):
    pipe = pathlib.Path(file.filename).with_name("pipe")
    os.mkfifo(pipe.parent.parent / "pipe")
    file["more"] = h5py.ExternalLink("../pipe", "/")


@pytest.mark.parametrize(
    ("change", "name", "words"),
    [
        (huge_chunk, "model", "'/more' of 256 bytes is packed in chunks of 4,294,967,296;"),
        (huge_chunk, "task", "'/more' of 256 bytes is packed in chunks of 4,294,967,296;"),
        (nested_groups, "model", "or groups in more than 32 others"),
        (group_in_itself, "model", "or groups in more than 32 others"),
        (many_groups, "model", "has more than 10,000 groups and arrays"),
        (soft_link, "model", "'more' is a link to another place"),
        (link_to_a_pipe, "task", "'more' is a link to another place"),
    ],
)
def test_the_layout_of_hdf5_is_looked_at_before_keras_reads(change, name, words, preset):
    """In no more steps than there are groups, and before anything is opened or made room for."""
    name = f"{name}.weights.h5"
    with h5py.File(preset / name, "a") as file:
        file.require_group("layers")
        change(file)
    for load in (lambda preset: Preset(preset).encoder(), SpanBertBackbone.from_preset):
        with pytest.raises(SpanBertError) as caught:
            load(str(preset))
        message = str(caught.value)
        assert message.startswith(f"{preset}: {name}") and words in message
        assert "\n" not in message


@pytest.mark.parametrize(
    ("index", "words"),
    [
        ({"weight_map": 5}, "weight_map: should be an object"),
        ({"weight_map": {"a": 5}}, "weight_map.a"),
        ({}, "weight_map: is missing"),
        ({"weight_map": {"a": ["../secret.h5"]}}, "'../secret.h5' is no file's name"),
        ({"weight_map": {"a": "/dev/zero"}}, "'/dev/zero' is no file's name"),
    ],
)
def test_an_index_names_files_of_its_preset(index, words, preset):
    (preset / "model.weights.h5").rename(preset / "model_00000.weights.h5")
    (preset / "model.weights.json").write_text(json.dumps(index))
    for load in (lambda preset: Preset(preset).encoder(), SpanBertBackbone.from_preset):
        with pytest.raises(SpanBertError) as caught:
            load(str(preset))
        message = str(caught.value)
        assert message.startswith(f"{preset}: model.weights.json: ") and words in message
        assert "\n" not in message


class Gadget:
    """What a pickle can run."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return pathlib.Path.touch, (pathlib.Path(self.path),)


def legacy(content, path):
    """PyTorch's format before 1.6: pickles one after the other, no archive."""
    torch.save(content, path, _use_new_zipfile_serialization=False)
    assert not zipfile.is_zipfile(path)
    return str(path)


def test_old_files_of_pytorch_are_tensors_alone(tmp_path):
    path, ran = tmp_path / "pytorch_model.bin", tmp_path / "ran"
    tensors = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2, dtype=torch.float16)}
    read = read_pickled(legacy(tensors, path))
    assert {name: np.asarray(array).tolist() for name, array in read.items()} == {
        "a": [[0, 1, 2], [3, 4, 5]],
        "b": [1, 1],
    }
    content = path.read_bytes()
    legacy(tensors | {"c": Gadget(ran)}, path)
    with pytest.raises(SpanBertError, match="holds more than tensors") as caught:
        read_pickled(str(path))
    assert "\n" not in str(caught.value) and not ran.exists()
    path.write_bytes(pickle.dumps(Gadget(ran)))  # not even PyTorch's head
    with pytest.raises(SpanBertError, match="holds more than tensors"):
        read_pickled(str(path))
    assert not ran.exists()
    for end in (0, 1, 20, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:end])
        with pytest.raises(SpanBertError) as caught:
            read_pickled(str(path))
        assert str(caught.value).startswith(f"{path}: ") and "\n" not in str(caught.value)


def header(content, **changes):
    """A .safetensors file whose header says something else."""
    size = struct.unpack("<Q", content[:8])[0]
    entries = json.loads(content[8 : 8 + size])
    name = next(name for name in entries if name != "__metadata__")
    entries[name] |= changes
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text + content[8 + size :]


HEADERS = {
    "length beyond the file": lambda content: struct.pack("<Q", 2**63 - 1) + content[8:],
    "length of 2^40": lambda content: struct.pack("<Q", 2**40) + content[8:],
    "no length": lambda content: content[:4],
    "shape": lambda content: header(content, shape=[2**40, 2**20]),
    "overflowing shape": lambda content: header(content, shape=[2**63, 2**63]),
    "negative shape": lambda content: header(content, shape=[-1, -1]),
    "offsets beyond": lambda content: header(content, data_offsets=[0, 2**50]),
    "offsets backwards": lambda content: header(content, data_offsets=[64, 0]),
    "type": lambda content: header(content, dtype="PICKLE"),
    "nested": lambda content: struct.pack("<Q", 100_000) + b"[" * 100_000,
    "nested objects": lambda content: struct.pack("<Q", 120_000) + b'{"a":' * 24_000,
}


@pytest.mark.parametrize("damage", HEADERS)
def test_headers_of_safetensors_are_not_believed(damage, whole, tmp_path):
    source = pathlib.Path(shutil.copytree(whole / "huggingface", tmp_path / "source"))
    path = source / "model.safetensors"
    path.write_bytes(HEADERS[damage](path.read_bytes()))
    with pytest.raises(SpanBertError, match=r"model\.safetensors: is damaged") as caught:
        convert_checkpoint("huggingface", "keras", str(source), str(tmp_path / "out"))
    assert "\n" not in str(caught.value) and not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["../other.bin", "/etc/passwd", "a/../../other.bin", ".."])
def test_shards_outside_are_not_opened(name, whole, tmp_path):
    source = pathlib.Path(shutil.copytree(whole / "huggingface", tmp_path / "source"))
    (source / "model.safetensors").rename(tmp_path / "other.bin")
    index = {"metadata": {}, "weight_map": {"bert.embeddings.word_embeddings.weight": name}}
    (source / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(SpanBertError, match=" is missing") as caught:
        convert_checkpoint("huggingface", "keras", str(source), str(tmp_path / "out"))
    assert "\n" not in str(caught.value) and not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["../secret.h5", "/etc/passwd", "..", "a/b", "/dev/zero"])
def test_golden_json_names_files_of_its_preset(name, whole, tmp_path, secret):
    preset = pathlib.Path(shutil.copytree(whole / "preset", tmp_path / "preset"))
    golden = json.loads((preset / "golden.json").read_text())
    golden["weights"][name] = "0" * 64
    (preset / "golden.json").write_text(json.dumps(golden))
    with pytest.raises(SpanBertError, match="is no file's name") as caught:
        Preset(str(preset)).encoder()
    assert "\n" not in str(caught.value)


def test_code_of_hugging_face_is_not_imported(whole, tmp_path):
    """`auto_map` names a module beside the weights, which `transformers` runs if it is told to."""
    source = pathlib.Path(shutil.copytree(whole / "huggingface", tmp_path / "source"))
    for name in ("config.json", "tokenizer_config.json"):
        found = json.loads((source / name).read_text()) if (source / name).exists() else {}
        found["auto_map"] = {"AutoModel": "modeling.Model", "AutoTokenizer": ["modeling.T", None]}
        found["trust_remote_code"] = True
        (source / name).write_text(json.dumps(found))
    marker = tmp_path / "marker"
    (source / "modeling.py").write_text(f"open({str(marker)!r}, 'w')")
    convert_checkpoint("huggingface", "keras", str(source), str(tmp_path / "out"))
    assert (tmp_path / "out" / "config.json").exists() and not marker.exists()
    assert not list((tmp_path / "out").rglob("*.py"))
