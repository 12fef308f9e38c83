"""Words where spaces do not part them: where segmenters find them, and which pieces begin them."""

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanbert_tf.errors import ConfigurationError
from spanbert_tf.text.word_segmentation import (
    WordSegmenter,
    check_segmentation,
    pieces_that_begin_words,
    stated_segmentation,
    word_cutter,
)

# Letters of several scripts, marks, spaces, an emoji of several characters, and controls.
LETTERS = "我们在北京大学日本語のテキスト กำลังไปโรงเรียน don't 3.14 é"
LETTERS += "\u0301😀👩\u200d👩 \u200b\u3000\t\n\x00"
TEXTS = st.integers(0, 40).flatmap(
    lambda size: st.text(st.sampled_from(LETTERS), min_size=size, max_size=size)
)
WAYS = [("icu", "zh"), ("icu", "ja"), ("icu", "th"), ("icu", "en"), ("jieba", "zh"), ("spaces", "")]


def words(way, language, *texts):
    """The words of texts, by the borders in their bytes."""
    raw = "".join(texts).encode()
    borders = WordSegmenter(way, language).borders(texts).tolist()
    ends = [*borders[1:], len(raw)]
    return [raw[start:end].decode() for start, end in zip(borders, ends, strict=True)]


@pytest.mark.parametrize(("way", "language"), WAYS)
@given(TEXTS)
def test_the_parts_of_a_text_are_the_text(way, language, text):
    parts = word_cutter(way, language)(text)
    assert "".join(parts) == text
    assert all(parts)


@pytest.mark.parametrize(
    ("way", "language", "text", "expected"),
    [
        ("icu", "zh", "我们学习语言。𠀀", ["我们", "学习", "语言", "。", "𠀀"]),
        ("icu", "ja", "日本語のテキスト", ["日本語", "の", "テキスト"]),
        ("icu", "th", "เป็นผู้นำ", ["เป็น", "ผู้นำ"]),
        ("jieba", "zh", "我们在北京大学", ["我们", "在", "北京大学"]),
        ("spaces", "zh", "我们 在\u200b北京大学 。", ["我们 ", "在\u200b", "北京大学 ", "。"]),
    ],
)
def test_words_of_a_text(way, language, text, expected):
    assert words(way, language, text) == expected


def test_a_word_begins_with_each_text():
    assert words("icu", "zh", "北京大学") == ["北京", "大学"]
    assert words("icu", "zh", "北", "京大", "学") == ["北", "京", "大", "学"]
    assert words("icu", "zh", "", "北") == ["北"]
    assert not len(WordSegmenter("icu", "zh").borders([]))


def test_halves_of_surrogate_pairs_are_characters():
    parts = WordSegmenter("icu", "zh").borders(["我\ud800们"])
    assert parts.tolist() == [0, 3, 4]  # it becomes `?`


@given(st.data())
def test_pieces_begin_words_where_a_border_is_between_them(data):
    """A border belongs to the first piece that begins at or behind it, unless it is in a piece."""
    num_pieces = data.draw(st.integers(0, 8))
    sizes = st.lists(st.integers(0, 3), min_size=num_pieces, max_size=num_pieces)
    gaps, lengths = data.draw(sizes), [1 + size for size in data.draw(sizes)]
    starts, ends, place = [], [], 0
    for gap, length in zip(gaps, lengths, strict=True):
        starts.append(place + gap)
        place += gap + length
        ends.append(place)
    borders = sorted(data.draw(st.sets(st.integers(0, place + 2))))
    expected = [
        index == 0 or any(ends[index - 1] <= border <= start for border in borders)
        for index, start in enumerate(starts)
    ]
    found = pieces_that_begin_words(*(np.array(x, np.int64) for x in (borders, starts, ends)))
    assert found.tolist() == expected


def test_languages_have_defaults():
    for language in ("zh", "yue", "ja", "th", "km", "lo", "my"):
        assert check_segmentation(None, language) == "icu"
    for language in ("en", "de", "ko", "vi"):
        assert check_segmentation(None, language) == "none"
    assert check_segmentation("none", "zh") == "none"
    assert stated_segmentation("icu", "zh") is None
    assert stated_segmentation("none", "zh") == "none"
    assert stated_segmentation("none", "en") is None


@pytest.mark.parametrize(
    ("way", "language", "message"),
    [
        ("jieba", "ja", "--word-segmentation jieba: knows Chinese alone, and the language is ja"),
        ("mecab", "ja", "--word-segmentation: 'mecab' is not one of none, spaces, icu, jieba"),
        ("spacy", "ja", "--spacy-model no_model: cannot be loaded"),
    ],
)
def test_what_cannot_find_words_is_refused(way, language, message):
    with pytest.raises(ConfigurationError) as error:
        check_segmentation(way, language, "no_model")
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(("way", "package"), [("jieba", "rjieba"), ("spacy", "spacy")])
def test_a_missing_package_is_named_with_the_command_that_installs_it(way, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigurationError, match=r"^--word-segmentation \w+: needs .*pip install"):
        check_segmentation(way, "zh", "zh_core_web_sm")


def test_a_tokenizer_that_changes_the_text_is_refused(monkeypatch):
    import spacy

    language = spacy.blank("en")
    language.tokenizer = lambda text: spacy.tokens.Doc(language.vocab, text.split())
    monkeypatch.setattr(spacy, "load", lambda name: language)
    segmenter = WordSegmenter("spacy", "en", "own")
    assert segmenter.borders(["a b "]).tolist() == [0, 2]
    with pytest.raises(ConfigurationError, match="--word-segmentation spacy: adds or drops"):
        segmenter.borders(["a b ", "two  spaces "])


def test_words_of_spacy_are_those_of_its_tokenizer(monkeypatch):
    import spacy

    monkeypatch.setattr(spacy, "load", lambda name: spacy.blank(name))
    parts = word_cutter("spacy", "en", "en")("Don't stop, please")
    assert parts == ["Do", "n't ", "stop", ", ", "please"]
    with pytest.raises(ConfigurationError, match="--spacy-model en: is a model of en"):
        word_cutter("spacy", "zh", "en")
