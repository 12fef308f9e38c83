import functools
import json

import pytest
from hosts import network_of, spanbert_tf, start_workers
from small_runs import STEPS, Preparation, assert_succeed, command_line, weights_of
from tiny_models import VOCABULARY

from spanbert_tf.config import load_config
from spanbert_tf.models import SpanBertBackbone, SpanBertTokenizer
from spanbert_tf.presets.writing import write_preset


@pytest.fixture(scope="session")
def place(tmp_path_factory, tiny_overrides, tiny_records):
    """What both commands need."""
    place = tmp_path_factory.mktemp("cluster")
    (place / "config.yaml").write_text(load_config("spanbert_base", tiny_overrides).to_yaml())
    (place / "records").symlink_to(tiny_records)
    backbone = SpanBertBackbone(len(VOCABULARY), 1, 2, 8, 8, dropout=0.0, max_sequence_length=32)
    tokenizer = SpanBertTokenizer(VOCABULARY, lowercase=True)
    write_preset(backbone, str(place / "encoder"), tokenizer=tokenizer)
    (place / "vocab.txt").write_text("".join(f"{piece}\n" for piece in VOCABULARY))
    texts = [{"text": "ann has the cat", "label": "a"}, {"text": "who ? bob", "label": "b"}] * 12
    (place / "texts.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in texts))
    options = ["--sequence-length", 32, "--vocabulary", place / "vocab.txt", "--lowercase"]
    options += ["--text-column", "text", "--label-column", "label"]
    inputs = ["--input", place / "texts.jsonl", "--output", place / "texts"]
    spanbert_tf("prepare", "classification", *options, *inputs)
    return place


@pytest.fixture(scope="session")
def undisturbed(place):
    """The weights of each command's run of two hosts, found when asked for."""

    @functools.cache
    def weights(command, steps=STEPS):
        run = place / f"{command}-{steps}-undisturbed"
        with network_of(2) as hosts:
            assert_succeed(start_workers(hosts, command_line(command, place, run, steps)), steps)
        return weights_of(command, run)

    return weights


@pytest.fixture(scope="session")
def preparation(tmp_path_factory):
    return Preparation(tmp_path_factory.mktemp("preparation"))
