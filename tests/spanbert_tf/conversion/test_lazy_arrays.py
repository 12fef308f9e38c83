"""A checkpoint's arrays are read one by one, and few are in memory at once."""

import functools
import pathlib
import re
import weakref

import keras
import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from spanbert_tf.conversion import torch_files
from spanbert_tf.conversion.checkpoint import Checkpoint, LazyArray, expected_shapes
from spanbert_tf.conversion.huggingface import write_huggingface
from spanbert_tf.conversion.keras_presets import write_keras, write_keras_bert
from spanbert_tf.conversion.tf1 import write_tf1
from spanbert_tf.conversion.torch_files import read_pickled, read_safetensors, write_safetensors
from spanbert_tf.text.vocabulary import TextRules

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "span", "a", "."]
SIZES = {
    "vocabulary_size": len(PIECES),
    "num_layers": 2,
    "num_heads": 2,
    "hidden_dim": 6,
    "intermediate_dim": 10,
    "max_sequence_length": 8,
    "num_segments": 2,
    "dropout": 0.1,
    "layer_norm_epsilon": 1e-12,
    "position_embeddings": "absolute",
}
PARTS = ("encoder", "pooler", "masked_lm_head", "next_sentence_head")


class Reader:
    """Makes arrays when they are asked for, and counts those that are alive."""

    def __init__(self):
        self.alive, self.most, self.reads = 0, 0, {}

    def arrays(self):
        shapes = expected_shapes(SIZES, {})
        return {
            name: LazyArray(shape, functools.partial(self._read, name, shape))
            for part in PARTS
            for name, shape in shapes[part].items()
        }

    def _read(self, name, shape):
        self.reads[name] = self.reads.get(name, 0) + 1
        values = np.random.default_rng(len(self.reads)).random(shape, "float32")
        self.alive += 1
        self.most = max(self.most, self.alive)
        weakref.finalize(values, self._note_end)
        return values

    def _note_end(self):
        self.alive -= 1


@pytest.mark.parametrize("write", [write_huggingface, write_tf1, write_keras, write_keras_bert])
def test_a_writer_asks_for_an_array_when_it_writes_it(write, tmp_path):
    keras.utils.set_random_seed(0)
    reader = Reader()
    checkpoint = Checkpoint("here", SIZES, reader.arrays(), PIECES, TextRules.of(False))
    write(checkpoint, str(tmp_path / "written"))
    assert reader.most <= 2 and reader.alive == 0
    expected = dict.fromkeys(reader.reads, 1)
    if write is write_huggingface:  # which has tied ones twice
        tied = ("bert.embeddings.word_embeddings.weight", "cls.predictions.bias")
        expected |= dict.fromkeys(tied, 2)
    assert reader.reads == expected and len(expected) > 40


def test_the_bytes_are_those_that_the_library_writes(tmp_path):
    random = np.random.default_rng(0)
    names = ["b.weight", "a", "É", 'a"b', "c.0", "empty"]
    shapes = [(3, 5), (), (7,), (2, 1, 2), (1,), (0, 4)]
    arrays = {
        name: np.asarray(random.normal(size=shape), "float32")
        for name, shape in zip(names, shapes, strict=True)
    }
    arrays["transposed"] = arrays["b.weight"].T
    write_safetensors(arrays, str(tmp_path / "ours"))
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    contiguous["a"] = contiguous["a"].reshape(())  # NumPy makes a row of a number
    save_file(contiguous, str(tmp_path / "theirs"), metadata={"format": "pt"})
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    for name, array in read_safetensors(str(tmp_path / "ours")).items():
        assert array.shape == arrays[name].shape
        np.testing.assert_array_equal(array, arrays[name])


def _mapped_bytes(path):
    """How much of a file this process has in memory by its mappings (proc(5), smaps)."""
    text = pathlib.Path("/proc/self/smaps").read_text()
    blocks = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", text, flags=re.M)
    sizes = [re.search(r"^Rss: +(\d+) kB", block, re.M) for block in blocks if str(path) in block]
    return sum(1024 * int(size[1]) for size in sizes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_file_of_pytorch_leaves_the_memory_while_it_is_read(dtype, tmp_path, monkeypatch):
    most, size = 2**22, 2**18
    monkeypatch.setattr(torch_files, "_MOST_READ", most)
    tensors = {str(number): torch.randn(size).to(dtype) for number in range(32)}
    path = tmp_path / "model.pt"
    torch.save(tensors, path)
    found = []
    for name, array in read_pickled(str(path)).items():
        values = np.asarray(array)
        np.testing.assert_array_equal(values, tensors[name].float())
        found.append((values, _mapped_bytes(path)))
    mapped = [bytes_ for _, bytes_ in found]
    assert 0 < max(mapped) < most + 2 * size * 4 < path.stat().st_size
