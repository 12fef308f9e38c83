"""The README of an export says how a client finds the sentences that the export takes."""

import json
import re
import shutil

import nltk
import pytest
import tensorflow as tf
from tiny_models import pipeline_of, tiny_model

from spanbert_tf.text.sentences import find_sentence_starts

TEXT = "J. Bob saw 5. cats.) Ann J. 5.\n\nÉva sat. “Mr. Ann, U.S. citizen” etc. He"


@pytest.fixture(scope="module")
def served():
    return pipeline_of("coreference").served(tiny_model("coreference"), 1)


@pytest.fixture(scope="module")
def section(served):
    """What the README says of sentences."""
    return served.readme("served").partition("## Sentences")[2].partition("## ")[0]


def test_programs_find_the_sentences_of_records(section, shared_data, tmp_path, monkeypatch):
    folder = tmp_path / "nltk_data"
    shutil.copytree(shared_data / "other_languages" / "nltk_data", folder)
    for path in [folder, *folder.rglob("*")]:  # NLTK refuses a folder that others can write
        path.chmod(0o755)
    monkeypatch.setattr(nltk.data, "path", [str(folder)])
    programs = re.findall(r"```python\n(.*?)```", section, re.S)
    assert len(programs) == 2
    for program in programs:
        names = {"text": TEXT}
        exec(program, names)
        assert names["starts"] == find_sentence_starts(TEXT, "en")


@pytest.mark.slow
def test_the_request_has_the_answer_of_its_text(served, section):
    (request,) = re.findall(r"curl -d '(.*)' \\\n", section)
    inputs = json.loads(request)["inputs"]
    assert inputs["sentence_starts"] == [find_sentence_starts(inputs["text"][0], "en")]
    function, specs = served.signatures["sentences"]
    columns = [tf.constant(inputs[spec.name], spec.dtype) for spec in specs]
    found = tf.function(function, input_signature=specs)(*columns)
    for name, expected in served.answer_example().items():
        tf.debugging.assert_equal(found[name], expected)


@pytest.mark.parametrize(
    ("language", "says", "does_not_say"),
    [
        ("de", ['PunktTokenizer("german")', "NLTK's Punkt", '(text, "de")'], ["english", "99 %"]),
        ("zh", ["as\nICU does", '(text, "zh")', "find most of"], ["nltk", "Punkt", "99 %"]),
    ],
)
def test_the_sentences_are_those_of_the_language(language, says, does_not_say):
    model = tiny_model("coreference")
    model.preprocessor.tokenizer.language = language
    readme = pipeline_of("coreference").served(model, 1).readme("served")
    section = readme.partition("## Sentences")[2].partition("## ")[0]
    assert all(words in section for words in says), section
    assert not any(words in section for words in does_not_say), section


def test_other_exports_say_nothing_of_sentences():
    model = tiny_model("question_answering")
    served = pipeline_of("question_answering").served(model, 1)
    assert "entence" not in served.readme("served")
    assert set(served.signatures) == {"serving_default", "token_ids"}
