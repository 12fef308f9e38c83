"""Where word pieces stand in the text that they are from."""

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_text as tf_text
from hypothesis import strategies as st

from spanbert_tf.text.tokenization import TokenizedText, WordPieceTokenizer
from spanbert_tf.text.vocabulary import SPECIAL_TOKENS, TextRules

# Each word has pieces: single letters, and some that end or begin inside an expanded character.
LETTERS = "abcdfiknsz\u1100\u1161\u0307ß.中"
PIECES = [*LETTERS, *(f"##{letter}" for letter in LETTERS), "af", "##if"]
VOCABULARY = [*SPECIAL_TOKENS, *PIECES]
EXPANDED = "ﬁßﬀ가İ㎏Äé\u0301"  # some of them lose an accent, some become two letters


@pytest.fixture(scope="module")
def stripping():
    return WordPieceTokenizer(VOCABULARY, TextRules.of(True))


@pytest.fixture(scope="module")
def keeping():
    return WordPieceTokenizer(VOCABULARY, TextRules(True, strip_accents=False))


@pytest.fixture(scope="module", params=["stripping", "keeping"])
def tokenizer(request):
    return request.getfixturevalue(request.param)


def placed(tokenizer, text):
    """(piece, the characters that it covers) of each piece."""
    raw = text.encode()
    ids, starts, ends = (part[0].numpy() for part in tokenizer.tokenize_with_offsets([raw]))
    return [
        (VOCABULARY[number], raw[start:end].decode())
        for number, start, end in zip(ids, starts, ends, strict=True)
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ﬁnd", [("f", "ﬁ"), ("##i", "ﬁ"), ("##n", "n"), ("##d", "d")]),
        ("aﬁb", [("af", "aﬁ"), ("##i", "ﬁ"), ("##b", "b")]),  # a piece ends inside a ligature
        ("ﬁfd", [("f", "ﬁ"), ("##if", "ﬁf"), ("##d", "d")]),  # one begins inside it
        ("ß aß", [("s", "ß"), ("##s", "ß"), ("a", "a"), ("##s", "ß"), ("##s", "ß")]),
        (
            "가 a가",
            [("ᄀ", "가"), ("##ᅡ", "가"), ("a", "a"), ("##ᄀ", "가"), ("##ᅡ", "가")],
        ),
        ("aİb", [("a", "a"), ("##i", "İ"), ("##b", "b")]),
        ("Äa\u0301b", [("a", "Ä"), ("##a", "a\u0301"), ("##b", "b")]),
        ("㎏", [("[UNK]", "㎏")]),
        ("", []),
    ],
)
def test_each_piece_covers_the_whole_characters_that_it_is_from(stripping, text, expected):
    assert placed(stripping, text) == expected


def test_a_letter_that_becomes_two_is_covered_by_both_where_accents_are_kept(keeping):
    assert placed(keeping, "aİb") == [("a", "a"), ("##i", "İ"), ("##\u0307", "İ"), ("##b", "b")]
    assert placed(keeping, "ﬁ ßA") == [("[UNK]", "ﬁ"), ("ß", "ß"), ("##a", "A")]


@hypothesis.settings(max_examples=200)
@hypothesis.given(
    texts=st.lists(st.text(LETTERS + EXPANDED + " AB\u200b😀", max_size=12), max_size=3)
)
def test_offsets_are_of_whole_characters_in_order_and_leave_none_out(tokenizer, texts):
    raw = [text.encode() for text in texts]
    tokens = tokenizer.tokenize(tf.constant(raw, tf.string))
    ids, starts, ends = tokenizer.tokenize_with_offsets(tf.constant(raw, tf.string))
    assert ids.to_list() == tokens.to_list()
    counts = tokenizer.count(tf.constant(raw, tf.string)).numpy().tolist()
    assert counts == [len(row) for row in tokens.to_list()]
    for text, row_starts, row_ends in zip(texts, starts.to_list(), ends.to_list(), strict=True):
        bounds = [len(text[:number].encode()) for number in range(len(text) + 1)]
        assert set(row_starts) | set(row_ends) <= set(bounds)
        assert all(start < end for start, end in zip(row_starts, row_ends, strict=True))
        assert row_starts == sorted(row_starts) and row_ends == sorted(row_ends)
        covered = {
            place
            for start, end in zip(row_starts, row_ends, strict=True)
            for place in range(start, end)
        }
        for character, bound in zip(text, bounds, strict=False):
            if character not in " \u200b\u0301\u0307":
                assert bound in covered, repr(character)


def test_each_character_has_the_ids_of_tensorflow_texts_whole_bert_tokenizer():
    """It normalises and then cleans; here the cleaning is left out where that normalised."""
    characters = [chr(code) for code in range(0x30000) if not 0xD800 <= code < 0xE000]
    texts = [f"a{character}b {character}" for character in characters]
    options = {"unknown_token": "[UNK]", "token_out_type": tf.int32}
    whole = tf_text.FastBertTokenizer(VOCABULARY, lower_case_nfd_strip_accents=True, **options)
    expected = whole.tokenize(texts)
    ids = WordPieceTokenizer(VOCABULARY, TextRules.of(True)).tokenize(texts)
    assert tf.reduce_all(ids.row_splits == expected.row_splits)
    assert tf.reduce_all(ids.flat_values == expected.flat_values)


def test_a_tokenizer_without_a_name_lives_as_long_as_it_works():
    ids = WordPieceTokenizer(VOCABULARY, TextRules.of(True)).tokenize(tf.constant(["ab"]))
    offsets = WordPieceTokenizer(VOCABULARY, TextRules.of(True)).tokenize_with_offsets(["ab"])
    assert offsets[0].to_list() == ids.to_list()


def test_one_tokenizer_of_a_vocabulary_also_if_a_graph_asks_first():
    vocabulary = [*VOCABULARY, "onlyhere"]

    @tf.function
    def in_graph(texts):
        return WordPieceTokenizer.shared(vocabulary, TextRules.of(True)).tokenize(texts)

    expected = [[len(vocabulary) - 1]]
    assert in_graph(tf.constant(["OnlyHere"])).to_list() == expected
    shared = WordPieceTokenizer.shared(tuple(vocabulary), TextRules.of(True))
    assert shared.tokenize(tf.constant(["OnlyHere"])).to_list() == expected
    assert WordPieceTokenizer.shared(vocabulary, TextRules.of(True)) is shared
    assert WordPieceTokenizer.shared(vocabulary, TextRules.of(False)) is not shared


@hypothesis.settings(max_examples=100)
@hypothesis.given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=8), st.data())
def test_tokens_of_a_piece_of_text(gaps_and_sizes, data):
    starts, ends, place = [], [], 0
    for gap, size in gaps_and_sizes:
        starts.append(place + gap)
        place += gap + size
        ends.append(place)
    first = data.draw(st.integers(0, place))
    after = data.draw(st.integers(first, place)) + 1
    touching = [
        number
        for number, (start, end) in enumerate(zip(starts, ends, strict=True))
        if start < after and end > first
    ]
    expected = (touching[0], touching[-1]) if touching else None
    ids, positions = np.zeros(len(starts), int), np.zeros([len(starts), 0], int)
    text = TokenizedText(ids, np.array(starts), np.array(ends), positions)
    assert text.span(first, after) == expected


@pytest.mark.parametrize("language", ["th", "en"])
def test_phrases_are_as_long_as_words_where_spaces_part_phrases(language):
    """200 characters, as in BERT's own code; elsewhere 100 bytes, as in TensorFlow Text."""
    vocabulary = [*SPECIAL_TOKENS, "ก", "##ก", "a", "##a"]
    tokenizer = WordPieceTokenizer(vocabulary, TextRules.of(False, language=language))
    lengths = (33, 34, 200, 201)
    rows = tokenizer.tokenize(["ก" * length for length in lengths]).to_list()
    longest = {"th": 200, "en": 33}[language]
    unknown = [vocabulary.index("[UNK]")]
    for length, row in zip(lengths, rows, strict=True):
        expected = [vocabulary.index("ก")] + [vocabulary.index("##ก")] * (length - 1)
        assert row == (expected if length <= longest else unknown)
    if language == "en":
        whole, too_long = tokenizer.tokenize(["a" * 100, "a" * 101]).to_list()
        assert (len(whole), too_long) == (100, unknown)
