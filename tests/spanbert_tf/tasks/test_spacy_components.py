"""Components of spaCy: their answers are those of predictors, at spaCy's tokens."""

import json
import shutil
import subprocess
import sys

import hypothesis
import pytest
from hypothesis import strategies as st
from tiny_models import SENTENCE, tiny_model

from spanbert_tf.errors import BadInputError
from spanbert_tf.presets.writing import write_preset
from spanbert_tf.tasks.prediction import Predictor, export_preset

spacy = pytest.importorskip("spacy")
from spacy.tokens import Doc  # noqa: E402

from spanbert_tf.tasks.spacy_components import _holders  # noqa: E402

# spaCy does not part a word at a hyphen between numbers, nor at a stop inside; BERT does.
TEXTS = [
    SENTENCE,
    "who has the cat ? bob has.the cat",
    "",
    "\U0001f989 bob\n\nhas  7-8 cats",
    " ann ",
    "bob " * 40,
]
PROGRAM = """
import json, sys, spacy
if __name__ == "__main__":
    pipeline, kind, *texts = sys.argv[1:]
    if kind == "spawn":
        import multiprocessing
        multiprocessing.set_start_method("spawn")
    nlp = spacy.load(pipeline)
    if kind == "used":  # TensorFlow has threads, and they will not be forked
        nlp(texts[0])
    found = [
        [(span.start_char, span.end_char, span.label_) for span in doc.ents]
        for doc in nlp.pipe(texts, n_process=1 if kind == "alone" else 2, batch_size=2)
    ]
    print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def presets(tmp_path_factory):
    """Task → the preset of a tiny model."""
    directory = tmp_path_factory.mktemp("presets")
    for name in ("named_entities", "text_classification"):
        model = tiny_model(name)
        model.is_head_trained = True
        write_preset(model, str(directory / name))
    return {path.name: str(path) for path in directory.iterdir()}


def pipeline_of(task, preset, **config):
    nlp = spacy.blank("en")
    nlp.add_pipe(f"spanbert_{task}", config={"model": preset, **config})
    return nlp


@pytest.fixture(scope="module")
def finder(presets):
    return pipeline_of("named_entities", presets["named_entities"])


def entities(doc):
    return [(span.start_char, span.end_char, span.label_) for span in doc.ents]


def test_entities_are_those_of_the_predictor_at_whole_tokens(presets, finder):
    expected = Predictor(presets["named_entities"])(TEXTS)
    assert sum(map(len, expected)) > 5  # of which something can be wrong
    for doc, answer in zip(finder.pipe(TEXTS), expected, strict=True):
        found = entities(doc)
        for start, end, label in found:
            inside = [one for one in answer if start < one["end"] and one["start"] < end]
            assert label in {one["entity_group"] for one in inside}
            assert start <= min(one["start"] for one in inside)
        for one in answer:  # each is there, or lies in one that shares a token with it
            assert any(start < one["end"] and one["start"] < end for start, end, _ in found)
    separate = entities(finder(SENTENCE))
    assert separate == [(one["start"], one["end"], one["entity_group"]) for one in expected[0]]


@pytest.mark.parametrize("batching", [{"batch_size": 1}, {"batch_size": 4}])
@pytest.mark.parametrize("config", [{"batch_size": 2}, {"max_tokens_in_batch": 20}])
def test_batches_change_no_answer_and_no_order(presets, finder, batching, config):
    nlp = pipeline_of("named_entities", presets["named_entities"], **config)
    docs = list(nlp.pipe(TEXTS, **batching))
    assert [doc.text for doc in docs] == TEXTS
    assert [entities(doc) for doc in docs] == [entities(finder(text)) for text in TEXTS]


@hypothesis.given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(1, 4)).map(lambda x: (x[0], sum(x))))
)
def test_places_that_hold_others(places):
    expected = {
        place
        for index, place in enumerate(places)
        for other in places[:index] + places[index + 1 :]
        if place[0] <= other[0] and other[1] <= place[1]
    }
    assert _holders(places) == expected


def test_an_export_gives_all_classes(tmp_path):
    """However few answers it was exported with."""
    model = tiny_model("text_classification")
    model = type(model)(model.backbone, num_classes=7, preprocessor=model.preprocessor)
    model.is_head_trained = True
    preset = str(tmp_path / "preset")
    write_preset(model, preset)
    export = export_preset(preset, str(tmp_path / "served"), top_k=2)
    expected = Predictor(preset)(SENTENCE, top_k=7)
    cats = pipeline_of("text_classification", export)(SENTENCE).cats
    assert cats == pytest.approx({one["label"]: one["score"] for one in expected}, abs=1e-5)
    assert len(cats) == 7


def test_classes_get_all_their_probabilities(presets):
    preset = presets["text_classification"]
    cats = pipeline_of("text_classification", preset)(SENTENCE).cats
    best = Predictor(preset)(SENTENCE)
    assert len(cats) == 2
    assert sum(cats.values()) == pytest.approx(1)
    assert max(cats, key=cats.get) == best["label"]
    assert cats[best["label"]] == pytest.approx(best["score"], abs=1e-5)


def test_a_pipeline_on_disk_needs_the_preset_no_more(presets, finder, tmp_path):
    preset = shutil.copytree(presets["named_entities"], tmp_path / "preset")
    pipeline_of("named_entities", str(preset)).to_disk(tmp_path / "pipeline")
    shutil.rmtree(preset)
    nlp = spacy.load(tmp_path / "pipeline")
    expected = [entities(finder(text)) for text in TEXTS]
    assert [entities(nlp(text)) for text in TEXTS] == expected
    nlp.to_disk(tmp_path / "pipeline")  # upon itself
    nlp.to_disk(tmp_path / "other")
    again = spacy.load(tmp_path / "other")
    assert [entities(again(text)) for text in TEXTS] == expected


def test_a_pipeline_on_disk_has_the_files_of_its_last_model_alone(presets, tmp_path):
    for name in ("text_classification", "named_entities"):
        preset = shutil.copytree(presets[name], tmp_path / name)
        (preset / f"notes-{name}").touch()
        nlp = pipeline_of("named_entities", str(preset))
        nlp.to_disk(tmp_path / "pipeline")
    (model,) = (tmp_path / "pipeline").glob("*/model")
    assert {path.name for path in model.iterdir()} == {path.name for path in preset.iterdir()}


def test_a_pipeline_whose_model_has_a_name_keeps_no_earlier_model(presets, tmp_path):
    for model in (presets["named_entities"], "kaggle://user/model"):
        nlp = pipeline_of("named_entities", model)
        nlp.to_disk(tmp_path / "pipeline")
    assert not list((tmp_path / "pipeline").glob("*/model"))


def test_a_model_that_is_written_again_is_opened_again(presets, tmp_path):
    preset = shutil.copytree(presets["text_classification"], tmp_path / "preset")
    nlp = pipeline_of("named_entities", str(preset))
    with pytest.raises(BadInputError, match="is for text_classification"):
        nlp(SENTENCE)
    shutil.rmtree(preset)
    shutil.copytree(presets["named_entities"], preset)
    assert nlp(SENTENCE).ents


OTHERS = """
import spacy
from spacy.tokens import Doc
Doc.set_extension("coref_clusters", default="theirs")
nlp = spacy.blank("en")  # imports the modules of all entry points
assert not Doc.has_extension("resolved_text")
nlp.add_pipe("spanbert_coreference", config={"model": "unused"})
assert Doc.has_extension("resolved_text")
assert nlp.make_doc("a text")._.coref_clusters == "theirs"
"""


@pytest.mark.slow
def test_attributes_of_other_packages_stay():
    child = subprocess.run([sys.executable, "-c", OTHERS], capture_output=True, text=True)
    assert child.returncode == 0, child.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["alone", "fork", "used", "spawn"])
def test_fresh_processes(kind, finder, tmp_path):
    """One, and two more that it forks, before or after it used TensorFlow, or spawns."""
    finder.to_disk(tmp_path / "pipeline")
    (tmp_path / "program.py").write_text(PROGRAM)
    texts = [text for text in TEXTS if text]
    command = [sys.executable, str(tmp_path / "program.py"), str(tmp_path / "pipeline"), kind]
    place = tmp_path / "place"
    place.mkdir()
    if kind == "fork":  # what predicts then is a process of ours, which imports nothing from there
        (place / "string.py").write_text("raise SystemExit(9)\n")
    child = subprocess.run([*command, *texts], capture_output=True, text=True, cwd=place)
    assert child.returncode == 0, child.stderr[-3000:]
    expected = [[list(one) for one in entities(finder(text))] for text in texts]
    assert json.loads(child.stdout) == expected


def test_a_model_of_another_task_is_refused_and_handlers_are_asked(presets):
    nlp = pipeline_of("coreference", presets["named_entities"])
    with pytest.raises(BadInputError, match="is for named_entities, and the component for coref"):
        nlp(SENTENCE)
    failed = []
    nlp.set_error_handler(lambda name, component, docs, error: failed.extend(docs))
    assert list(nlp.pipe(TEXTS, batch_size=4)) == []
    assert [doc.text for doc in failed] == TEXTS
    with pytest.raises(BadInputError, match="nowhere: no preset"):
        pipeline_of("named_entities", "nowhere")(SENTENCE)


WORDS = ["Ann", "saw", "the", "dog", "of", "Bob", ";", "she", "and", "its", "owner", "left", "."]
POS = ["PROPN", "VERB", "DET", "NOUN", "ADP", "PROPN", "PUNCT", "PRON", "CCONJ", "PRON", "NOUN"]
POS += ["VERB", "PUNCT"]


@pytest.mark.parametrize(
    ("clusters", "expected"),
    [
        ([], "Ann saw the dog of Bob ; she and its owner left . "),
        ([[], [(0, 1), (7, 8)]], "Ann saw the dog of Bob ; Ann and its owner left . "),
        ([[(0, 1), (7, 8)]], "Ann saw the dog of Bob ; Ann and its owner left . "),
        # The owner, who holds the possessive pronoun, stays; the pronoun is replaced.
        (
            [[(2, 6), (9, 10)], [(5, 6), (9, 11)]],
            "Ann saw the dog of Bob ; she and the dog of Bob's owner left . ",
        ),
        # A pronoun before the name.
        ([[(7, 8), (10, 11)]], "Ann saw the dog of Bob ; owner and its owner left . "),
    ],
)
def test_mentions_are_replaced_by_the_first_one_with_a_noun(clusters, expected, finder):
    pipeline_of("coreference", "unused")  # which imports the module
    tags = ["PRP$" if word == "its" else "" for word in WORDS]
    doc = Doc(finder.vocab, words=WORDS, pos=POS, tags=tags)
    for number, spans in enumerate(clusters, start=1):
        doc.spans[f"coref_clusters_{number}"] = [doc[start:end] for start, end in spans]
    restored = Doc(finder.vocab).from_bytes(doc.to_bytes())
    for one in (doc, restored):
        assert one._.resolved_text == expected
        found = [[one.text[start:end] for start, end in spans] for spans in one._.coref_clusters]
        assert found == [[doc[start:end].text for start, end in spans] for spans in clusters]


def test_without_tags_the_first_mention_stands_for_all(finder):
    doc = Doc(finder.vocab, words=WORDS)
    doc.spans["coref_clusters_1"] = [doc[7:8], doc[0:1]]
    assert doc._.resolved_text == "she saw the dog of Bob ; she and its owner left . "


@pytest.mark.slow
def test_clusters_are_those_of_the_predictor(tmp_path):
    model = tiny_model("coreference")
    model.is_head_trained = True
    write_preset(model, str(tmp_path / "preset"))
    text = "ann has the cat . bob has the cat . who has ann ? bob ."
    expected = Predictor(str(tmp_path / "preset"))(text)["clusters"]
    assert expected
    doc = pipeline_of("coreference", str(tmp_path / "preset"))(text)
    assert doc._.coref_clusters == [[tuple(place) for place in spans] for spans in expected]
