"""What a model fills in before a run and after it, by records of made-up sentences."""

import os
import random

import pytest

from data_prep.beam.writing import write_pretraining_records
from spanbert_tf.cli import main
from spanbert_tf.models import (
    SpanBertBackbone,
    SpanBertMaskedLM,
    SpanBertMaskedLMPreprocessor,
    SpanBertTokenizer,
)
from spanbert_tf.presets.writing import write_preset
from spanbert_tf.studies.fillings import show_what_was_learned

WORDS = ("river", "stone", "green", "quiet", "under", "morning", "letter", "window")
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *WORDS]
LENGTH = 32


def model(seed, **options):
    backbone = SpanBertBackbone(len(VOCABULARY), 1, 2, 8, 8, max_sequence_length=LENGTH, **options)
    tokenizer = SpanBertTokenizer(VOCABULARY, lowercase=True)
    masked_lm = SpanBertMaskedLM(backbone, SpanBertMaskedLMPreprocessor(tokenizer, LENGTH))
    # Sure of one word, whatever the text.
    weights = masked_lm.masked_lm_head.weights
    (bias,) = (weight for weight in weights if weight.shape == (len(VOCABULARY),))
    bias.assign([20.0 * (piece == WORDS[seed]) for piece in VOCABULARY])
    masked_lm.is_head_trained = True
    return masked_lm


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Records, presets of two masked-language models, and the encoder of one of them."""
    directory = tmp_path_factory.mktemp("fillings")
    source = random.Random(0)
    sentences = [" ".join(source.choices(WORDS, k=9)) + "." for _ in range(80)]
    (directory / "text.txt").write_text("\n\n".join(sentences))
    (directory / "vocab.txt").write_text("".join(f"{piece}\n" for piece in VOCABULARY))
    write_pretraining_records(
        str(directory / "text.txt"),
        vocabulary=directory / "vocab.txt",
        lowercase=True,
        output=str(directory / "records"),
        sequence_length=LENGTH,
        validation_fraction=0.2,
    )
    for seed, name in enumerate(("before", "after")):
        write_preset(model(seed), str(directory / name))
    first = model(0)
    tokenizer = first.preprocessor.tokenizer
    write_preset(first.backbone, str(directory / "encoder"), tokenizer=tokenizer)
    segments = model(1, position_embeddings="segment_aware", num_paragraphs=4, num_sentences=4)
    write_preset(segments, str(directory / "segments"))
    return directory


def shown(directory, before, after, capsys):
    capsys.readouterr()
    show_what_was_learned(*(str(directory / name) for name in (before, after, "records")))
    return capsys.readouterr().out.splitlines()


def test_the_same_sentences_are_filled_in_before_and_after(directory, capsys):
    lines = shown(directory, "before", "after", capsys)
    assert lines[:2] == ["", "What the model fills in:"]
    assert len(lines) == 2 + 4 * 4
    for place in range(2, len(lines), 4):
        text, answer, before, after = lines[place : place + 4]
        assert text.split().count("[MASK]") == 1
        assert answer.removeprefix("  the text has: ") in WORDS
        assert before.startswith(f"  before training: {WORDS[0]} 100.0%, ")
        assert after.startswith(f"  after: {WORDS[1]} 100.0%, ")


def test_an_encoder_without_a_head_fills_in_nothing_before(directory, capsys):
    lines = shown(directory, "encoder", "after", capsys)
    assert len(lines) == 2 + 4 * 3
    assert not any("before training" in line for line in lines)


def test_models_that_a_text_alone_is_not_enough_for_show_nothing(directory, capsys):
    assert shown(directory, "before", "segments", capsys) == []


@pytest.mark.slow
def test_a_run_that_continues_a_preset_says_what_it_learned(directory, tmp_path, capfd):
    settings = [f"data.sequence_length={LENGTH}", "training.batch_size=4", "training.steps=2"]
    settings += ["training.schedule_steps=2", "optimizer.warmup_steps=1", "training.head_steps=0"]
    preset, records, run = str(directory / "before"), str(directory / "records"), tmp_path / "run"
    words = ["--config", "continue", "--initial-preset", preset, "--data", records]
    with pytest.raises(SystemExit) as stop:
        main(["pretrain", *words, "--output", str(run), "--set", *settings])
    printed = capfd.readouterr()
    assert stop.value.code == 0, printed.err
    assert os.path.isdir(run / "preset")
    said = printed.out.partition("What the model fills in:\n")[2].splitlines()
    assert sum(line.startswith("  before training: river") for line in said) == 4
    assert sum(line.startswith("  after: river") for line in said) == 4
