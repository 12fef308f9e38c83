"""Where sentences begin, against NLTK's Punkt with the parameters that this package ships."""

import gzip
import itertools
import json
import pathlib
import shutil

import hypothesis
import nltk
import pytest
import tensorflow as tf
from hypothesis import strategies as st
from icu4py.breakers import SentenceBreaker
from nltk.tokenize.punkt import PunktTokenizer
from nltk_sentences import tokenizer_of_nltk

from spanbert_tf.text import sentences
from spanbert_tf.text.languages import DEFAULT_LANGUAGE, LANGUAGES, check_language
from spanbert_tf.text.positions import find_sentences_in_graph
from spanbert_tf.text.sentences import (
    PUNKT_LANGUAGES,
    PunktSplitter,
    find_sentence_starts,
    nltk_model,
    sentence_splitter,
)

WORDS = ["Mr", "mr", "U.S", "x-mr", "Ph.D", "J", "b", "Smith", "The", "the", "He", "said", "etc"]
WORDS += ["1", "2.5", "-3", "No", "é", "É", "ß", "中", "edelman", "I", "_"]
MARKS = [".", "?", "!", "..", "...", ". . .", ",", ";", ":", "-", "--", "…", "/"]
QUOTES = [*"()[]{}\"'`#&*@", *"\u2018\u2019\u201c\u201d«»"]
SPACES = [" ", "  ", "\t", "\r", "\v", "\u00a0", "\u2003"]
LONG_PARTS = ["a", "a ", "“", '"', "`", "'.", ".'", ".", ". ", "\u00a0. ", "!)", "! ", ".\u00a0"]
LONG_PARTS += ["Mr. ", "a.) “", "J. ", "5.", "(", "-", "- ", "…", "one, ", "“a!” "]
FRAGMENTS = st.sampled_from([*WORDS, *MARKS, *QUOTES, *SPACES, *[" ", ". "] * 10])


@pytest.fixture(scope="module")
def splitter():
    return sentence_splitter("en")


@pytest.fixture(scope="module")
def punkt():
    return tokenizer_of_nltk("en")


def starts_of_punkt(punkt, paragraph):
    starts = [start for start, _ in punkt.span_tokenize(paragraph)]
    if paragraph and not starts:  # nothing but white space
        return [0]
    return starts


@hypothesis.settings(max_examples=500)
@hypothesis.given(st.lists(FRAGMENTS, max_size=15).map("".join))
@hypothesis.example("A . . . b.\u00a0.\u00a0. C")
@hypothesis.example("The x-mr. Smith sat.")
@hypothesis.example("'“Stop!!” he said.) --J. Bach. No. 5. 1. The end.")
def test_sentences_are_those_of_punkt(splitter, punkt, paragraph):
    assert splitter.find_starts(paragraph) == starts_of_punkt(punkt, paragraph)


@hypothesis.settings(max_examples=300)
@hypothesis.given(st.lists(st.lists(FRAGMENTS, max_size=6).map("".join), max_size=6))
@hypothesis.example([" .)?", "", " A. B. ", ".", "Mr.", "Smith."])
def test_lines_are_paragraphs(splitter, punkt, lines):
    expected = []
    first = 0
    for line in lines:
        expected += [first + start for start in starts_of_punkt(punkt, line)]
        first += len(line) + 1
    assert splitter.find_starts("\n".join(lines)) == expected


@pytest.mark.parametrize(
    "name", ["novels/1342_pride_and_prejudice.txt.gz", "wikipedia/AA/wiki_07.gz"]
)
def test_sentences_of_real_text_are_those_of_punkt(splitter, punkt, shared_data, name):
    text = gzip.decompress((shared_data / "text" / name).read_bytes()).decode()
    separator = "\n\n" if "novels" in name else "\n"
    for paragraph in text.split(separator)[:2000]:
        paragraph = paragraph.replace("\n", " ")
        assert splitter.find_starts(paragraph) == starts_of_punkt(punkt, paragraph)


def test_parameters_are_those_that_nltk_publishes(splitter, shared_data, tmp_path, monkeypatch):
    source = shared_data / "other_languages" / "nltk_data"
    folder = tmp_path / "nltk_data"
    shutil.copytree(source, folder)
    for path in [folder, *folder.rglob("*")]:  # NLTK refuses a folder that others can write
        path.chmod(0o755)
    monkeypatch.setattr(nltk.data, "path", [str(folder)])
    published = PunktTokenizer("english")._params
    assert published.abbrev_types == splitter.abbreviations
    assert published.collocations == splitter.collocations
    assert published.sent_starters == splitter.sentence_starters
    assert published.ortho_context == splitter.orthographic_contexts


def test_sentences_of_a_passage():
    text = (
        'Mr. J. Doe of the U.S. Army said "Go!" He went at 3 p.m. on Jan. 5, or so... '
        "“Why?” (Nobody knows.) It cost $2.5. The end.\n\nÉva sat. "
    )
    starts = find_sentence_starts(text, "en")
    assert [text[a:b] for a, b in zip(starts, [*starts[1:], None], strict=True)] == [
        'Mr. J. Doe of the U.S. Army said "Go!" ',
        "He went at 3 p.m. on Jan. 5, or so... ",
        "“Why?” ",
        "(Nobody knows.) ",
        "It cost $2.5. ",
        "The end.\n\n",
        "Éva sat. ",
    ]


@pytest.mark.parametrize("text", ["", "\n\n", " ", " \n ", "a", ".", "A. \n"])
def test_each_line_that_is_not_empty_begins_a_sentence(text):
    starts = find_sentence_starts(text, "en")
    lines = text.split("\n")
    first = [sum(len(line) + 1 for line in lines[:number]) for number in range(len(lines))]
    assert starts == [place for place, line in zip(first, lines, strict=True) if line]


@pytest.mark.parametrize("part", LONG_PARTS)
def test_a_long_text_of_anything_takes_linear_time(part):
    """Counted are the characters of all contexts that are looked at and not remembered."""
    seen = []

    class CountingSplitter(PunktSplitter):
        def _find_end_in(self, context):
            seen.append(len(context))
            return super()._find_end_in(context)

        def _find_certain_end(self, word):
            seen.append(len(word))
            return super()._find_certain_end(word)

    english = sentence_splitter("en")
    splitter = CountingSplitter(
        english.abbreviations,
        english.collocations,
        english.sentence_starters,
        english.orthographic_contexts,
    )
    text = part * (2**17 // len(part))
    starts = splitter.find_starts(text)
    assert starts[0] == 0 and starts == sorted(set(starts))
    assert sum(seen) <= 3 * len(text)
    # Another thing at the end changes nothing before it.
    half = part * (2**15 // len(part))
    short = splitter.find_starts(half)
    assert starts[: len(short) - 2] == short[:-2] or len(short) < 3


def test_a_long_paragraph_has_the_sentences_of_its_parts():
    parts = [f"She saw {'many ' * (number % 40)}things, number {number}. " for number in range(900)]
    starts = sentence_splitter("en").find_starts("".join(parts))
    ends = itertools.accumulate(map(len, parts))
    assert starts == [0, *ends][:-1]


def test_words_that_are_remembered_are_short_and_not_too_many():
    splitter = sentence_splitter("en")
    remembered = splitter._has_end.cache_info()
    splitter.find_starts(f"{'(a' * 1000}. B. " * 3)
    assert splitter._has_end.cache_info().currsize <= remembered.currsize + 1
    assert remembered.maxsize == splitter._is_certain_end.cache_info().maxsize == 2**16


@pytest.mark.parametrize("language", ["de", "ru", "ml", "tr", "el"])
@hypothesis.settings(max_examples=100)
@hypothesis.given(data=st.data())
def test_sentences_of_other_languages_are_those_of_punkt(language, data):
    splitter = sentence_splitter(language)
    words = sorted(splitter.abbreviations)[:50] + sorted(splitter.sentence_starters)[:50]
    words += [word for pair in sorted(splitter.collocations)[:20] for word in pair]
    words += itertools.islice(splitter.orthographic_contexts, 50)
    words += [word.capitalize() for word in words] + ["İ", "ı", "ß", "3"]
    fragments = st.sampled_from([*words, *MARKS, *QUOTES, *[" ", ". "] * 40])
    paragraph = "".join(data.draw(st.lists(fragments, max_size=15)))
    expected = starts_of_punkt(tokenizer_of_nltk(language), paragraph)
    assert splitter.find_starts(paragraph) == expected


def test_every_language_of_punkt_has_parameters():
    assert {"en", "de", "fr", "ru", "tr"} <= PUNKT_LANGUAGES <= set(LANGUAGES)
    assert len(PUNKT_LANGUAGES) == 19
    assert all(sentence_splitter(language).abbreviations for language in PUNKT_LANGUAGES)


def test_models_of_nltk_are_called_as_in_its_data():
    for path in pathlib.Path(sentences.__file__).with_name("punkt").glob("*.json"):
        source = json.loads(path.read_text())["source"]
        assert f"punkt_tab/{nltk_model(path.stem)})" in source
    assert nltk_model("zh") is None


@pytest.mark.parametrize(
    ("language", "sentences"),
    [
        ("zh", ["我们去北京。", "“他说：（好的！）”", "然后呢？", "走了"]),
        ("ja", ["今日は晴れ。", "「はい。」", "本当！？", "そう"]),
        ("hi", ["वह घर गया। ", "क्या? ", "हाँ।"]),
        ("ar", ["ذهب إلى البيت. ", "لماذا؟ ", "نعم."]),
        ("uk", ["Він пішов. ", "Куди? ", "Додому \U0001f600. ", "Так."]),
    ],
)
def test_marks_of_other_scripts_end_sentences(language, sentences):
    text = "".join(sentences)
    starts = [0, *itertools.accumulate(map(len, sentences))][:-1]
    assert find_sentence_starts(text, language) == starts
    in_graph = find_sentences_in_graph(tf.constant([text]), language)
    in_bytes = [len(text[:start].encode()) for start in starts]
    assert [0, *in_graph[0].numpy()] == in_bytes


@hypothesis.given(st.text(alphabet=st.characters(), max_size=30))
@hypothesis.example("a\ud800. B\U0001f600. C\x85D\x00")
def test_sentences_of_any_text_begin_inside_of_it(text):
    starts = sentence_splitter("zh").find_starts(text)
    assert starts == sorted(set(starts))
    lines = text.split("\n")
    line_starts = [0, *itertools.accumulate(len(line) + 1 for line in lines)]
    assert {start for start, line in zip(line_starts, lines, strict=False) if line} <= set(starts)
    assert all(text[start] != "\n" for start in starts)


@pytest.mark.parametrize(
    ("code", "joined_by"),
    [("de_gsd", " "), ("en_ewt", " "), ("ru_gsd", " "), ("zh_gsdsimp", ""), ("ja_gsd", "")],
)
def test_sentences_of_treebanks_are_found_as_well_as_by_icu(code, joined_by, shared_data):
    path = shared_data / "other_languages" / "treebanks" / f"{code}-ud-dev.conllu.gz"
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    sentences = [line.removeprefix("# text = ") for line in lines if line.startswith("# text = ")]
    language = code[:2]
    texts, gold = [], []
    for first in range(0, len(sentences), 10):
        parts = [f"{sentence.strip()}{joined_by}" for sentence in sentences[first : first + 10]]
        texts.append("".join(parts))
        gold.append([*itertools.accumulate(map(len, parts))][:-1])  # the last one ends the text
    ours = f1_of_starts([find_sentence_starts(text, language)[1:] for text in texts], gold)
    icus = f1_of_starts([starts_of_icu(text, language)[1:] for text in texts], gold)
    assert ours >= icus > 0.5


def f1_of_starts(found, gold):
    num_right = sum(len(set(a) & set(b)) for a, b in zip(found, gold, strict=True))
    return 2 * num_right / (sum(map(len, found)) + sum(map(len, gold)))


def starts_of_icu(text, language):
    return [0, *itertools.accumulate(map(len, SentenceBreaker(text, language)))][:-1]


@pytest.mark.parametrize(
    ("code", "nearest"),
    [("German", "de (German)"), ("EN", "en (English)"), ("zh-CN", "zh (Chinese)"), ("", "zu (Zul")],
)
def test_an_unknown_language_is_refused_and_the_nearest_is_named(code, nearest):
    with pytest.raises(ValueError, match="is not known; the nearest is") as raised:
        check_language(code)
    assert nearest in str(raised.value)
    assert "\n" not in str(raised.value)
    assert check_language(DEFAULT_LANGUAGE) == "en"
