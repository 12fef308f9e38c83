"""Versions beside one another, and files that export did not write."""

import hashlib
import signal
import subprocess
import sys

import keras
import pytest

from spanbert_tf.cli import main
from spanbert_tf.errors import BadInputError
from spanbert_tf.models import (
    SpanBertBackbone,
    SpanBertMaskedLM,
    SpanBertMaskedLMPreprocessor,
    SpanBertTokenizer,
)
from spanbert_tf.serving.exporting import _write_version

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "."]

KILLED_AS_IT_WRITES = """
import os, signal
from spanbert_tf.cli import main
from spanbert_tf.lazy import import_keras
import_keras()
from spanbert_tf.serving import exporting
exporting.Output.publish = lambda output: os.kill(os.getpid(), signal.SIGKILL)
main()
"""


@pytest.fixture(scope="module")
def preset(tmp_path_factory):
    keras.utils.set_random_seed(1)
    backbone = SpanBertBackbone(len(VOCABULARY), 2, 4, 32, 37, max_sequence_length=16)
    tokenizer = SpanBertTokenizer(VOCABULARY, lowercase=True)
    model = SpanBertMaskedLM(backbone, SpanBertMaskedLMPreprocessor(tokenizer, sequence_length=16))
    model.is_head_trained = True
    model.set_weights([weight + 0.1 for weight in model.get_weights()])
    path = str(tmp_path_factory.mktemp("presets") / "preset")
    model.save_to_preset(path)
    return path


def export(preset, output, *options):
    with pytest.raises(SystemExit) as stop:
        main(["export", "--preset", preset, "--output", str(output), "--top-k", "2", *options])
    return stop.value.code


def digests(directory):
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).digest()
        for path in directory.rglob("*")
        if path.is_file()
    }


@pytest.mark.slow
def test_what_a_killed_export_left_is_removed_by_the_next(preset, tmp_path):
    output = tmp_path / "served"
    arguments = ("export", "--preset", preset, "--output", str(output))
    killed = subprocess.run([sys.executable, "-c", KILLED_AS_IT_WRITES, *arguments])
    assert killed.returncode == -signal.SIGKILL
    left = {path.name for path in output.iterdir()}
    assert left == {".1.lock", "1.incomplete"}
    assert export(preset, output) == 0
    names = {path.name for path in output.iterdir()}
    assert names == {"1", "README.md", "models.config", "batching_parameters.txt"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["served"]


@pytest.mark.slow
def test_an_export_into_the_directory_that_one_is_in(preset, tmp_path, monkeypatch):
    """Its versions appear in it; it is not replaced itself."""
    (tmp_path / "served").mkdir()
    monkeypatch.chdir(tmp_path / "served")
    assert export(preset, ".") == 0
    assert (tmp_path / "served" / "1" / "saved_model.pb").exists()


@pytest.mark.parametrize("has_directory", [False, True])
def test_an_export_that_is_refused_as_it_is_written_leaves_no_new_directory(
    has_directory, tmp_path
):
    output = tmp_path / "served"
    if has_directory:
        output.mkdir()

    def refuse(directory):
        raise BadInputError("give as many")

    with pytest.raises(BadInputError, match="give as many"):
        _write_version(refuse, lambda *names: None, str(output / "1"), overwrite=False)
    assert list(tmp_path.rglob("*")) == [output] * has_directory


@pytest.mark.slow
def test_only_what_an_earlier_export_wrote_is_replaced(preset, tmp_path, capfd):
    output = tmp_path / "served"
    output.mkdir()
    (output / "README.md").write_text("# My models\n")
    (output / "notes").write_text("mine")
    assert export(preset, f"{output}/") == 0
    assert f"{output / 'README.md'}: is not as `export` wrote it" in capfd.readouterr().out
    names = {path.name for path in output.iterdir()}
    assert names == {"1", "README.md", "notes", "models.config", "batching_parameters.txt"}
    assert (output / "README.md").read_text() == "# My models\n"
    assert 'name: "served"' in (output / "models.config").read_text()
    before = digests(output)
    assert export(preset, output) == 2
    assert "give --overwrite" in capfd.readouterr().err
    assert digests(output) == before

    (output / "README.md").unlink()
    configuration = output / "models.config"
    configuration.write_text(configuration.read_text().replace("tensorflow", "mine"))
    changed = configuration.read_text()
    assert export(preset, output, "--overwrite") == 0
    printed = capfd.readouterr().out
    assert f"{configuration}: is not as" in printed and "batching" not in printed
    following = f"Next:\n  cat {output / 'README.md'}\n  spanbert-tf serve {output}\n"
    assert printed.endswith(f" MB\n{following}")
    assert configuration.read_text() == changed
    assert "docker run" in (output / "README.md").read_text()

    (output / "1" / "variables" / "mine").write_text("mine")
    before = digests(output)
    assert export(preset, output, "--overwrite") == 2
    assert "holds other things than an exported model" in capfd.readouterr().err
    assert digests(output) == before
