"""Encoders for TensorFlow Hub, written for its own loader and read from the Model Garden's."""

import sys
import types

import keras_hub
import numpy as np
import packaging.version
import pytest
import tensorflow as tf
from model_garden_outputs import assert_equal
from official.nlp.configs import encoders
from official.nlp.modeling import models
from official.nlp.tools import export_tfhub_lib
from torch_models import VOCABULARY

from spanbert_tf.conversion.convert import convert_checkpoint
from spanbert_tf.errors import BadInputError, MismatchError
from spanbert_tf.models import SpanBertBackbone, SpanBertTokenizer
from spanbert_tf.presets.writing import write_preset

# tensorflow_hub 0.16.1 wants one function of a package that setuptools 81 does not bring any more;
# for this import alone: pytest asks for others of that package, where it finds it.
_versions = types.SimpleNamespace(parse_version=packaging.version.parse)
with pytest.MonkeyPatch.context() as patch:
    patch.setitem(sys.modules, "pkg_resources", _versions)
    import tensorflow_hub

SIZES = {"hidden_size": 16, "num_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}


def rows():
    random = np.random.default_rng(2)
    mask = np.array([[1] * 12, [1] * 7 + [0] * 5, [1] * 12], "int32")
    return {
        "token_ids": random.integers(5, len(VOCABULARY), (3, 12)).astype("int32"),
        "padding_mask": mask,
        "segment_ids": random.integers(0, 2, (3, 12)).astype("int32"),
    }


def hub_rows(x):
    names = {
        "input_word_ids": "token_ids",
        "input_mask": "padding_mask",
        "input_type_ids": "segment_ids",
    }
    return {theirs: x[ours] for theirs, ours in names.items()}


def disturbed(variables):
    random = np.random.default_rng(1)
    for variable in variables:
        variable.assign(variable + random.normal(0, 0.3, variable.shape))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """An encoder of ours, its preset, and what is written of it."""
    directory = tmp_path_factory.mktemp("tfhub")
    backbone = SpanBertBackbone(len(VOCABULARY), 2, 4, 16, 24, max_sequence_length=12)
    disturbed([weight.value for weight in backbone.weights])
    tokenizer = SpanBertTokenizer(VOCABULARY, lowercase=True)
    write_preset(backbone, str(directory / "preset"), tokenizer=tokenizer)
    convert_checkpoint("keras", "tfhub", str(directory / "preset"), str(directory / "hub"))
    return backbone, str(directory / "hub")


def test_their_layer_computes_the_same(written):
    backbone, path = written
    layer, x = tensorflow_hub.KerasLayer(path, trainable=True), rows()
    assert_equal(layer(hub_rows(x)), backbone(x), x["padding_mask"])
    np.testing.assert_array_equal(
        layer(hub_rows(x))["default"], layer(hub_rows(x))["pooled_output"]
    )
    with open(layer.resolved_object.vocab_file.asset_path.numpy(), encoding="utf-8") as file:
        assert file.read().split() == VOCABULARY
    assert bool(layer.resolved_object.do_lower_case)


def test_their_layer_trains_it_with_dropout(written):
    backbone, path = written
    layer, x = tensorflow_hub.KerasLayer(path, trainable=True), hub_rows(rows())
    assert len(layer.trainable_weights) == len(backbone.trainable_variables)
    with tf.GradientTape() as tape:
        first = layer(x, training=True)["sequence_output"]
        loss = tf.reduce_sum(first**2) + tf.reduce_sum(layer(x)["pooled_output"] ** 2)
    gradients = tape.gradient(loss, layer.trainable_weights)
    assert all(gradient is not None for gradient in gradients)
    again = layer(x, training=True)["sequence_output"]
    assert np.abs(first - again).max() > 1e-3
    np.testing.assert_array_equal(layer(x)["default"], layer(x)["default"])


@pytest.mark.parametrize("with_mlm", [False, True])
@pytest.mark.quick_cases(1)
def test_the_model_gardens_export_is_read_with_its_vocabulary_and_casing(with_mlm, tmp_path):
    config = encoders.EncoderConfig(
        type="bert",
        bert=encoders.BertEncoderConfig(
            vocab_size=len(VOCABULARY), max_position_embeddings=12, **SIZES
        ),
    )
    network = encoders.build_encoder(config)
    pretrainer = models.BertPretrainerV2(network)
    pretrainer(pretrainer.inputs)
    disturbed(pretrainer.variables)
    items = dict(pretrainer.checkpoint_items)
    if with_mlm:
        items["model"] = pretrainer
    checkpoint = tf.train.Checkpoint(**items)
    path = checkpoint.save(str(tmp_path / "ckpt"))
    (tmp_path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in VOCABULARY))
    export_tfhub_lib.export_model(
        str(tmp_path / "hub"),
        encoder_config=config,
        model_checkpoint_path=path,
        with_mlm=with_mlm,
        vocab_file=str(tmp_path / "vocab.txt"),
        do_lower_case=True,
    )
    convert_checkpoint("tfhub", "keras_bert", str(tmp_path / "hub"), str(tmp_path / "preset"))
    x = rows()
    theirs = tensorflow_hub.load(str(tmp_path / "hub"))(hub_rows(x))
    ours = keras_hub.models.Backbone.from_preset(str(tmp_path / "preset"))(x)
    assert_equal(ours, theirs, x["padding_mask"])
    with pytest.raises(MismatchError, match="states --lowercase"):
        convert_checkpoint(
            "tfhub", "keras", str(tmp_path / "hub"), str(tmp_path / "cased"), lowercase=False
        )
    tokenizer = keras_hub.models.Tokenizer.from_preset(str(tmp_path / "preset"))
    assert tokenizer.lowercase and tokenizer.get_vocabulary() == VOCABULARY


def test_another_saved_model_is_refused(written, tmp_path):
    _, path = written
    with pytest.raises(BadInputError, match="holds no encoder of the Model Garden's"):
        convert_checkpoint("tfhub", "keras", path, str(tmp_path / "preset"))


@pytest.mark.slow
def test_an_encoder_for_the_hub_replaces_an_earlier_one_alone(written, tmp_path):
    backbone, _ = written
    preset, target = str(tmp_path / "preset"), tmp_path / "hub"
    write_preset(backbone, preset, tokenizer=SpanBertTokenizer(VOCABULARY, lowercase=True))
    convert_checkpoint("keras", "tfhub", preset, str(target))
    convert_checkpoint("keras", "tfhub", preset, str(target), overwrite=True)
    assert {path.name for path in target.iterdir()} == {
        "saved_model.pb",
        "fingerprint.pb",
        "variables",
        "assets",
    }
    (target / "mine").write_text("mine")
    with pytest.raises(BadInputError, match="holds other things"):
        convert_checkpoint("keras", "tfhub", preset, str(target), overwrite=True)


def test_an_archive_and_a_checkpoint_are_no_saved_model(tmp_path):
    (tmp_path / "hub.tar.gz").write_bytes(b"")
    for name in ("hub.tar.gz", ""):
        with pytest.raises(BadInputError, match="is no directory of a SavedModel"):
            convert_checkpoint("tfhub", "keras", str(tmp_path / name), str(tmp_path / "preset"))


def test_a_saved_model_of_somebody_else_is_not_replaced(written, tmp_path):
    module = tf.Module()
    module.weight = tf.Variable(1.0)
    tf.saved_model.save(module, str(tmp_path / "theirs"))
    preset = str(tmp_path / "preset")
    tokenizer = SpanBertTokenizer(VOCABULARY, lowercase=True)
    write_preset(written[0], preset, tokenizer=tokenizer)
    with pytest.raises(BadInputError, match="theirs"):
        convert_checkpoint("keras", "tfhub", preset, str(tmp_path / "theirs"), overwrite=True)
    assert (tmp_path / "theirs" / "saved_model.pb").exists()
