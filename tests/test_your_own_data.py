"""The page "Your own data in ten minutes": its files and its lines, as a reader has them."""

import json
import pathlib
import re
import shlex
import subprocess

import keras
import pytest

from spanbert_tf.cli import main
from spanbert_tf.models import SpanBertBackbone, SpanBertTokenizer
from spanbert_tf.presets.writing import write_preset

PAGE = pathlib.Path(__file__).parents[1] / "docs" / "your_own_data.md"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
# Section → what its lines leave behind: the report, the predictions, and the keys of one.
SECTIONS = {
    "Text classification": ("mails.html", "answers.jsonl", {"label", "score"}),
    "Named entities": ("names.html", "entities.jsonl", None),
    "Question answering": ("questions.html", "found.jsonl", {"score", "start", "end", "answer"}),
    "Coreference resolution": ("stories.html", "clusters.jsonl", {"text", "clusters", "strings"}),
}


def section(title):
    return re.search(rf"^## {title}\n(.*?)(?=^## )", PAGE.read_text(), re.MULTILINE | re.DOTALL)[1]


def write_tiny_encoder(path, text):
    """Stands for the encoder that the page converts: the characters of a text are its pieces."""
    characters = sorted(set(text.lower()) - set(" \n"))
    vocabulary = [*SPECIAL, *characters, *(f"##{one}" for one in characters)]
    keras.utils.set_random_seed(1)
    backbone = SpanBertBackbone(len(vocabulary), 2, 2, 32, 64, max_sequence_length=512)
    tokenizer = SpanBertTokenizer(vocabulary, lowercase=True)
    write_preset(backbone, str(path), tokenizer=tokenizer)


@pytest.mark.slow
@pytest.mark.parametrize("title", SECTIONS)
def test_each_section_goes_from_its_files_to_predictions(
    title, tmp_path, monkeypatch, shipped_classes_alone
):
    monkeypatch.chdir(tmp_path)
    text = section(title)
    files = re.findall(r"`([\w.]+)`:\n\n```\w+\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    for name, content in files:
        pathlib.Path(name).write_text(content)
    write_tiny_encoder("encoder", text)
    (block,) = re.findall(r"^```bash\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = block.replace("\\\n", " ").splitlines()
    assert len(lines) <= 10
    for line in lines:
        if line.startswith("spanbert-tf "):
            with pytest.raises(SystemExit) as stop:
                main(shlex.split(line)[1:])
            assert stop.value.code == 0, line
        else:
            subprocess.run(["bash", "-c", line], check=True)
    report, predictions, keys = SECTIONS[title]
    assert "<article" in pathlib.Path(report).read_text()
    (answer,) = map(json.loads, pathlib.Path(predictions).read_text().splitlines())
    assert isinstance(answer, list) if keys is None else keys <= answer.keys()


def test_the_page_has_every_section_that_is_run():
    titles = re.findall(r"^## (.*)", PAGE.read_text(), re.MULTILINE)
    assert titles[: len(SECTIONS)] == list(SECTIONS)
