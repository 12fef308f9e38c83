"""Words of a text become pieces of a preset's vocabulary; what they do not touch stays."""

import collections
import json
import random
import re
import shutil

import keras
import keras_hub
import numpy as np
import pytest
from tokenizers import BertWordPieceTokenizer

import data_prep.text.added_words
from data_prep.text.added_words import (
    choose_words,
    count_words,
    extend_vocabulary,
    read_words,
)
from data_prep.text.storage import find_files
from data_prep.text.vocabulary import Paragraphs
from spanbert_tf.cli import main
from spanbert_tf.conversion.convert import convert_checkpoint
from spanbert_tf.errors import BadInputError, ConfigurationError
from spanbert_tf.models import SpanBertBackbone, SpanBertPretrainer, SpanBertTokenizer
from spanbert_tf.presets.preset import Preset
from spanbert_tf.presets.pretraining import save_pretraining_preset
from spanbert_tf.text.vocabulary import SPECIAL_TOKENS, TextRules, make_markers

LETTERS = "abcdefghijklmnopqrstuvwxyz"
UNUSED = [f"[unused{number}]" for number in range(1, 10)]
WORDS = ["the", "cell", "blood", "##osis", "immun", "."]
VOCABULARY = [*SPECIAL_TOKENS, *UNUSED, *WORDS, *LETTERS, *(f"##{letter}" for letter in LETTERS)]
DOMAIN = ["thrombosis", "platelet", "fibrin", "plasma", "serum"]
NUM_ROWS = len(VOCABULARY) + 3  # rows beyond the vocabulary, as many encoders have them
NUM_MARKERS = 7
UNTOUCHED = ["the cells . blood", "the immunos cell", "[MASK] blood ."]


@pytest.fixture(scope="module")
def preset(tmp_path_factory):
    keras.utils.set_random_seed(1)
    backbone = SpanBertBackbone(NUM_ROWS, 2, 2, 8, 12, max_sequence_length=16)
    model = SpanBertPretrainer(backbone, max_span_targets=3, span_position_dim=4)
    values = np.random.default_rng(2)
    model.set_weights([values.normal(size=w.shape).astype("float32") for w in model.get_weights()])
    model.is_head_trained = True
    directory = str(tmp_path_factory.mktemp("presets") / "preset")
    tokenizer = SpanBertTokenizer(VOCABULARY, lowercase=True)
    save_pretraining_preset(model, tokenizer, directory, sequence_length=12)
    return directory


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    source = random.Random(3)
    words = source.choices([*DOMAIN, "the", "Blood", "Zürich", "1862", "x-ray", "."], k=300)
    path = tmp_path_factory.mktemp("text") / "a.txt"
    path.write_text(" ".join([*words, "once"]))
    return path


@pytest.fixture(scope="module")
def extended(preset, text, tmp_path_factory):
    """With four words: two in place of [unused8] and [unused9], two in new rows."""
    output = str(tmp_path_factory.mktemp("extended") / "preset")
    options = {"input_pattern": [str(text)], "size": 4, "num_markers": NUM_MARKERS}
    assert extend_vocabulary(preset, output, **options) == 4
    return output


def vocabulary_of(preset):
    return Preset(preset).tokenizer.get_vocabulary()


def output_bias(head):
    (bias,) = [weight for weight in head.weights if weight.name == "output_bias"]
    return bias


def pieces_by_hugging_face(word, tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("".join(f"{entry}\n" for entry in VOCABULARY))
    tokens = BertWordPieceTokenizer(str(path), lowercase=True).encode(word).tokens
    return tokens[1:-1]  # without [CLS] and [SEP]


def test_words_that_save_most_pieces_are_added_in_this_order(extended, text, tmp_path):
    counts = collections.Counter(re.findall(r"[a-zü]+", text.read_text().lower()))
    saved = {
        word: count * (len(pieces_by_hugging_face(word.replace("ü", "u"), tmp_path)) - 1)
        for word, count in counts.items()
        if count > 1
    }
    expected = sorted(saved, key=saved.get, reverse=True)[:4]
    assert min(saved[word] for word in expected) > 0
    expected = [word.replace("ü", "u") for word in expected]
    vocabulary = vocabulary_of(extended)
    assert vocabulary[: VOCABULARY.index("[unused8]")] == VOCABULARY[:12]
    first = VOCABULARY.index("[unused8]")
    assert [*vocabulary[first : first + 2], *vocabulary[len(VOCABULARY) :]] == expected
    assert vocabulary[first + 2 : len(VOCABULARY)] == VOCABULARY[first + 2 :]
    tokenizer = Preset(extended).tokenizer
    for word in expected:
        assert tokenizer.tokenize(word).numpy().tolist() == [vocabulary.index(word)]


def test_rows_of_words_are_the_means_of_their_pieces(preset, extended, tmp_path):
    before, after = Preset(preset), Preset(extended)
    old_encoder, old_head = before.encoder_and_masked_lm_head()
    new_encoder, new_head = after.encoder_and_masked_lm_head()
    pairs = [
        (old_encoder.token_embedding.embeddings, new_encoder.token_embedding.embeddings),
        (output_bias(old_head), output_bias(new_head)),
    ]
    (name,) = [name for name in before.heads if name.endswith("span_boundary_head/bias")]
    pairs.append((before.heads[name], after.heads[name]))
    vocabulary = vocabulary_of(extended)
    added = [index for index, entry in enumerate(vocabulary) if entry not in VOCABULARY]
    assert len(added) == 4
    for old, new in (map(np.array, pair) for pair in pairs):
        assert new.shape == (max(NUM_ROWS, len(vocabulary)), *old.shape[1:])
        for row in range(len(VOCABULARY)):
            if row not in added:
                np.testing.assert_array_equal(new[row], old[row])
        for row in added:
            pieces = pieces_by_hugging_face(vocabulary[row], tmp_path)
            rows = [old[VOCABULARY.index(piece)].astype("float64") for piece in pieces]
            np.testing.assert_allclose(new[row], sum(rows) / len(rows), rtol=1e-6, atol=1e-7)
    for name, values in before.heads.items():
        if not name.endswith("span_boundary_head/bias"):
            np.testing.assert_array_equal(after.heads[name], values)


def test_texts_without_the_words_have_the_same_outputs_to_the_bit(preset, extended):
    outputs = []
    for directory in (preset, extended):
        opened = Preset(directory)
        ids = opened.tokenizer.tokenize(UNTOUCHED)
        rows = np.array([[*row, *[0] * (12 - len(row))] for row in ids], "int32")
        inputs = {"token_ids": rows, "segment_ids": rows * 0, "padding_mask": rows * 0 + 1}
        outputs.append(opened.encoder()(inputs)["sequence_output"].numpy())
    np.testing.assert_array_equal(*outputs)


def test_markers_of_entities_stay(preset, extended):
    markers = make_markers(VOCABULARY, ["A"])
    assert len(markers) == NUM_MARKERS
    assert make_markers(vocabulary_of(extended), ["A"]) == markers


@pytest.mark.slow
def test_it_goes_to_hugging_face_and_back(extended, tmp_path):
    theirs, ours = str(tmp_path / "theirs"), str(tmp_path / "ours")
    convert_checkpoint("keras", "huggingface", extended, theirs)
    convert_checkpoint("huggingface", "keras", theirs, ours)
    assert vocabulary_of(ours) == vocabulary_of(extended)
    parts = [Preset(preset).encoder_and_masked_lm_head() for preset in (extended, ours)]
    for before, after in zip(*parts, strict=True):
        for old, new in zip(before.get_weights(), after.get_weights(), strict=True):
            np.testing.assert_array_equal(old, new)


def test_the_command_reads_a_column_and_tells_cells_without_text(preset, tmp_path, capsys):
    table = tmp_path / "posts.csv"
    table.write_text("body,stars\nplasma fibrin plasma,5\nfibrin serum,1\n")
    (tmp_path / "posts.jsonl").write_text('{"body": "plasma"}\n{"body": null}\n')
    output = str(tmp_path / "preset")
    arguments = ["vocabulary", "extend", "--preset", preset, "--text-column", "body"]
    arguments += ["--input", str(tmp_path / "posts.*"), "--size", "2", "--output", output]
    with pytest.raises(SystemExit) as stop:
        main([*arguments, "--num-markers", str(len(UNUSED))])
    assert stop.value.code == 0
    # Three of `plasma` and two of `fibrin` save most; `serum` occurs once.
    assert vocabulary_of(output) == [*VOCABULARY, "plasma", "fibrin"]
    printed = capsys.readouterr().out
    assert f"{output}: cells with a null or a number in place of a text: 1; left out" in printed
    assert f"--text-column body --preset {output} --output records" in printed


def test_a_list_takes_the_place_of_a_size(preset, tmp_path, capsys):
    (tmp_path / "words").write_text("Thrombosis\n\n plasma \n")
    options = {"words_file": str(tmp_path / "words"), "num_markers": len(UNUSED)}
    assert extend_vocabulary(preset, str(tmp_path / "preset"), **options) == 2
    assert vocabulary_of(str(tmp_path / "preset")) == [*VOCABULARY, "thrombosis", "plasma"]
    assert "2 words added" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("plasma\nblood\n", "line 2: 'blood': is in the vocabulary already"),
        ("plasma\nPlasma\n", "line 2: 'Plasma': stands in line 1 already"),
        ("[MASK]\n", r"line 1: '\[MASK\]': is a special token"),
        ("blood cell\n", r"line 1: 'blood cell': is 2 words \(blood cell\)"),
        ("x-ray\n", r"is 3 words \(x - ray\)"),
        ("\n \n", "has no words"),
    ],
)
def test_a_list_that_cannot_be_added_is_refused(content, message, preset, tmp_path):
    (tmp_path / "words").write_text(content)
    with pytest.raises(BadInputError, match=message):
        extend_vocabulary(
            preset, str(tmp_path / "preset"), words_file=str(tmp_path / "words"), num_markers=0
        )
    assert not (tmp_path / "preset").exists()


@pytest.mark.parametrize(
    ("lowercase", "strip_accents", "words"),
    [(True, True, ["strasse", "πισ"]), (True, False, ["straße", "πίς"]),
     (False, False, ["Straße", "Πίς"])],
)  # fmt: skip
def test_words_are_those_of_records(lowercase, strip_accents, words, tmp_path):
    """An added word that no text gives would take a row, and save nothing."""
    greek = "πισςίΠ"
    letters = [*LETTERS, "ß", *(letter.upper() for letter in LETTERS), *greek]
    vocabulary = [*SPECIAL_TOKENS, *letters, *(f"##{letter}" for letter in letters)]
    tokenizer = SpanBertTokenizer(vocabulary, lowercase=lowercase, strip_accents=strip_accents)
    text = tmp_path / "text"
    text.write_text("Straße Πίς 中国 Straße Πίς \n" * 3)
    counts = count_words(Paragraphs(find_files([str(text)])), tokenizer.text_rules)
    assert counts == {words[0]: 6, words[1]: 6, "中": 3, "国": 3}
    chosen = [word.word for word in choose_words(counts, tokenizer, 9)]
    assert sorted(chosen) == sorted(words)
    listed = tmp_path / "words"
    listed.write_text("Straße\nΠίς\n")
    assert read_words(str(listed), tokenizer) == words
    extended = SpanBertTokenizer(
        [*vocabulary, *words], lowercase=lowercase, strip_accents=strip_accents
    )
    ids = extended.tokenize(["Straße Πίς"])
    assert [extended.get_vocabulary()[index] for index in ids[0]] == words


@pytest.mark.parametrize("num_most", [4, 10, 40])
def test_counting_in_little_memory_finds_the_frequent_words(num_most, tmp_path, monkeypatch):
    """Many words that occur twice and more do not make each paragraph drop some again."""
    source = random.Random(4)
    rare = ["".join(source.choices(LETTERS, k=8)) for _ in range(300)]
    paragraphs = []
    for index in range(0, 300, 3):
        paragraphs.append(" ".join([*rare[index : index + 3] * 3, *["plasma"] * 9]))
    (tmp_path / "text").write_text("\n\n".join(paragraphs))
    pruned = []
    drop = data_prep.text.added_words._without_rare_words
    monkeypatch.setattr(data_prep.text.added_words, "_MOST_WORDS", num_most)
    monkeypatch.setattr(
        data_prep.text.added_words, "_without_rare_words",
        lambda counts: pruned.append(len(counts)) or drop(counts),
    )  # fmt: skip
    rules = TextRules.of(lowercase=True, strip_accents=None)
    counts = count_words(Paragraphs(find_files([str(tmp_path / "text")])), rules)
    assert counts["plasma"] == 900
    assert len(counts) <= num_most
    assert max(pruned) <= num_most + 3
    assert len(pruned) <= 300 / (num_most / 2 - 1) + 1


def test_a_word_that_can_never_be_one_piece_is_refused(preset, tmp_path):
    (tmp_path / "words").write_text(f"plasma\n{'plasma' * 17}\n")
    with pytest.raises(BadInputError, match=r"line 2: 'plasmap.*': would never become one piece"):
        extend_vocabulary(
            preset, str(tmp_path / "preset"), words_file=str(tmp_path / "words"), num_markers=0
        )


@pytest.mark.parametrize("others", ["", "plasma plasma"])
def test_the_share_of_unknown_words_is_said(others, preset, tmp_path, capsys):
    (tmp_path / "text").write_text(f"жук щит жук щит {others}")
    options = {"input_pattern": [str(tmp_path / "text")], "size": 1}
    if others:
        extend_vocabulary(preset, str(tmp_path / "out"), **options)
        printed = capsys.readouterr().out
        assert "2.667 before, 1.000 now" in printed  # `plasma` is six letters
        assert "66.7% of the words of the text are [UNK]" in printed
    else:
        with pytest.raises(BadInputError, match=r"100.0% of the words of the text are \[UNK\]"):
            extend_vocabulary(preset, str(tmp_path / "out"), **options)


def test_a_preset_that_cannot_be_extended_is_refused(preset, tmp_path):
    shutil.copytree(preset, tmp_path / "adapter")
    config = {"peft_type": "LORA", "base_model_name_or_path": preset}
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(config))
    backbone = keras_hub.models.BertBackbone(len(VOCABULARY), 1, 2, 8, 8)
    backbone.save_to_preset(str(tmp_path / "stock"))
    keras_hub.models.BertTokenizer(VOCABULARY).save_to_preset(str(tmp_path / "stock"))
    for name, message in (("adapter", "is an adapter"), ("stock", "not a SpanBertTokenizer")):
        (tmp_path / "words").write_text("plasma\n")
        with pytest.raises(BadInputError, match=f"{tmp_path / name}: .*{message}"):
            extend_vocabulary(
                str(tmp_path / name), str(tmp_path / "out"), words_file=str(tmp_path / "words")
            )
    assert not (tmp_path / "out").exists()


def test_what_to_add_is_said_once(preset, text, tmp_path):
    output = str(tmp_path / "preset")
    for options in ({}, {"size": 3, "words_file": "words"}):
        with pytest.raises(ConfigurationError, match="give either --size, with --input, or --wo"):
            extend_vocabulary(preset, output, input_pattern=[str(text)], **options)
    with pytest.raises(ConfigurationError, match="--size: needs --input"):
        extend_vocabulary(preset, output, size=3)
    (tmp_path / "known.txt").write_text("the blood . the blood .")
    with pytest.raises(BadInputError, match="there is nothing to add"):
        extend_vocabulary(preset, output, input_pattern=[str(tmp_path / "known.txt")], size=3)
