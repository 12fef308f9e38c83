import functools
import json
import os

import filelock
import pytest
from hosts import network_of, spanbert_tf, start_workers
from small_runs import STEPS, Preparation, assert_succeed, command_line, weights_of
from tiny_models import VOCABULARY

from spanbert_tf.config import load_config
from spanbert_tf.models import SpanBertBackbone, SpanBertTokenizer
from spanbert_tf.presets.writing import write_preset


@pytest.fixture(scope="session")
def shared_directory(tmp_path_factory):
    """A directory of all processes of pytest-xdist, for what takes long to make."""
    directory = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        directory = directory.parent  # of the run, in which each process has a directory
    directory /= "shared"
    directory.mkdir(exist_ok=True)
    return directory


@pytest.fixture(scope="session")
def place(shared_directory, tiny_overrides, tiny_records):
    """What both commands need."""
    place = shared_directory / "place"
    with filelock.FileLock(f"{place}.lock"):
        if not place.exists():
            _make_place(place, tiny_overrides, tiny_records)
    return place


def _make_place(place, overrides, records):
    place.mkdir()
    (place / "config.yaml").write_text(load_config("spanbert_base", overrides).to_yaml())
    (place / "records").symlink_to(records)
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


@pytest.fixture(scope="session")
def undisturbed(place, shared_directory):
    """The weights of each command's run of two hosts, which is trained when a test asks for it."""

    @functools.cache
    def weights(command, steps=STEPS):
        run = shared_directory / f"{command}-{steps}-undisturbed"
        with filelock.FileLock(f"{run}.lock"):
            if not (run / "preset").exists():
                with network_of(2) as hosts:
                    workers = start_workers(hosts, command_line(command, place, run, steps))
                    assert_succeed(workers, steps)
        return weights_of(command, run)

    return weights


@pytest.fixture(scope="session")
def preparation(shared_directory):
    preparation = Preparation(shared_directory / "preparation")
    with filelock.FileLock(f"{preparation.directory}.lock"):
        if not preparation.directory.exists():
            preparation.make()
    return preparation
