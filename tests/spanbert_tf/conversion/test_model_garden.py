"""Checkpoints of the Model Garden's encoders and pre-trainer, against its own outputs."""

import json
import pathlib
import shutil

import keras_hub
import numpy as np
import pytest
import tensorflow as tf
from model_garden_outputs import assert_equal
from official.nlp.modeling import layers, models, networks
from torch_models import VOCABULARY

from spanbert_tf.conversion.convert import convert_checkpoint, with_positions
from spanbert_tf.conversion.keras_presets import read_keras
from spanbert_tf.conversion.model_garden import read_model_garden
from spanbert_tf.errors import BadInputError

SIZES = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 16,
    "num_layers": 2,
    "num_attention_heads": 4,
    "max_sequence_length": 12,
    "type_vocab_size": 2,
}
TOLERANCE = 1e-5


def disturbed(model):
    """Biases and norms of a new model are all alike."""
    random = np.random.default_rng(1)
    for variable in model.variables:
        variable.assign(variable + random.normal(0, 0.3, variable.shape))
    return model


def encoder(kind):
    if kind == "BertEncoder":
        return disturbed(networks.BertEncoder(intermediate_size=24, dict_outputs=True, **SIZES))
    network = networks.BertEncoderV2(inner_dim=24, **SIZES)
    network(network.inputs)
    return disturbed(network)


def saved(directory, **items):
    """As a trainer saves: with the optimizer, and counters."""
    optimizer = tf.keras.optimizers.Adam()
    path = tf.train.Checkpoint(optimizer=optimizer, global_step=tf.Variable(3), **items).save(
        str(directory / "ckpt")
    )
    (directory / "vocab.txt").write_text("".join(f"{piece}\n" for piece in VOCABULARY))
    return path


def rows():
    random = np.random.default_rng(2)
    token_ids = random.integers(5, len(VOCABULARY), (3, 12)).astype("int32")
    mask = np.array([[1] * 12, [1] * 7 + [0] * 5, [1] * 12], "int32")
    return token_ids, mask, random.integers(0, 2, (3, 12)).astype("int32")


def converted(source, target, kind="keras_bert"):
    convert_checkpoint("model_garden", kind, str(source), str(target), lowercase=True)
    return str(target)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("kind", ["BertEncoder", "BertEncoderV2"])
def test_encoders_give_the_same_outputs(kind, tmp_path, capsys):
    network = encoder(kind)
    saved(tmp_path, model=network)
    backbone = keras_hub.models.Backbone.from_preset(converted(tmp_path, tmp_path / "out"))
    token_ids, mask, segments = rows()
    names = ("input_word_ids", "input_mask", "input_type_ids")
    theirs = network(dict(zip(names, rows(), strict=True)))
    names = ("token_ids", "padding_mask", "segment_ids")
    ours = backbone(dict(zip(names, (token_ids, mask, segments), strict=True)))
    assert_equal(ours, theirs, mask)
    # The exact GELU makes a difference, which is said.
    converted(tmp_path, tmp_path / "exact", "keras")
    assert "activation, approximates the GELU" in capsys.readouterr().out


def test_pre_trainers_bring_their_heads(tmp_path):
    """The pooler is that of the head, which was trained."""
    network = encoder("BertEncoderV2")
    head = layers.ClassificationHead(inner_dim=16, num_classes=2, name="next_sentence")
    pretrainer = models.BertPretrainerV2(
        network, classification_heads=[head], mlm_activation=tf.nn.gelu
    )
    pretrainer(pretrainer.inputs)
    disturbed(pretrainer)
    saved(tmp_path, model=pretrainer, **pretrainer.checkpoint_items)
    with read_keras(converted(tmp_path, tmp_path / "out", "keras"), None, None) as found:
        arrays = {name: np.asarray(array) for name, array in found.arrays.items()}
    np.testing.assert_array_equal(arrays["bert.pooler.dense.weight"], head.dense.kernel.numpy().T)
    with read_model_garden(str(tmp_path), None, True) as source:
        checkpoint = with_positions(source, None)
        assert {"pooler", "masked_lm_head", "next_sentence_head"} <= {*checkpoint.found_parts()}
        assert checkpoint.unused() == []
        next_sentence = np.asarray(checkpoint.arrays["cls.seq_relationship.weight"])
        np.testing.assert_array_equal(next_sentence, head.out_proj.kernel.numpy().T)
    token_ids, mask, segments = rows()
    inputs = {"input_word_ids": token_ids, "input_mask": mask, "input_type_ids": segments}
    positions = np.array([[1, 4], [2, 6], [0, 11]], "int32")
    theirs = pretrainer({**inputs, "masked_lm_positions": positions})["mlm_logits"]
    sequence = network(inputs)["sequence_output"].numpy()
    states = np.take_along_axis(sequence, positions[:, :, None], axis=1)  # [B, M, H]
    states = states @ arrays["cls.predictions.transform.dense.weight"].T
    states = tf.nn.gelu(states + arrays["cls.predictions.transform.dense.bias"]).numpy()
    mean, deviation = states.mean(-1, keepdims=True), states.std(-1, keepdims=True)
    states = (states - mean) / np.sqrt(deviation**2 + 1e-12)
    states = states * arrays["cls.predictions.transform.LayerNorm.weight"]
    states += arrays["cls.predictions.transform.LayerNorm.bias"]
    logits = states @ arrays["bert.embeddings.word_embeddings.weight"].T
    ours = logits + arrays["cls.predictions.bias"]
    np.testing.assert_allclose(ours, theirs, atol=1e-4)


def test_the_latest_of_several_is_read(tmp_path):
    network = encoder("BertEncoderV2")
    checkpoint = tf.train.Checkpoint(encoder=network)
    for _ in range(2):
        disturbed(network)
        checkpoint.save(str(tmp_path / "ckpt"))
    (tmp_path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in VOCABULARY))
    with read_model_garden(str(tmp_path), None, True) as found:
        table = np.asarray(found.arrays["bert.embeddings.word_embeddings.weight"])
    np.testing.assert_array_equal(table, network.get_embedding_table().numpy())
    moved = str(shutil.copytree(tmp_path, f"{tmp_path}-moved"))
    shutil.rmtree(tmp_path)
    with read_model_garden(moved, None, True) as found:
        again = np.asarray(found.arrays["bert.embeddings.word_embeddings.weight"])
    np.testing.assert_array_equal(again, table)
    pathlib.Path(moved, "checkpoint").unlink()
    with pytest.raises(BadInputError, match=r"holds 2 \*.index files and none that"):
        read_model_garden(moved, None, True).__enter__()


def test_two_encoders_are_refused(tmp_path):
    saved(tmp_path, one=encoder("BertEncoder"), two=encoder("BertEncoder"))
    with pytest.raises(BadInputError, match=r"ckpt-1.index: holds .*word_embeddings/.* twice"):
        read_model_garden(str(tmp_path), None, True).__enter__()


@pytest.mark.parametrize(
    ("source_format", "message"),
    [
        ("model_garden", "lacks bert.embeddings.word_embeddings.weight; it holds no encoder of"),
        ("tf1", r"holds no config.* \(it is a checkpoint of the Model Garden\)"),
    ],
)
def test_other_checkpoints_are_named(source_format, message, tmp_path):
    saved(tmp_path, model=tf.Module())
    with pytest.raises(BadInputError, match=message):
        convert_checkpoint(
            source_format, "keras", str(tmp_path), str(tmp_path / "out"), lowercase=True
        )


@pytest.mark.parametrize("graph", [tf.constant(b"\xff\xff"), tf.constant(1.0)])
def test_a_damaged_object_graph_is_one_line(graph, tmp_path):
    tf.raw_ops.SaveV2(
        prefix=str(tmp_path / "ckpt-1"),
        tensor_names=["_CHECKPOINTABLE_OBJECT_GRAPH"],
        shape_and_slices=[""],
        tensors=[graph],
    )
    with pytest.raises(BadInputError, match=r"ckpt-1.index: its object graph is damaged"):
        read_model_garden(str(tmp_path), None, True).__enter__()


def test_arrays_of_other_shapes_are_refused(tmp_path):
    """As of an encoder whose heads were joined; nothing is computed from them."""
    network = encoder("BertEncoderV2")
    named = [(v.name.split(":")[0], tf.reshape(v, [-1])) for v in network.variables]
    model = tf.Module()
    model.parts = [tf.Variable(values, name=name) for name, values in named]
    saved(tmp_path, model=model)
    with pytest.raises(BadInputError, match="its arrays have other shapes than"):
        read_model_garden(str(tmp_path), None, True).__enter__()


def test_each_format_names_the_other(tmp_path):
    saved(tmp_path, model=encoder("BertEncoderV2"))
    (tmp_path / "ckpt-1.index").rename(tmp_path / "bert.ckpt.index")
    (tmp_path / "ckpt-1.data-00000-of-00001").rename(tmp_path / "bert.ckpt.data-00000-of-00001")
    sizes = {"vocab_size": len(VOCABULARY), "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"hidden_size": 16, "intermediate_size": 24, "max_position_embeddings": 12}
    config = json.dumps({**sizes, "type_vocab_size": 2})
    (tmp_path / "bert_config.json").write_text(config)
    with pytest.raises(BadInputError, match="of TensorFlow 2; give --from model_garden"):
        convert_checkpoint("tf1", "keras", str(tmp_path), str(tmp_path / "out"), lowercase=True)
    convert_checkpoint("model_garden", "tf1", str(tmp_path), str(tmp_path / "tf1"), lowercase=True)
    with pytest.raises(BadInputError, match=r"\.index: is a checkpoint of .* 1; give --from tf1$"):
        converted(tmp_path / "tf1", tmp_path / "out")


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("kind", ["BertEncoder", "BertEncoderV2"])
@pytest.mark.parametrize("item", ["encoder", "model"])
def test_encoders_restore_what_is_written_for_them(kind, item, tmp_path, capsys):
    """By the rule of the Model Garden's own tasks: all that the encoder has is matched."""
    source, preset, target = (str(tmp_path / name) for name in ("source", "preset", "target"))
    (tmp_path / "source").mkdir()
    saved(tmp_path / "source", model=encoder("BertEncoderV2"))
    converted(source, preset, "keras")
    capsys.readouterr()
    convert_checkpoint("keras", "model_garden", preset, target)
    assert "the Model Garden's encoder, unless it is given another" in capsys.readouterr().out
    if kind == "BertEncoder":
        network = networks.BertEncoder(
            intermediate_size=24, dict_outputs=True, activation=tf.nn.gelu, **SIZES
        )
    else:
        network = networks.BertEncoderV2(inner_dim=24, inner_activation=tf.nn.gelu, **SIZES)
        network(network.inputs)
    status = tf.train.Checkpoint(**{item: network}).read(f"{target}/bert_model.ckpt")
    status.expect_partial().assert_existing_objects_matched()
    backbone = keras_hub.models.Backbone.from_preset(preset)
    token_ids, mask, segments = rows()
    theirs = network({"input_word_ids": token_ids, "input_mask": mask, "input_type_ids": segments})
    ours = backbone({"token_ids": token_ids, "padding_mask": mask, "segment_ids": segments})
    assert_equal(ours, theirs, mask)


def test_what_is_written_is_read_again(tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    saved(source, model=encoder("BertEncoderV2"))
    converted(source, target, "model_garden")
    with read_model_garden(str(source), None, True) as first:
        expected = {name: np.asarray(first.arrays[name]) for name in first.arrays}
    with read_model_garden(str(target), None, True) as second:
        assert with_positions(second, None).unused() == []
        found = {name: np.asarray(second.arrays[name]) for name in second.arrays}
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, name)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"model_checkpoint_path"])
def test_a_damaged_list_of_checkpoints_is_named(content, tmp_path):
    saved(tmp_path, model=encoder("BertEncoderV2"))
    for path in list(tmp_path.glob("ckpt-1*")):
        shutil.copy(path, tmp_path / path.name.replace("ckpt-1", "ckpt-2"))
    (tmp_path / "checkpoint").write_bytes(content)
    with pytest.raises(BadInputError, match="checkpoint"):
        converted(tmp_path, tmp_path / "out")
