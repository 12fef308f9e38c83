"""Lower case and accents in scripts whose letters have marks, and in Turkish."""

import collections

import pytest
import tensorflow as tf
import transformers

from data_prep.text.vocabulary import write_vocabulary
from spanbert_tf.models import SpanBertTokenizer
from spanbert_tf.text.casing import advice_on_language, advice_on_text
from spanbert_tf.text.chosen_vocabulary import chosen_vocabulary
from spanbert_tf.text.languages import LANGUAGES
from spanbert_tf.text.vocabulary import TextRules

DOTLESS_I = "\u0131"
TEXTS = {
    "hi": "भारत की राजधानी नई दिल्ली है। यह एक बड़ा नगर है।",
    "th": "กรุงเทพมหานครเป็นเมืองหลวงของประเทศไทย ที่นี่มีคนอยู่มาก",
    "ja": "東京タワーは日本の東京都にあるデジタル電波塔である。",
    "ar": "أحمد في القاهرة، عاصمةُ مصرَ الكبيرة.",
    "ru": "Мой чай ещё горячий. ЁЛКА И ЙОД.",
    "tr": f"DİYARBAKIR ILIK IRMAK. İstanbul'da {DOTLESS_I}ş{DOTLESS_I}k, Iğd{DOTLESS_I}r.",
    "de": "ÄRGER IN ÜBERGRÖSSE, schöne Töne.",
}


@pytest.mark.parametrize("keep", [True, False], ids=["kept", "stripped"])
@pytest.mark.parametrize("language", TEXTS)
@pytest.mark.quick_cases(3)
def test_vocabulary_records_and_graph_lower_case_as_bert(language, keep, tmp_path, capsys):
    """A vocabulary of a text has all pieces of it, and they are those of `transformers`."""
    text = TEXTS[language]
    (tmp_path / "text").write_text("\n".join([text] * 3), encoding="utf-8")
    path = tmp_path / "vocab.txt"
    strip_accents = False if keep else None
    write_vocabulary(
        str(tmp_path / "text"),
        str(path),
        vocabulary_size=300,
        lowercase=True,
        strip_accents=strip_accents,
    )
    pieces, text_rules = chosen_vocabulary(
        preset=None,
        vocabulary=path,
        lowercase=True,
        strip_accents=strip_accents,
        language=language,
    )
    tokenizer = SpanBertTokenizer(pieces, **text_rules._asdict())
    theirs = transformers.BertTokenizerFast(
        vocab={piece: number for number, piece in enumerate(pieces)},
        do_lower_case=True,
        strip_accents=strip_accents,
    )
    expected = theirs(text, add_special_tokens=False)["input_ids"]
    assert tokenizer([text]) == [expected]
    assert tokenizer.unk_token_id not in expected
    in_graph = tf.function(lambda texts: tokenizer(texts))
    assert in_graph(tf.constant([text])).to_list() == [expected]
    decoded = theirs.decode(expected).replace(" ", "")
    if keep:  # nothing but the case has changed
        assert decoded == "".join(character.lower() for character in text).replace(" ", "")


def test_turkish_letters_are_lower_cased_as_in_every_language():
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", DOTLESS_I, "i", "i\u0307"]
    ids = {}
    for strip_accents in (True, False):
        tokenizer = SpanBertTokenizer(
            pieces, lowercase=True, strip_accents=strip_accents, language="tr"
        )
        (found,) = tokenizer([f"I İ {DOTLESS_I} i"])
        ids[strip_accents] = [pieces[number] for number in found]
    assert ids == {
        True: ["i", "i", DOTLESS_I, "i"],
        False: ["i", "i\u0307", DOTLESS_I, "i"],
    }


@pytest.mark.parametrize(
    ("language", "lowercase", "strip_accents", "expected"),
    [
        ("hi", True, True, "marks on Hindi letters"),
        ("th", True, True, "marks on Thai letters"),
        ("th", True, False, None),
        ("th", False, False, None),
        ("en", True, True, None),
        ("de", True, True, None),
        ("tr", True, True, "makes i of I and i of İ"),
        ("tr", True, False, "makes i of I and i and a combining dot of İ"),
        ("tr", False, False, None),
    ],
)
def test_what_the_casing_does_to_a_language_is_said(language, lowercase, strip_accents, expected):
    advice = advice_on_language(TextRules(lowercase, strip_accents, language))
    assert (advice is None) if expected is None else (expected in advice)
    if expected and strip_accents and language != "tr":
        assert "--keep-accents" in advice


def test_all_languages_have_an_answer():
    for language in LANGUAGES:
        advice_on_language(TextRules(True, True, language))


@pytest.mark.parametrize(
    ("language", "expected"),
    [
        ("hi", r"% of the characters"),
        ("th", r"% of the characters"),
        ("ja", r"% of the characters"),
        ("de", r"% of the characters"),
        ("tr", None),
    ],
)
def test_what_the_casing_does_to_a_text_is_said(language, expected):
    characters = collections.Counter(TEXTS[language])
    advice = advice_on_text(characters, TextRules.of(True))
    assert "\n" not in advice and "--lowercase" in advice
    assert not expected or ("% of the characters" in advice and "--keep-accents" in advice)
    assert advice_on_text(characters, TextRules.of(False)) is None
    kept = advice_on_text(characters, TextRules.of(True, False))
    assert (kept is None) == (language != "tr")


def test_a_share_of_marked_characters_by_hand():
    characters = collections.Counter({"ä": 2, "a": 97, "é": 1, " ": 1000})
    advice = advice_on_text(characters, TextRules.of(True))
    assert "from 3.0% of the characters of this text (ä é)" in advice
    characters["a"] = 1000
    assert advice_on_text(characters, TextRules.of(True)) is None
    assert advice_on_text(collections.Counter(), TextRules.of(True)) is None
