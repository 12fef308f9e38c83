"""Vectors of texts, beside PyTorch's and plain NumPy."""

import keras
import keras_hub
import numpy as np
import pytest
import tensorflow as tf
import torch
import transformers
from tiny_models import LENGTH, VOCABULARY, tiny_model

from spanbert_tf.cli import main
from spanbert_tf.conversion.convert import convert_checkpoint
from spanbert_tf.models import (
    SpanBertBackbone,
    SpanBertTextEmbedder,
    SpanBertTextEmbedderPreprocessor,
    SpanBertTokenizer,
)
from spanbert_tf.presets.writing import write_preset
from spanbert_tf.tasks.text_embedding import TextEmbedding

TEXTS = ["ann has the cat .", "bob", "who has the cat ? bob"]


@pytest.fixture(scope="module")
def model():
    model, random = tiny_model("text_embedding"), np.random.default_rng(3)
    model.set_weights([w + random.normal(0, 0.3, w.shape) for w in model.get_weights()])
    return model


@pytest.fixture(scope="module")
def encoder(model, tmp_path_factory):
    """A preset of the encoder alone."""
    path = str(tmp_path_factory.mktemp("presets") / "encoder")
    write_preset(model.backbone, path, tokenizer=model.preprocessor.tokenizer)
    return path


def test_the_mean_is_that_of_sentence_transformers(encoder, tmp_path):
    """Their recipe in PyTorch: the states of all tokens, [CLS] and [SEP] counted, then length 1."""
    convert_checkpoint("keras", "huggingface", encoder, str(tmp_path / "hf"))
    peer = transformers.BertModel.from_pretrained(tmp_path / "hf").eval()
    tokenizer = transformers.BertTokenizerFast(str(tmp_path / "hf" / "vocab.txt"))
    packed = tokenizer(TEXTS, return_tensors="pt", padding=True)
    with torch.no_grad():
        states = peer(**packed).last_hidden_state
    mask = packed["attention_mask"][:, :, None]
    mean = torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1))
    found = SpanBertTextEmbedder.from_preset(encoder).encode_text(TEXTS, verbose=0)
    np.testing.assert_allclose(found, mean, atol=1e-5)


@pytest.mark.parametrize("mode", ["mean", "cls", "max"])
@pytest.mark.parametrize("normalize", [True, False])
def test_modes(mode, normalize, model):
    embedder = SpanBertTextEmbedder(
        model.backbone, model.preprocessor, pooling_mode=mode, normalize=normalize
    )
    x = model.preprocessor(tf.constant(TEXTS))
    states = model.backbone(x)["sequence_output"].numpy()
    of_rows = [row[: int(sum(mask))] for row, mask in zip(states, x["padding_mask"], strict=True)]
    pool = {
        "mean": lambda row: row.mean(0),
        "cls": lambda row: row[0],
        "max": lambda row: row.max(0),
    }
    expected = np.stack([pool[mode](row) for row in of_rows])
    if normalize:
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(embedder.predict(TEXTS, verbose=0), expected, atol=1e-5)


def test_kerashubs_base_class_finds_it_in_presets_of_both_kinds(encoder, model, tmp_path):
    write_preset(model, str(tmp_path / "embedder"))
    for preset in (encoder, str(tmp_path / "embedder")):
        loaded = keras_hub.models.TextEmbedder.from_preset(preset)
        assert type(loaded) is SpanBertTextEmbedder
        np.testing.assert_array_equal(
            loaded.encode_text(TEXTS, verbose=0), model.encode_text(TEXTS, verbose=0)
        )


@pytest.mark.slow
def test_it_is_trained_on_pairs_by_any_loss(model):
    """The cosine of two texts, towards 1: gradients reach the encoder, and the pooler is left."""
    keras.utils.set_random_seed(2)
    embedder = SpanBertTextEmbedder(
        SpanBertBackbone.from_config(model.backbone.get_config()), model.preprocessor
    )
    loss = keras.losses.CosineSimilarity()
    embedder.compile(keras.optimizers.Adam(1e-2), loss, jit_compile=False)
    targets = np.roll(embedder.predict(TEXTS, verbose=0), 1, axis=0)
    losses = embedder.fit(TEXTS, targets, epochs=5, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    assert not embedder.backbone.is_pooler_trained


def test_positions_of_segabert_must_be_those_of_the_preprocessor(model):
    backbone = SpanBertBackbone(
        len(VOCABULARY), 1, 2, 8, 8, max_sequence_length=LENGTH, position_embeddings="segment_aware"
    )
    with pytest.raises(ValueError, match="segment_aware of the preprocessor must be True"):
        SpanBertTextEmbedder(backbone, model.preprocessor)
    tokenizer = SpanBertTokenizer(VOCABULARY, lowercase=True)
    preprocessor = SpanBertTextEmbedderPreprocessor(tokenizer, LENGTH, segment_aware=True)
    found = SpanBertTextEmbedder(backbone, preprocessor).encode_text(TEXTS, verbose=0)
    assert found.shape == (3, 8)


@pytest.mark.slow
def test_any_encoder_is_exported_and_tells_its_pooler_only_where_it_was_trained(
    encoder, model, tmp_path
):
    served = {}
    for name in ("trained", "new"):
        preset = encoder
        if name == "new":
            backbone = SpanBertBackbone.from_config(model.backbone.get_config())
            preset = str(tmp_path / "new")
            write_preset(backbone, preset, tokenizer=model.preprocessor.tokenizer)
        with pytest.raises(SystemExit) as stop:
            main(["export", "--embeddings", "--preset", preset, "--output", str(tmp_path / name)])
        assert stop.value.code == 0
        loaded = tf.saved_model.load(str(tmp_path / name / "1"))
        served[name] = loaded.signatures["serving_default"](text=tf.constant(TEXTS))
    assert served["trained"].keys() - served["new"].keys() == {"pooled_output"}
    x = model.preprocessor(tf.constant(TEXTS))
    encoded = model.backbone(x)
    width = served["trained"]["padding_mask"].shape[1]
    for name, expected in encoded.items():
        expected = expected if name == "pooled_output" else expected[:, :width]
        np.testing.assert_allclose(served["trained"][name], expected, atol=1e-5)
    np.testing.assert_allclose(served["trained"]["embeddings"], model(x), atol=1e-5)


def test_an_encoder_alone_is_told_of_embeddings(encoder, tmp_path, capfd):
    with pytest.raises(SystemExit) as stop:
        main(["export", "--preset", encoder, "--output", str(tmp_path / "served")])
    assert stop.value.code == 2
    assert "--embeddings" in capfd.readouterr().err


def test_one_pass_of_the_encoder_serves_vectors_and_states(model):
    """Counted in the graph as it was traced: TensorFlow leaves a second one there."""

    def products(function, specs):
        graph = tf.function(function, input_signature=specs).get_concrete_function().graph
        return sum(
            op.type in ("MatMul", "Einsum", "BatchMatMulV2") for op in graph.get_operations()
        )

    function, specs = TextEmbedding().row_signature(model, 1)
    alone = products(
        lambda *rows: model.backbone(dict(zip(model.input, rows, strict=True)), training=False),
        specs,
    )
    assert 0 < products(function, specs) == alone


def test_a_mode_that_is_none_is_refused(model):
    with pytest.raises(ValueError, match="pooling_mode must be one of mean, max, cls"):
        SpanBertTextEmbedder(model.backbone, model.preprocessor, pooling_mode="median")
