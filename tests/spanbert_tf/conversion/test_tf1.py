"""Google's TF1 checkpoints, against BERT written down in numpy with Google's names."""

import json
import math
import pathlib

import numpy as np
import pytest
import tensorflow as tf
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

from spanbert_tf.conversion.convert import convert_checkpoint, with_positions
from spanbert_tf.conversion.huggingface import read_huggingface
from spanbert_tf.conversion.tf1 import read_tf1, write_tf1
from spanbert_tf.errors import BadInputError
from spanbert_tf.models import SpanBertBackbone

TOLERANCE = 2e-5
erf = np.vectorize(math.erf)


class GoogleBert:
    """The encoder of google-research/bert, reading a checkpoint's variables by their names."""

    def __init__(self, directory):
        directory = pathlib.Path(directory)
        self.config = json.loads((directory / "bert_config.json").read_text())
        self.reader = tf.train.load_checkpoint(str(directory / "bert_model.ckpt"))

    def get(self, name):
        return self.reader.get_tensor(name).astype("float64")

    def dense(self, x, name):
        return x @ self.get(f"{name}/kernel") + self.get(f"{name}/bias")

    def norm(self, x, name):
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt(x.var(-1, keepdims=True) + 1e-12)
        return scaled * self.get(f"{name}/gamma") + self.get(f"{name}/beta")

    def attend(self, x, mask, name):
        batch, length, width = x.shape
        heads = self.config["num_attention_heads"]

        def project(kind):
            y = self.dense(x, f"{name}/{kind}").reshape(batch, length, heads, width // heads)
            return y.transpose(0, 2, 1, 3)

        scores = project("query") @ project("key").transpose(0, 1, 3, 2)
        scores = scores / math.sqrt(width // heads) + (1 - mask[:, None, None]) * -1e9
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return (weights @ project("value")).transpose(0, 2, 1, 3).reshape(batch, length, width)

    def __call__(self, rows):
        ids, length = rows["input_ids"], rows["input_ids"].shape[1]
        embeddings = "bert/embeddings"
        x = self.get(f"{embeddings}/word_embeddings")[ids]
        x = x + self.get(f"{embeddings}/token_type_embeddings")[rows["token_type_ids"]]
        x = x + self.get(f"{embeddings}/position_embeddings")[:length]
        x = self.norm(x, f"{embeddings}/LayerNorm")
        for number in range(self.config["num_hidden_layers"]):
            layer = f"bert/encoder/layer_{number}"
            attended = self.attend(x, rows["attention_mask"], f"{layer}/attention/self")
            output = f"{layer}/attention/output"
            x = self.norm(x + self.dense(attended, f"{output}/dense"), f"{output}/LayerNorm")
            hidden = self.dense(x, f"{layer}/intermediate/dense")
            hidden = hidden * (1 + erf(hidden / math.sqrt(2))) / 2
            output = f"{layer}/output"
            x = self.norm(x + self.dense(hidden, f"{output}/dense"), f"{output}/LayerNorm")
        return x, np.tanh(self.dense(x[:, 0], "bert/pooler/dense"))


def check_encoder(preset, directory, rows):
    outputs = SpanBertBackbone.from_preset(preset)(keras_inputs(rows), training=False)
    expected, pooled = GoogleBert(directory)(rows)
    difference = largest_difference(outputs["sequence_output"], expected, rows)
    print(f"outputs differ by up to {difference:.1e}")
    assert difference < TOLERANCE
    np.testing.assert_allclose(outputs["pooled_output"], pooled, atol=TOLERANCE, rtol=0)


def test_from_huggingface_to_tf1_and_back(tmp_path):
    model = torch_model()
    save_torch_model(model, tmp_path / "source")
    steps = [("huggingface", "keras"), ("keras", "tf1"), ("tf1", "keras"), ("keras", "huggingface")]
    path = str(tmp_path / "source")
    for number, (source, target) in enumerate(steps):
        destination = str(tmp_path / f"{number}-{target}")
        lowercase = True if source == "tf1" else None
        convert_checkpoint(source, target, path, destination, lowercase=lowercase)
        path = destination
    rows = rows_of(VOCABULARY)
    check_encoder(str(tmp_path / "2-keras"), str(tmp_path / "1-tf1"), rows)
    back = type(model).from_pretrained(path)
    actual, expected = torch_outputs(back, rows), torch_outputs(model, rows)
    for name in ("prediction_logits", "seq_relationship_logits"):
        torch.testing.assert_close(actual[name], expected[name])


def test_variables_have_googles_names(tmp_path):
    save_torch_model(torch_model(), tmp_path / "source")
    convert_checkpoint("huggingface", "tf1", str(tmp_path / "source"), str(tmp_path / "tf1"))
    shapes = tf.train.load_checkpoint(str(tmp_path / "tf1/bert_model.ckpt"))
    shapes = shapes.get_variable_to_shape_map()
    assert shapes["bert/encoder/layer_1/intermediate/dense/kernel"] == [32, 37]
    assert shapes["cls/seq_relationship/output_weights"] == [2, 32]
    assert shapes["cls/predictions/transform/LayerNorm/gamma"] == [32]
    assert len(shapes) == 5 + 2 * 16 + 2 + 5 + 2


def test_a_checkpoint_of_more_than_ten_layers(tmp_path):
    """`layer_10` is no `layer_1`: each layer comes back, under Google's name in between."""
    sizes = {"hidden_size": 4, "num_attention_heads": 1, "intermediate_size": 3}
    model = torch_model(transformers.BertModel, num_hidden_layers=12, **sizes)
    save_torch_model(model, tmp_path / "source")
    with read_huggingface(str(tmp_path / "source"), None, None) as checkpoint:
        checkpoint = with_positions(checkpoint, None)
        write_tf1(checkpoint, str(tmp_path / "tf1"))
    names = {name for name, _ in tf.train.list_variables(str(tmp_path / "tf1/bert_model.ckpt"))}
    for number in range(12):
        assert f"bert/encoder/layer_{number}/output/dense/kernel" in names
    with read_tf1(str(tmp_path / "tf1"), None, lowercase=True) as back:
        assert back.arrays.keys() == checkpoint.arrays.keys()
        for name, array in back.arrays.items():
            np.testing.assert_array_equal(array, checkpoint.arrays[name])


def test_published_layout(shared_data, tmp_path):
    source = str(shared_data / "checkpoints" / "keras_bert_tiny_tf1")  # with Adam's variables
    convert_checkpoint("tf1", "keras", source, str(tmp_path / "preset"), lowercase=False)
    random = np.random.default_rng(0)
    rows = {
        "input_ids": random.integers(0, 15, (3, 9)),
        "token_type_ids": random.integers(0, 2, (3, 9)),
        "attention_mask": (np.arange(9) < np.array([[9], [5], [1]])).astype(int),
    }
    check_encoder(str(tmp_path / "preset"), source, rows)


def test_a_run_of_another_classifier_is_read(tmp_path, capfd):
    """As run_classifier.py leaves it: the step in the name, and a head that is not converted."""
    save_torch_model(torch_model(), tmp_path / "source")
    convert_checkpoint("huggingface", "tf1", str(tmp_path / "source"), str(tmp_path / "tf1"))
    reader = tf.train.load_checkpoint(str(tmp_path / "tf1/bert_model.ckpt"))
    values = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    values |= {"output_weights": np.ones((2, 32), "f"), "output_bias": np.ones(2, "f")}
    for file in (tmp_path / "tf1").glob("bert_model.ckpt*"):
        file.unlink()
    tf.raw_ops.SaveV2(
        prefix=str(tmp_path / "tf1" / "model.ckpt-343"),
        tensor_names=list(values),
        shape_and_slices=[""] * len(values),
        tensors=list(values.values()),
    )
    capfd.readouterr()
    source, destination = str(tmp_path / "tf1"), str(tmp_path / "preset")
    convert_checkpoint("tf1", "huggingface", source, destination, lowercase=True)
    assert "unused: output_bias, output_weights" in capfd.readouterr().out


def test_damaged_data_is_named(tmp_path):
    save_torch_model(torch_model(), tmp_path / "source")
    convert_checkpoint("huggingface", "tf1", str(tmp_path / "source"), str(tmp_path / "tf1"))
    data = tmp_path / "tf1" / "bert_model.ckpt.data-00000-of-00001"
    whole = data.read_bytes()
    source, destination = str(tmp_path / "tf1"), str(tmp_path / "preset")
    damaged = {"tells of .* hold": whole[:-40], "is damaged": whole[:-40] + bytes(range(40))}
    for words, content in damaged.items():
        data.write_bytes(content)
        with pytest.raises(BadInputError, match=rf"bert_model.ckpt.index: {words}") as caught:
            convert_checkpoint("tf1", "keras", source, destination, lowercase=True)
        assert "\n" not in str(caught.value)
