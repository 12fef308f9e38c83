"""Checkpoints of the original SpanBERT code, with the span boundary head as that code has it."""

import argparse
import json
import tarfile

import numpy as np
import pytest
import torch
from torch_models import (
    VOCABULARY,
    keras_inputs,
    largest_difference,
    rows_of,
    torch_model,
    torch_outputs,
)

from spanbert_tf.conversion.checkpoint import SIZE_NAMES
from spanbert_tf.conversion.convert import convert_checkpoint
from spanbert_tf.conversion.fairseq import read_fairseq
from spanbert_tf.conversion.torch_files import with_standard_names
from spanbert_tf.errors import BadInputError
from spanbert_tf.models import SpanBertPretrainer

WIDTH, MAX_TARGETS, POSITION_WIDTH = 64, 15, 9
TOLERANCE = 2e-5


class PairHead(torch.nn.Module):
    """SpanBERT, section 3.2, with the parameter names of the original code."""

    def __init__(self):
        super().__init__()
        self.position_embeddings = torch.nn.Embedding(MAX_TARGETS, POSITION_WIDTH)
        self.mlp_layer_norm = torch.nn.Module()
        self.mlp_layer_norm.linear1 = torch.nn.Linear(2 * WIDTH + POSITION_WIDTH, WIDTH)
        self.mlp_layer_norm.linear2 = torch.nn.Linear(WIDTH, WIDTH)
        self.mlp_layer_norm.layer_norm1 = torch.nn.LayerNorm(WIDTH, eps=1e-12)
        self.mlp_layer_norm.layer_norm2 = torch.nn.LayerNorm(WIDTH, eps=1e-12)
        self.bias = torch.nn.Parameter(torch.zeros(len(VOCABULARY)))

    def forward(self, hidden, left, right, offsets, table):
        rows = torch.arange(len(hidden))[:, None]
        mlp = self.mlp_layer_norm
        boundary = hidden[rows, left], hidden[rows, right]
        x = torch.cat([*boundary, self.position_embeddings(offsets)], -1)
        for linear, norm in ((mlp.linear1, mlp.layer_norm1), (mlp.linear2, mlp.layer_norm2)):
            x = norm(torch.nn.functional.gelu(linear(x)))
        return x @ table.T + self.bias


@pytest.fixture(scope="module")
def models():
    bert = torch_model(hidden_size=WIDTH, num_attention_heads=1)
    torch.manual_seed(1)
    head = PairHead()
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, mean=0.02, std=0.2)
    return bert, head


def state_of(models):
    """A fairseq model's state: `decoder.`, old LayerNorm names, the tied matrix three times."""
    bert, head = models
    tensors = {f"decoder.{name}": tensor for name, tensor in bert.state_dict().items()}
    table = tensors["decoder.bert.embeddings.word_embeddings.weight"]
    prefix = "decoder.cls.pair_target_predictions."
    tensors |= {prefix + name: tensor for name, tensor in head.state_dict().items()}
    tensors[f"{prefix}decoder.weight"] = table
    return {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): tensor
        for name, tensor in tensors.items()
    }


@pytest.fixture
def vocabulary_file(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("".join(f"{piece}\n" for piece in VOCABULARY))
    return str(path)


@pytest.mark.parametrize("kind", ["released archive", "training checkpoint"])
def test_all_heads_compute_the_same(kind, models, vocabulary_file, tmp_path):
    state = state_of(models)
    if kind == "released archive":  # spanbert_large_with_head.tar.gz holds a model.pt alone
        torch.save(state, tmp_path / "model.pt")
        source = str(tmp_path / "with_head.tar.gz")
        with tarfile.open(source, "w:gz") as archive:
            archive.add(tmp_path / "model.pt", "model.pt")
    else:
        source = str(tmp_path / "checkpoint_best.pt")
        torch.save({"args": argparse.Namespace(max_pair_targets=15), "model": state}, source)
    destination = str(tmp_path / "preset")
    convert_checkpoint(
        "fairseq", "keras", source, destination, vocabulary=vocabulary_file, lowercase=False
    )
    pretrainer = SpanBertPretrainer.from_preset(destination)
    assert pretrainer.is_head_trained
    assert pretrainer.max_span_targets == MAX_TARGETS  # read from the checkpoint

    rows = rows_of(VOCABULARY, lowercase=False)
    num_rows, length = rows["input_ids"].shape
    random = np.random.default_rng(0)
    slots = {
        "mask_positions": random.integers(0, length, (num_rows, 6)),
        "span_left_positions": random.integers(0, length, (num_rows, 6)),
        "span_right_positions": random.integers(0, length, (num_rows, 6)),
        "span_offsets": random.integers(0, MAX_TARGETS, (num_rows, 6)),
    }
    actual = pretrainer({**keras_inputs(rows), **slots}, training=False)
    bert, head = models
    expected = torch_outputs(bert, rows)
    with torch.no_grad():
        hidden = bert.bert(**{name: torch.tensor(value) for name, value in rows.items()})[0]
        boundary = head(
            hidden,
            *(torch.tensor(slots[name]) for name in list(slots)[1:]),
            bert.bert.embeddings.word_embeddings.weight,
        )
    np.testing.assert_allclose(actual["span_boundary"], boundary, atol=TOLERANCE, rtol=1e-5)
    at = np.arange(num_rows)[:, None], slots["mask_positions"]
    np.testing.assert_allclose(
        actual["masked_lm"], expected.prediction_logits.numpy()[at], atol=TOLERANCE, rtol=1e-5
    )
    np.testing.assert_allclose(
        actual["next_sentence"], expected.seq_relationship_logits, atol=TOLERANCE, rtol=0
    )
    encoded = pretrainer.backbone(keras_inputs(rows), training=False)["sequence_output"]
    difference = largest_difference(encoded, hidden.numpy(), rows)
    print(f"{kind}: outputs differ by up to {difference:.1e}")
    assert difference < TOLERANCE


def test_heads_of_other_tables_are_refused(models, vocabulary_file, tmp_path):
    state = state_of(models)
    name = "decoder.cls.pair_target_predictions.decoder.weight"
    state[name] = torch.zeros(len(VOCABULARY), WIDTH)
    torch.save(state, tmp_path / "model.pt")
    with pytest.raises(BadInputError, match=r"pair_target_predictions.decoder.weight differs from"):
        convert_checkpoint(
            "fairseq",
            "keras",
            str(tmp_path / "model.pt"),
            str(tmp_path / "preset"),
            vocabulary=vocabulary_file,
            lowercase=False,
        )
    assert not (tmp_path / "preset").exists()


def test_a_tensor_of_other_axes_is_refused(models, vocabulary_file, tmp_path):
    state = state_of(models) | {"decoder.bert.embeddings.word_embeddings.weight": torch.zeros(9)}
    torch.save(state, tmp_path / "model.pt")
    words = r"word_embeddings.weight has shape \[9\], no rows and columns"
    with (
        pytest.raises(BadInputError, match=words),
        read_fairseq(str(tmp_path / "model.pt"), vocabulary_file, lowercase=False),
    ):
        pass


def test_names_without_a_dot_stay(models):
    assert "steps" in with_standard_names({"steps": np.zeros(())})


@pytest.mark.parametrize(
    ("architecture", "has_boundary_head", "epsilon"),
    [
        ("cased_bert_hf_large", False, 1e-5),
        ("cased_bert_pair", True, 1e-12),
        ("cased_bert_pair", False, 1e-12),  # the head was taken off
        (None, True, 1e-12),
        (None, False, 1e-5),  # a masked-language model of the code that has no other head
    ],
)
def test_epsilon_is_that_of_the_architecture(
    architecture, has_boundary_head, epsilon, models, vocabulary_file, tmp_path
):
    """hf_bert.py and pair_bert.py of the original code differ in LayerNorm's epsilon."""
    state = state_of(models)
    if not has_boundary_head:
        state = {name: t for name, t in state.items() if "pair_target_predictions" not in name}
    args = {"args": argparse.Namespace(arch=architecture)} if architecture else {}
    torch.save({**args, "model": state}, tmp_path / "checkpoint.pt")
    path = str(tmp_path / "checkpoint.pt")
    with read_fairseq(path, vocabulary_file, lowercase=False) as checkpoint:
        assert checkpoint.sizes["layer_norm_epsilon"] == epsilon
    config = {theirs: checkpoint.sizes[ours] for ours, theirs in SIZE_NAMES.items()}
    for stated in ({}, {"layer_norm_eps": 1e-7}):
        (tmp_path / "config.json").write_text(json.dumps(config | stated))
        with read_fairseq(path, vocabulary_file, lowercase=False) as checkpoint:
            assert checkpoint.sizes["layer_norm_epsilon"] == stated.get("layer_norm_eps", epsilon)
    (tmp_path / "config.json").unlink()
    theirs = json.dumps(config | {"num_attention_heads": 2})
    (tmp_path / "bert_config.json").write_text(theirs)  # as Google calls it
    with read_fairseq(path, vocabulary_file, lowercase=False) as checkpoint:
        assert checkpoint.sizes["layer_norm_epsilon"] == epsilon
        assert checkpoint.sizes["num_heads"] == 2
