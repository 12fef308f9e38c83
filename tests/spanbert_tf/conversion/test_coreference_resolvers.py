"""Checkpoints of the original's coreference code, made here with its names, and back."""

import json

import numpy as np
import pytest
import tensorflow as tf

from spanbert_tf.conversion.checkpoint import Checkpoint
from spanbert_tf.conversion.convert import convert_checkpoint, with_positions
from spanbert_tf.conversion.task_heads import coreference_resolver
from spanbert_tf.conversion.tf1 import read_tf1
from spanbert_tf.models import SpanBertBackbone, SpanBertCoreferenceResolver, SpanBertTokenizer
from spanbert_tf.text.vocabulary import TextRules

WIDTH, SPAN, FEATURE, HIDDEN, SPANS, SEGMENTS = 8, 28, 4, 6, 5, 3
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "Ann", "has", "it", "."]
# As the original's code names and shapes them (independent.py, util.py).
VARIABLES = {
    "span_width_embeddings": [SPANS, FEATURE],
    "span_width_prior_embeddings": [SPANS, FEATURE],
    "genre_embeddings": [7, FEATURE],
    "antecedent_distance_emb": [10, FEATURE],
    "output_weights": [FEATURE, 1],
    "output_bias": [1],
    "mention_word_attn/output_weights": [WIDTH, 1],
    "mention_word_attn/output_bias": [1],
    "mention_scores/hidden_weights_0": [SPAN, HIDDEN],
    "mention_scores/hidden_bias_0": [HIDDEN],
    "mention_scores/output_weights": [HIDDEN, 1],
    "mention_scores/output_bias": [1],
    "width_scores/hidden_weights_0": [FEATURE, HIDDEN],
    "width_scores/hidden_bias_0": [HIDDEN],
    "width_scores/output_weights": [HIDDEN, 1],
    "width_scores/output_bias": [1],
    "src_projection/output_weights": [SPAN, SPAN],
    "src_projection/output_bias": [SPAN],
    "coref_layer/same_speaker_emb": [2, FEATURE],
    "coref_layer/antecedent_distance_emb": [10, FEATURE],
    "coref_layer/segment_distance/segment_distance_embeddings": [SEGMENTS, FEATURE],
    "coref_layer/slow_antecedent_scores/hidden_weights_0": [3 * SPAN + 4 * FEATURE, HIDDEN],
    "coref_layer/slow_antecedent_scores/hidden_bias_0": [HIDDEN],
    "coref_layer/slow_antecedent_scores/output_weights": [HIDDEN, 1],
    "coref_layer/slow_antecedent_scores/output_bias": [1],
    "coref_layer/f/output_weights": [2 * SPAN, SPAN],
    "coref_layer/f/output_bias": [SPAN],
}


def encoder_variables():
    shapes = {
        "bert/embeddings/word_embeddings": [len(PIECES), WIDTH],
        "bert/embeddings/position_embeddings": [16, WIDTH],
        "bert/embeddings/token_type_embeddings": [2, WIDTH],
        "bert/pooler/dense/kernel": [WIDTH, WIDTH],
        "bert/pooler/dense/bias": [WIDTH],
    }
    layer = "bert/encoder/layer_0"
    for name, inputs, outputs in (
        *((f"attention/self/{name}", WIDTH, WIDTH) for name in ("query", "key", "value")),
        ("attention/output/dense", WIDTH, WIDTH),
        ("intermediate/dense", WIDTH, 12),
        ("output/dense", 12, WIDTH),
    ):
        shapes |= {f"{layer}/{name}/kernel": [inputs, outputs], f"{layer}/{name}/bias": [outputs]}
    for name in (f"{layer}/attention/output", f"{layer}/output", "bert/embeddings"):
        shapes |= {f"{name}/LayerNorm/gamma": [WIDTH], f"{name}/LayerNorm/beta": [WIDTH]}
    return shapes


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """A directory as the original's runs leave them, and its arrays."""
    directory = tmp_path_factory.mktemp("released")
    source = np.random.default_rng(3)
    arrays = {
        name: source.normal(size=shape).astype("float32")
        for name, shape in {**encoder_variables(), **VARIABLES}.items()
    }
    saved = {
        **arrays,
        "mention_scores/hidden_bias_0/Adam": np.zeros(HIDDEN, "float32"),
        "mention_scores/hidden_bias_0/Adam_1": np.zeros(HIDDEN, "float32"),
        "beta1_power": np.float32(0.9),
        "global_step": np.int64(7),
    }
    tf.raw_ops.SaveV2(
        prefix=str(directory / "model.max.ckpt"),
        tensor_names=list(saved),
        shape_and_slices=[""] * len(saved),
        tensors=[tf.constant(value) for value in saved.values()],
    )
    config = {
        "vocab_size": len(PIECES),
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "hidden_size": WIDTH,
        "intermediate_size": 12,
        "max_position_embeddings": 16,
        "type_vocab_size": 2,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
    }
    (directory / "bert_config.json").write_text(json.dumps(config))
    (directory / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES))
    return directory, arrays


@pytest.fixture(scope="module")
def preset(released, tmp_path_factory):
    output = tmp_path_factory.mktemp("converted") / "preset"
    convert_checkpoint("tf1", "keras", str(released[0]), str(output), lowercase=False)
    return str(output)


def test_every_variable_has_its_place(released, preset):
    arrays = released[1]
    resolver = SpanBertCoreferenceResolver.from_preset(preset)
    assert resolver.is_head_trained and resolver.depth == 2 and not resolver.word_boundaries
    assert (resolver.max_span_width, resolver.ffnn_dim, resolver.max_segments) == (5, 6, 3)
    mentions, antecedents = resolver.head.mention_scorer, resolver.head.antecedent_scorer
    slow = "coref_layer/slow_antecedent_scores"
    places = {
        "span_width_embeddings": mentions.width_embeddings,
        "mention_word_attn/output_weights": mentions.head_attention.kernel,
        "mention_scores/hidden_weights_0": mentions.mention_network.hidden_kernel,
        "width_scores/output_bias": mentions.width_network.output_bias,
        "antecedent_distance_emb": antecedents.prior_distance_embeddings,
        "coref_layer/antecedent_distance_emb": antecedents.distance_embeddings,
        "output_weights": antecedents.prior_distance_scores.kernel,
        "src_projection/output_weights": antecedents.source_projection.kernel,
        f"{slow}/hidden_weights_0": antecedents.pair_network.hidden_kernel,
        "coref_layer/f/output_weights": antecedents.gate.kernel,
        "coref_layer/segment_distance/segment_distance_embeddings": antecedents.segment_embeddings,
    }
    for name, variable in places.items():
        np.testing.assert_array_equal(variable.numpy(), arrays[name])


def test_what_the_optimizer_leaves_is_no_weight(released):
    with read_tf1(str(released[0]), None, lowercase=False) as checkpoint:
        assert with_positions(checkpoint, None).unused() == []


@pytest.mark.parametrize(
    ("width", "segments", "length"),
    [(8, 3, 384), (8, 5, 256), (8, 11, 128), (1024, 3, 512), (1024, 5, 256)],
)
def test_positions_of_a_segment_are_those_of_the_originals_set_up(width, segments, length):
    """experiments.conf: max_training_sentences 11, 5 or 3 beside max_segment_len 128, 256, or 384
    and for SpanBERT large 512."""
    span, segment_table = 3 * width + FEATURE, "coref_layer/segment_distance"
    shapes = {name: [1, 1] for name in VARIABLES} | {
        "span_width_embeddings": [SPANS, FEATURE],
        "mention_scores/hidden_bias_0": [HIDDEN],
        f"{segment_table}/segment_distance_embeddings": [segments, FEATURE],
        "src_projection/output_weights": [span, span],
    }
    arrays = {
        f"coreference.{name.replace('/', '.')}": np.empty(shape, "float32")
        for name, shape in shapes.items()
    }
    sizes = {"hidden_dim": width, "max_sequence_length": 512, "intermediate_dim": 8}
    backbone = SpanBertBackbone(len(PIECES), num_layers=1, num_heads=2, **sizes)
    checkpoint = Checkpoint("x", sizes, arrays, PIECES, TextRules.of(False))
    resolver = coreference_resolver(checkpoint, backbone, SpanBertTokenizer(PIECES))
    assert resolver.preprocessor.sequence_length == length
    assert resolver.max_segments == segments


def test_there_and_back_all_variables_are_the_same(released, preset, tmp_path):
    convert_checkpoint("keras", "tf1", preset, str(tmp_path / "back"))
    reader = tf.train.load_checkpoint(str(tmp_path / "back" / "bert_model.ckpt"))
    assert reader.get_variable_to_shape_map().keys() == released[1].keys()
    for name, array in released[1].items():
        np.testing.assert_array_equal(reader.get_tensor(name), array)
