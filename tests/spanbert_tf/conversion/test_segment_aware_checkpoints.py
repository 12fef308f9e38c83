"""SegaBERT's checkpoints in its authors' layout, against what PyTorch computes."""

import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch_models import (
    VOCABULARY,
    largest_difference,
    rows_of,
    save_torch_model,
    torch_model,
)

from spanbert_tf.config.positions import POSITION_EMBEDDINGS
from spanbert_tf.conversion.convert import convert_checkpoint
from spanbert_tf.conversion.names import read_tables
from spanbert_tf.errors import BadInputError, ConfigurationError, MismatchError, SpanBertError
from spanbert_tf.models import (
    SpanBertBackbone,
    SpanBertMaskedLM,
    SpanBertQuestionAnswerer,
    SpanBertTextClassifier,
    SpanBertTokenizer,
)
from spanbert_tf.presets.writing import write_preset

TOLERANCE = 1e-5
EMBEDDINGS, ATTENTION = "bert.embeddings.", ".attention.self."
# Table → the input that reads it, and its rows.
TABLES = {
    "para_position_embeddings": ("paragraph_indices", 13),
    "sent_position_embeddings": ("sentence_indices", 11),
    "token_position_embeddings": ("token_indices", 29),
}
POSITIONS, SEGMENTS = f"{EMBEDDINGS}position_embeddings.weight", "token_type_embeddings.weight"
SEGABERT = ("segment_aware", tuple(TABLES))
BERT_WITH_PS = ("absolute_with_paragraph_and_sentence", tuple(TABLES)[:2])


@pytest.fixture(scope="module")
def tables():
    random = torch.Generator().manual_seed(3)
    return {
        name: torch.randn(size, 32, generator=random) / 10 for name, (_, size) in TABLES.items()
    }


@pytest.fixture(scope="module")
def rows():
    random = np.random.default_rng(0)
    rows = rows_of(VOCABULARY)
    shape = rows["input_ids"].shape
    return rows | {
        index: np.sort(random.integers(0, size, shape)) for index, size in TABLES.values()
    }


def inputs_of(rows, names):
    ours = {
        "token_ids": "input_ids", "segment_ids": "token_type_ids", "padding_mask": "attention_mask"
    }  # fmt: skip
    return {name: rows[ours.get(name, name)].astype("int32") for name in names}


def fused(tensors):
    """Queries, keys and values one above the other, as their linear layer of 3 x hidden_size."""
    weights = {}
    for name, tensor in tensors.items():
        if f"{ATTENTION}query." in name:
            parts = [tensors[name.replace("query", part)] for part in ("query", "key", "value")]
            weights[name.replace("query", "query_key_value")] = torch.cat(parts)
        elif not any(f"{ATTENTION}{part}." in name for part in ("key", "value")):
            weights[name] = tensor
    return weights


def as_the_authors_save(model, directory, tables, *, is_fused=True, lacks=(), **config):
    """Writes the weights of a BERT with more tables, by their names; keys of their config.json."""
    save_torch_model(model, directory)
    (directory / "model.safetensors").unlink()
    tensors = model.state_dict() | {
        f"{EMBEDDINGS}{name}.weight": table for name, table in tables.items()
    }
    tensors = {name: tensor for name, tensor in tensors.items() if name not in lacks}
    torch.save(fused(tensors) if is_fused else tensors, directory / "pytorch_model.bin")
    values = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(values | config))
    return str(directory)


def torch_segabert(model, rows, tables, used, segment_ids=None):
    """BERT's layers over the sum of all embeddings that are looked up here."""
    encoder = transformers.BertModel(model.config).eval()
    encoder.load_state_dict(model.bert.state_dict(), strict=False)
    embeddings = encoder.embeddings
    words = embeddings.word_embeddings.weight[torch.tensor(rows["input_ids"])]
    for name in used:
        words = words + tables[name][torch.tensor(rows[TABLES[name][0]])]
    with torch.no_grad():
        if "token_position_embeddings" in used:
            embeddings.position_embeddings.weight.zero_()
        segment_ids = rows["token_type_ids"] if segment_ids is None else segment_ids
        return encoder(
            inputs_embeds=words,
            token_type_ids=torch.tensor(segment_ids),
            attention_mask=torch.tensor(rows["attention_mask"]),
        )


def converted(source, directory, kind=SpanBertBackbone, target="keras", **options):
    convert_checkpoint("huggingface", target, source, str(directory), **options)
    return kind.from_preset(str(directory)) if kind else str(directory)


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("is_fused", [True, False])
@pytest.mark.parametrize("positions, used", [SEGABERT, BERT_WITH_PS, ("absolute", ())])
def test_encoder_computes_the_same(positions, used, is_fused, tables, rows, tmp_path):
    """Their class has all four tables, whatever it reads."""
    model = torch_model()
    source = as_the_authors_save(model, tmp_path / "theirs", tables, is_fused=is_fused)
    with pytest.raises(ConfigurationError, match="give --positions segment_aware for a SegaBERT"):
        converted(source, tmp_path / "preset")
    backbone = converted(source, tmp_path / "preset", positions=positions)
    sizes = [backbone.num_paragraphs, backbone.num_sentences, backbone.max_sentence_length]
    read = [TABLES[name][1] for name in used]
    assert sizes == read + [50, 100, 256][len(read) :]
    outputs = backbone(inputs_of(rows, backbone.input), training=False)
    expected = torch_segabert(model, rows, tables, used)
    last = expected.last_hidden_state.numpy()
    assert largest_difference(outputs["sequence_output"], last, rows) < TOLERANCE
    np.testing.assert_allclose(outputs["pooled_output"], expected.pooler_output, atol=TOLERANCE)


@pytest.mark.parametrize("positions, used", [SEGABERT, BERT_WITH_PS])
def test_tables_tell_where_none_is_beside_them(positions, used, tables, rows, tmp_path):
    held = {name: tables[name] for name in used}
    lacks = [POSITIONS] if positions == "segment_aware" else []
    model = torch_model()
    source = as_the_authors_save(model, tmp_path / "theirs", held, lacks=lacks)
    backbone = converted(source, tmp_path / "preset")
    outputs = backbone(inputs_of(rows, backbone.input), training=False)
    expected = torch_segabert(model, rows, tables, used).last_hidden_state.numpy()
    assert largest_difference(outputs["sequence_output"], expected, rows) < TOLERANCE


def test_the_padded_output_matrix_is_cut(tables, rows, tmp_path):
    """Their converter cuts the token embedding of a padded vocabulary, and nothing else."""
    model, source = torch_model(), tmp_path / "theirs"
    decoder = "cls.predictions.decoder."
    lacks = [f"{decoder}weight", f"{decoder}bias"]
    as_the_authors_save(model, source, tables, lacks=lacks)
    tensors = torch.load(source / "pytorch_model.bin")
    table = tensors[f"{EMBEDDINGS}word_embeddings.weight"]
    tensors["cls.predictions.decoder_weight"] = torch.cat([table, torch.randn(6, 32)])
    bias = tensors["cls.predictions.bias"]
    tensors["cls.predictions.bias"] = torch.cat([bias, torch.randn(6)])
    torch.save(tensors, source / "pytorch_model.bin")
    masked_lm = converted(
        str(source), tmp_path / "preset", SpanBertMaskedLM, positions="segment_aware"
    )
    everywhere = np.tile(np.arange(rows["input_ids"].shape[1]), (len(rows["input_ids"]), 1))
    inputs = inputs_of(rows, masked_lm.backbone.input)
    logits = masked_lm(inputs | {"mask_positions": everywhere.astype("int32")}, training=False)
    hidden = torch_segabert(model, rows, tables, TABLES).last_hidden_state
    expected = model.cls.predictions(hidden).detach().numpy()
    assert largest_difference(logits, expected, rows) < TOLERANCE


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("positions, used", [SEGABERT, BERT_WITH_PS])
def test_a_preset_goes_back_into_their_layout(positions, used, tables, tmp_path):
    model = torch_model()
    source = as_the_authors_save(model, tmp_path / "theirs", tables)
    preset, back = tmp_path / "preset", tmp_path / "back"
    converted(source, preset, positions=positions)
    convert_checkpoint("keras", "huggingface", str(preset), str(back))
    written = load_file(back / "model.safetensors")
    read = torch.load(pathlib.Path(source) / "pytorch_model.bin")
    unread = {f"{EMBEDDINGS}{name}.weight" for name in TABLES if name not in used}
    unread |= {POSITIONS} if positions == "segment_aware" else set()
    assert written.keys() == read.keys() - unread
    for name, tensor in written.items():
        torch.testing.assert_close(tensor, read[name], atol=0, rtol=0)
    again = converted(str(back), tmp_path / "again")  # which says what it reads
    first = SpanBertBackbone.from_preset(str(preset))
    assert again.position_embeddings == first.position_embeddings
    for expected, actual in zip(first.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(actual, expected)
    # No class of `transformers` mistakes it for a BERT.
    assert json.loads((back / "config.json").read_text())["model_type"] == "segabert"


@pytest.mark.parametrize("positions", POSITION_EMBEDDINGS)
def test_an_encoder_of_each_kind_comes_back(positions, tmp_path):
    """Also the paper's SegaBERT, to which the authors' class adds a segment of zeros."""
    sizes = {"num_paragraphs": 5, "num_sentences": 6, "max_sentence_length": 7}
    read = read_tables(positions)
    backbone = SpanBertBackbone(
        *(len(VOCABULARY), 1, 2, 8, 9),
        max_sequence_length=16,
        position_embeddings=positions,
        **{name: size for name, size in sizes.items() if name in read},
    )
    tokenizer = SpanBertTokenizer(VOCABULARY, lowercase=True)
    write_preset(backbone, str(tmp_path / "preset"), tokenizer=tokenizer)
    convert_checkpoint("keras", "huggingface", str(tmp_path / "preset"), str(tmp_path / "theirs"))
    written = load_file(tmp_path / "theirs" / "model.safetensors")
    assert written[f"{EMBEDDINGS}{SEGMENTS}"].shape == (2, 8)
    has_segments = POSITION_EMBEDDINGS[positions].segments
    assert bool(written[f"{EMBEDDINGS}{SEGMENTS}"].any()) == has_segments
    assert (POSITIONS in written) == POSITION_EMBEDDINGS[positions].in_row
    again = converted(str(tmp_path / "theirs"), tmp_path / "again")
    assert again.get_config() | {"name": ""} == backbone.get_config() | {"name": ""}
    for expected, actual in zip(backbone.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_a_question_answerer_reads_their_rows(tables, tmp_path):
    model = torch_model(transformers.BertForQuestionAnswering)
    source = as_the_authors_save(model, tmp_path / "theirs", tables)
    answerer = converted(
        source, tmp_path / "preset", SpanBertQuestionAnswerer, positions="segment_aware"
    )
    assert answerer.preprocessor.segment_aware and answerer.preprocessor.question_first
    assert answerer.backbone.position_embeddings == "segment_aware_with_segments"
    inputs = answerer.preprocessor(x=(["short"], ["the cats. a dog sat."]))
    ours = answerer(inputs, training=False)
    rows = {
        "input_ids": inputs["token_ids"],
        "token_type_ids": inputs["segment_ids"],
        "attention_mask": inputs["padding_mask"],
    }
    rows = {name: np.array(values) for name, values in (rows | dict(inputs)).items()}
    assert rows["token_type_ids"].any()
    hidden = torch_segabert(model, rows, tables, TABLES).last_hidden_state
    expected = model.qa_outputs(hidden).detach().numpy()  # [1, S, starts and ends]
    for logits, column in zip((ours["start_logits"], ours["end_logits"]), (0, 1), strict=True):
        is_token = rows["attention_mask"].astype(bool)
        difference = np.array(logits)[is_token] - expected[..., column][is_token]
        assert np.abs(difference).max() < TOLERANCE


def test_a_text_classifier_reads_segment_0_alone(tables, tmp_path):
    """As their program for GLUE does, which leaves the second segment as it was drawn."""
    model = torch_model(transformers.BertForSequenceClassification)
    source = as_the_authors_save(model, tmp_path / "theirs", tables)
    classifier = converted(
        source, tmp_path / "preset", SpanBertTextClassifier, positions="segment_aware", is_pair=True
    )
    inputs = classifier.preprocessor(x=(["short"], ["the cats. a dog sat."]))
    rows = {name: np.array(values) for name, values in inputs.items()}
    rows |= {"input_ids": rows["token_ids"], "attention_mask": rows["padding_mask"]}
    assert rows["segment_ids"].any()
    zeros = np.zeros_like(rows["segment_ids"])
    pooled = torch_segabert(model, rows, tables, TABLES, segment_ids=zeros).pooler_output
    expected = model.classifier(pooled).detach().numpy()
    np.testing.assert_allclose(classifier(inputs, training=False), expected, atol=TOLERANCE)


@pytest.mark.parametrize("target", ["tf1", "keras_bert"])
def test_formats_of_bert_hold_no_segabert(target, tables, tmp_path):
    source = as_the_authors_save(torch_model(), tmp_path / "theirs", tables)
    with pytest.raises(MismatchError, match=r"SegaBERT's positions, which .* cannot hold"):
        converted(source, tmp_path / "out", None, target, positions="segment_aware")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (
            {"held": ["para_position_embeddings"]},
            BadInputError,
            "no encoder here reads exactly these",
        ),
        (
            {"held": ["sent_position_embeddings", "token_position_embeddings"]},
            BadInputError,
            "position_embeddings, sent_position_embeddings, token_position_embeddings: no encoder",
        ),
        ({"new": "page_position_embeddings"}, BadInputError, "page_position_embeddings.weight"),
        ({"new": "box_embeddings"}, BadInputError, "box_embeddings.weight, which no encoder"),
        ({"max_sent_position_embeddings": 12}, BadInputError, r"the configuration says \[12, 32\]"),
        ({"max_para_position_embeddings": 0}, BadInputError, "no positive integer"),
        ({"lacks": [POSITIONS], "positions": "absolute"}, BadInputError, f"lacks {POSITIONS}"),
        (
            {"position_embedding_type": "segment_aware", "positions": "absolute"},
            MismatchError,
            "states segment_aware positions, not absolute",
        ),
        (
            {
                "position_embedding_type": "absolute_with_paragraph_and_sentence",
                "positions": "absolute",
            },
            MismatchError,
            "states absolute_with_paragraph_and_sentence positions, not absolute",
        ),
    ],
)
def test_tables_that_are_not_known_are_refused(change, error, words, tables, tmp_path):
    held = {name: tables[name] for name in change.pop("held", TABLES)}
    if new := change.pop("new", None):
        held[new] = torch.ones(4, 32)
    options = {"positions": "segment_aware"} if len(held) >= len(TABLES) else {}
    if positions := change.pop("positions", None):
        options = {"positions": positions}
    source = as_the_authors_save(torch_model(), tmp_path / "theirs", held, **change)
    with pytest.raises(error, match=words) as caught:
        converted(source, tmp_path / "out", **options)
    assert "\n" not in str(caught.value) and not (tmp_path / "out").exists()


@pytest.mark.parametrize("place", ["relative_attention_bias", "layer.1.attention.self.pair_bias"])
def test_terms_of_attention_that_no_encoder_here_adds_are_refused(place, tmp_path):
    source = as_the_authors_save(torch_model(), tmp_path / "theirs", {}, is_fused=False)
    path = tmp_path / "theirs" / "pytorch_model.bin"
    torch.save(torch.load(path) | {f"bert.encoder.{place}.weight": torch.ones(4, 4)}, path)
    with pytest.raises(BadInputError, match=rf"holds bert.encoder.{place}.weight, which no enc"):
        converted(source, tmp_path / "out")


def test_layers_above_those_of_the_configuration_are_not_read(rows, tmp_path):
    model = torch_model()
    source = as_the_authors_save(model, tmp_path / "theirs", {}, is_fused=False)
    config = json.loads((tmp_path / "theirs" / "config.json").read_text())
    num_layers = config["num_hidden_layers"] - 1
    config = json.dumps(config | {"num_hidden_layers": num_layers})
    (tmp_path / "theirs" / "config.json").write_text(config)
    backbone = converted(source, tmp_path / "preset")
    outputs = backbone(inputs_of(rows, backbone.input), training=False)
    model.config.num_hidden_layers = num_layers
    expected = torch_segabert(model, rows, {}, ()).last_hidden_state
    assert largest_difference(outputs["sequence_output"], expected, rows) < TOLERANCE


def test_other_tasks_are_refused(tables, tmp_path):
    model = torch_model(transformers.BertForTokenClassification)
    source = as_the_authors_save(model, tmp_path / "theirs", tables)
    with pytest.raises(SpanBertError, match="a preset with its token_classifier cannot hold"):
        converted(source, tmp_path / "out", positions="segment_aware")


def test_the_command_asks_which_tables_are_read(tables, tmp_path):
    source = as_the_authors_save(torch_model(), tmp_path / "theirs", tables)
    command = [sys.executable, "-m", "spanbert_tf.cli", "convert", "--from", "huggingface"]
    command += ["--to", "keras", source, str(tmp_path / "preset")]
    child = subprocess.run(command, capture_output=True, text=True)
    assert child.returncode == 2
    assert len(child.stderr.splitlines()) == 1 and "--positions segment_aware" in child.stderr
