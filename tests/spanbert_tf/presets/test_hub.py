"""Presets of `hf://`, from a server of this machine that speaks as the Hugging Face Hub does."""

import contextlib
import hashlib
import http.server
import json
import os
import pathlib
import shutil
import subprocess
import sys
import threading

import pytest
from tiny_models import VOCABULARY

from spanbert_tf.models import SpanBertBackbone, SpanBertTokenizer
from spanbert_tf.presets.writing import write_preset

pytestmark = pytest.mark.slow

LENGTH = 32
COMMIT = hashlib.sha1(b"the only one").hexdigest()


class Hub(http.server.BaseHTTPRequestHandler):
    """Serves OWNER/MODEL/FILE of `root` as files of the main branch of models."""

    root: pathlib.Path

    def _answer(self, *, has_body):
        model, _, file = self.path.strip("/").partition("/resolve/main/")
        path = self.root / model / file
        if not (file and path.is_file()):
            is_model = (self.root / model / "config.json").is_file()
            code = "EntryNotFound" if is_model else "RepoNotFound"
            self.send_response(404)
            self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        content = path.read_bytes()
        self.send_response(200)
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if has_body:
            self.wfile.write(content)

    def do_GET(self):
        self._answer(has_body=True)

    def do_HEAD(self):
        self._answer(has_body=False)

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def serving(root):
    handler = type("HubOfTest", (Hub,), {"root": root})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def hub(tmp_path):
    """The directory of the models of one owner, and `spanbert-tf` as it runs beside that hub."""
    (tmp_path / "hub" / "us").mkdir(parents=True)
    with serving(tmp_path / "hub") as endpoint:

        def run(*arguments, status=0, endpoint=endpoint):
            ended = subprocess.run(
                [sys.executable, "-m", "spanbert_tf.cli", *map(str, arguments)],
                env={**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "cache")},
                cwd=tmp_path,
                capture_output=True,
                text=True,
            )
            assert ended.returncode == status, ended.stderr
            return ended

        yield tmp_path / "hub" / "us", run


def write_encoder(path):
    backbone = SpanBertBackbone(len(VOCABULARY), 1, 2, 8, 8, max_sequence_length=LENGTH)
    tokenizer = SpanBertTokenizer(VOCABULARY, lowercase=True)
    write_preset(backbone, str(path), tokenizer=tokenizer)


def test_from_convert_to_an_export(hub, tmp_path):
    models, run = hub
    write_encoder(tmp_path / "encoder")
    run("convert", "--from", "keras", "--to", "huggingface", "encoder", "theirs")
    run("convert", "--from", "huggingface", "--to", "keras", "theirs", models / "encoder")
    texts = [{"text": "ann has the cat", "label": "a"}, {"text": "who ? bob", "label": "b"}] * 4
    (tmp_path / "texts.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in texts))
    (tmp_path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in VOCABULARY))
    options = ["--sequence-length", LENGTH, "--text-column", "text", "--label-column", "label"]
    options += ["--input", "texts.jsonl", "--output", "records", "--lowercase"]
    run("prepare", "classification", *options, "--vocabulary", "vocab.txt")
    settings = ["training.max_steps=4", "training.batch_size=8", f"data.sequence_length={LENGTH}"]
    settings = [word for setting in settings for word in ("--set", setting)]
    words = ["--config", "classification", "--preset", "hf://us/encoder", "--data", "records"]
    run("finetune", *words, "--output", "run", *settings)
    shutil.copytree(tmp_path / "run" / "preset", models / "classifier")
    answers = [
        run("predict", "--preset", preset, "--input", "texts.jsonl", "--output", f"{number}.jsonl")
        and (tmp_path / f"{number}.jsonl").read_bytes()
        for number, preset in enumerate(["hf://us/classifier", "run/preset"])
    ]
    assert answers[0] == answers[1]
    run("export", "--preset", "hf://us/classifier", "--output", "served")
    assert (tmp_path / "served" / "1" / "saved_model.pb").is_file()


def test_what_is_not_there_or_not_whole_is_a_line(hub, tmp_path):
    models, run = hub
    write_encoder(models / "encoder")

    def line(preset, **options):
        words = ["export", "--preset", preset, "--output", "served", "--embeddings"]
        [line] = run(*words, status=2, **options).stderr.splitlines()
        assert not (tmp_path / "served").exists()
        assert line.startswith(f"spanbert-tf: {preset}: ")
        return line

    for name in ("hf://us/nothing", "hf://us"):
        assert "no preset (404 Client Error.); check the name and the network" in line(name)
    found = line("hf://us/encoder", endpoint="http://127.0.0.1:9")
    assert "no preset (the hub does not answer, and no copy is here)" in found
    weights = models / "encoder" / "model.weights.h5"
    content = bytearray(weights.read_bytes())
    content[-3] ^= 1
    weights.write_bytes(content)
    assert "model.weights.h5" in line("hf://us/encoder")
