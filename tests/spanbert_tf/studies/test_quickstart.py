import collections
import itertools
import math
import os
import pathlib
import random

import pyarrow
import pyarrow.parquet
import pytest

from spanbert_tf.config import load_config
from spanbert_tf.data import pretraining_dataset
from spanbert_tf.data.manifest import PretrainingManifest
from spanbert_tf.errors import BadInputError
from spanbert_tf.studies import quickstart
from spanbert_tf.studies.fillings import choose_masked_sentences
from spanbert_tf.studies.quickstart import write_python_texts
from spanbert_tf.training.metrics_log import read_metrics

WORDS = ("river", "stone", "green", "quiet", "under", "morning", "letter", "window")


@pytest.fixture(scope="module")
def output(tiny_overrides, tmp_path_factory):
    """What the quickstart writes for a small text and an even smaller model."""
    directory = tmp_path_factory.mktemp("quickstart")
    source = random.Random(0)
    os.mkdir(directory / "text")
    for number in range(12):
        sentences = [
            " ".join(source.choices(WORDS, k=source.randint(8, 12))).capitalize() + "."
            for _ in range(30)
        ]
        (directory / "text" / f"{number}.txt").write_text("\n\n".join(sentences))
    longer = ["model.max_sequence_length=64", "data.sequence_length=64", "training.steps=20"]
    config = load_config("spanbert_tiny", [*tiny_overrides, *longer])
    (directory / "small.yaml").write_text(config.to_yaml())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quickstart, "CONFIG", str(directory / "small.yaml"))
        patch.setattr(quickstart, "VOCABULARY_SIZE", 100)
        quickstart.run_quickstart(str(directory / "output"), f"{directory}/text/*.txt")
    return directory / "output"


@pytest.mark.slow
def test_everything_is_there(output):
    assert {path.name for path in output.iterdir()} == {
        "vocab.txt",
        "records",
        "run",
        "served",
        "losses.png",
        "span_lengths.png",
    }
    assert (output / "served" / "1" / "saved_model.pb").exists()
    assert (output / "run" / "preset" / "task.weights.h5").exists()
    for picture in ("losses.png", "span_lengths.png"):
        assert (output / picture).read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_unigrams_cost_what_plain_python_says(output):
    config = load_config(str(output / "run" / "config.yaml"))
    records = str(output / "records")
    training, targets = collections.Counter(), []
    for batch in pretraining_dataset(records, batch_size=1, split="train").take(
        PretrainingManifest.load(records).num_records("train")  # one epoch
    ):
        row = batch["token_ids"][0].numpy()
        for position, token in zip(
            batch["mask_positions"][0].numpy(), batch["mask_ids"][0].numpy(), strict=True
        ):
            row[position] = token if position else row[position]  # unused slots point at 0
        length = int(batch["padding_mask"][0].numpy().sum())
        training.update(row[1 : length - 1].tolist())
    for batch in pretraining_dataset(records, batch_size=1, split="validation"):
        used = batch["mask_weights"][0].numpy() == 1
        targets += batch["mask_ids"][0].numpy()[used].tolist()
    size = len((output / "vocab.txt").read_text().splitlines())
    total = training.total() + size
    expected = -sum(math.log((training[token] + 1) / total) for token in targets) / len(targets)
    assert quickstart.unigram_cross_entropy(config, records) == pytest.approx(expected, rel=1e-6)


@pytest.mark.slow
def test_model_is_trained_and_evaluated(output):
    lines = read_metrics(str(output / "run" / "metrics.jsonl"))
    evaluations = [line["validation_masked_lm_loss"] for line in lines if "validation_loss" in line]
    assert evaluations[-1] < evaluations[0]


@pytest.mark.slow
def test_masked_sentences_are_held_out_text(output):
    text = " ".join(path.read_text() for path in (output.parent / "text").iterdir())
    text = text.replace(".", " .").split()
    sentences = choose_masked_sentences(str(output / "records"), 3)
    assert len(sentences) == 3
    for sentence in sentences:
        words = sentence.text.split()
        assert words.count("[MASK]") == 1
        words[words.index("[MASK]")] = sentence.answer
        places = range(len(text) - len(words) + 1)
        assert any(text[place : place + len(words)] == words for place in places)


def test_existing_output_is_refused(tmp_path):
    (tmp_path / "thesis.txt").write_text("Do not touch.")
    with pytest.raises(BadInputError, match="exists already"):
        quickstart.run_quickstart(str(tmp_path))
    assert os.listdir(tmp_path) == ["thesis.txt"]


def test_a_short_text_is_told_in_the_quickstart_s_own_words(tmp_path):
    (tmp_path / "short.txt").write_text("Hello world.\n")
    message = rf"^{tmp_path}/short.txt: is too short for the quickstart: 1 training and 0 held-out"
    with pytest.raises(BadInputError, match=message) as caught:
        quickstart.run_quickstart(str(tmp_path / "output"), str(tmp_path / "short.txt"))
    assert "--set" not in str(caught.value)


def test_the_text_of_a_table_is_read_from_its_column(tmp_path):
    table = pyarrow.table({"title": ["Greeting"] * 2, "body": ["Hello world."] * 2})
    pyarrow.parquet.write_table(table, tmp_path / "own.parquet")
    with pytest.raises(BadInputError, match="too short for the quickstart: 1 training and 1 "):
        quickstart.run_quickstart(
            str(tmp_path / "output"), str(tmp_path / "own.parquet"), text_columns=["body"]
        )
    vocabulary = (tmp_path / "output" / "vocab.txt").read_text().splitlines()
    letters = {piece.removeprefix("##") for piece in vocabulary if len(piece.strip("#")) == 1}
    assert letters == set("Helloworld.")  # none of the title


@pytest.mark.slow
def test_texts_of_python_are_prose_without_repetitions(tmp_path):
    num_files = write_python_texts(str(tmp_path / "text"))
    files = sorted(pathlib.Path(tmp_path, "text").iterdir())
    assert num_files == len(files) > 100
    paragraphs = [file.read_text(encoding="utf-8").strip().split("\n\n") for file in files]
    flat = list(itertools.chain.from_iterable(paragraphs))
    assert len(set(flat)) == len(flat)
    assert all(len(paragraph.split()) > 5 for paragraph in flat)
    assert not any(">>>" in paragraph for paragraph in flat)
    assert sum(map(len, flat)) > 1_000_000  # characters: enough to learn from
    names = [file.name for file in files]
    assert "reference.types.txt" in names
    assert "module.json.decoder.txt" in names
