"""Encoders of TensorFlow Hub, as the Model Garden writes them."""

import keras_hub
import numpy as np
import pytest
import tensorflow as tf
from model_garden_outputs import assert_equal
from official.nlp.configs import encoders
from official.nlp.modeling import models
from official.nlp.tools import export_tfhub_lib
from torch_models import VOCABULARY

from spanbert_tf.conversion.convert import convert_checkpoint
from spanbert_tf.errors import BadInputError, MismatchError

SIZES = {"hidden_size": 16, "num_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}


def rows():
    random = np.random.default_rng(2)
    mask = np.array([[1] * 12, [1] * 7 + [0] * 5, [1] * 12], "int32")
    return {
        "token_ids": random.integers(5, len(VOCABULARY), (3, 12)).astype("int32"),
        "padding_mask": mask,
        "segment_ids": random.integers(0, 2, (3, 12)).astype("int32"),
    }


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
    random = np.random.default_rng(1)
    for variable in pretrainer.variables:
        variable.assign(variable + random.normal(0, 0.3, variable.shape))
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
    theirs = tf.saved_model.load(str(tmp_path / "hub"))(
        {
            "input_word_ids": x["token_ids"],
            "input_mask": x["padding_mask"],
            "input_type_ids": x["segment_ids"],
        }
    )
    ours = keras_hub.models.Backbone.from_preset(str(tmp_path / "preset"))(x)
    assert_equal(ours, theirs, x["padding_mask"])
    with pytest.raises(MismatchError, match="states --lowercase"):
        convert_checkpoint(
            "tfhub", "keras", str(tmp_path / "hub"), str(tmp_path / "cased"), lowercase=False
        )
    tokenizer = keras_hub.models.Tokenizer.from_preset(str(tmp_path / "preset"))
    assert tokenizer.lowercase and tokenizer.get_vocabulary() == VOCABULARY


def test_another_saved_model_is_refused(tmp_path):
    module = tf.Module()
    module.weight = tf.Variable(1.0)
    tf.saved_model.save(module, str(tmp_path / "other"))
    with pytest.raises(BadInputError, match="holds no encoder of the Model Garden's"):
        convert_checkpoint("tfhub", "keras", str(tmp_path / "other"), str(tmp_path / "preset"))


def test_an_archive_and_a_checkpoint_are_no_saved_model(tmp_path):
    (tmp_path / "hub.tar.gz").write_bytes(b"")
    for name in ("hub.tar.gz", ""):
        with pytest.raises(BadInputError, match="is no directory of a SavedModel"):
            convert_checkpoint("tfhub", "keras", str(tmp_path / name), str(tmp_path / "preset"))
