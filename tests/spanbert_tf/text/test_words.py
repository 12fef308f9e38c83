"""Raw text cut into words as data that mark their words have them."""

import gzip
import re

import hypothesis
import tensorflow as tf
from hypothesis import strategies as st

from spanbert_tf.text.tokenization import WordPieceTokenizer
from spanbert_tf.text.vocabulary import TextRules
from spanbert_tf.text.words import word_starts

FRAGMENTS = ["a", "Bo", "é", "U.S", "Dr", "7", "北", "\U00020001", "。", "🐈", "e\u0301"]
FRAGMENTS += [*".,-'\"()@#+$€&%\u2019“»_", "'s", "\u2019S", " ", "\u00a0", "\n"]
texts = st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join)
cut_in_graph = tf.function(word_starts, input_signature=[tf.TensorSpec([None], tf.string)])


def words_of(texts):
    """The words of texts, without the spaces after them."""
    words = []
    for text, starts in zip(texts, cut_in_graph(tf.constant(texts)).to_list(), strict=True):
        content = text.encode()
        ends = [*starts, len(content)][1:]
        words.append([content[a:b].decode() for a, b in zip(starts, ends, strict=True)])
    return [[word.strip() for word in row] for row in words]


BY_HAND = {
    "Ann lives in Oslo.": "Ann lives in Oslo .",
    "the U.S., (J. Doe)!": "the U.S. , ( J. Doe ) !",
    "Dr. Lee vs. Ann e.g. in the D.C.": "Dr. Lee vs. Ann e.g. in the D.C.",
    "www.oslo.no, http://a.b/c?d=e.": "www.oslo.no , http://a.b/c?d=e .",
    "a U.S.-based co-op": "a U.S.-based co-op",
    "Ann's, O'Neil\u2019s and dogs' 's": "Ann 's , O'Neil \u2019s and dogs ' 's",
    "@ann #oslo C++, 5% $7": "@ann #oslo C++ , 5 % $ 7",
    "...“Zoë”...": ". . . “ Zoë ” . . .",
    "Oslo北京。 在北京\uff0cOslo ": "Oslo 北 京 。 在 北 京 \uff0c Oslo",
    "\u00a0a\u2003b\r\n\tc": "a b c",
    "": "",
    " \n": "",
}


def test_words_by_hand():
    expected = [words.split() for words in BY_HAND.values()]
    assert words_of(list(BY_HAND)) == expected


def test_no_texts():
    assert word_starts(tf.constant([], tf.string)).to_list() == []


@hypothesis.given(st.lists(texts, min_size=1, max_size=3))
@hypothesis.settings(deadline=None)
def test_words_hold_all_that_is_no_space(texts):
    for text, words in zip(texts, words_of(texts), strict=True):
        assert "".join(words) == re.sub(r"\s", "", text)
        assert all(words) and not any(re.search(r"\s", word) for word in words)


@hypothesis.given(texts)
@hypothesis.settings(deadline=None)
def test_no_cut_is_inside_a_word_of_the_tokenizer(text):
    """A word's first piece would go on with another word, and was never trained to speak."""
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "unknown"]  # pieces are words
    tokenizer = WordPieceTokenizer.shared(vocabulary, TextRules.of(False, False))
    _, starts, ends = tokenizer.tokenize_with_offsets(tf.constant([text]))
    cuts = cut_in_graph(tf.constant([text])).to_list()[0]
    for start, end in zip(starts.to_list()[0], ends.to_list()[0], strict=True):
        assert not [cut for cut in cuts if start < cut < end]


@hypothesis.given(texts)
@hypothesis.settings(deadline=None)
def test_words_with_spaces_between_them_are_the_same_words(text):
    """So columns of CoNLL, joined, are cut as raw text is; a mark before a letter was cut."""
    (words,) = words_of([text])
    assert words_of([" ".join(words)]) == [words]


def test_borders_of_real_words_are_cuts(shared_data):
    """GUM's own words, of 16 documents; it cuts at hyphens and slashes as well."""
    texts, expected = [], []
    for path in sorted((shared_data / "coref" / "gum_conllu").glob("*/*.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for text, starts in gum_sentences(file.read()):
                texts.append(text)
                expected.append(starts)
    num_expected = sum(map(len, expected))
    found = cut_in_graph(tf.constant(texts)).to_list()
    num_found = sum(map(len, found))
    num_same = sum(len(set(a) & set(b)) for a, b in zip(expected, found, strict=True))
    assert num_expected > 10_000
    assert num_same / num_found > 0.99
    assert num_same / num_expected > 0.97


def gum_sentences(content):
    """Raw texts, and the first bytes of their words."""
    for sentence in content.rstrip().split("\n\n"):
        text, starts = "", []
        for line in sentence.split("\n"):
            columns = line.split("\t")
            if columns[0].isdigit():
                starts.append(len(text.encode()))
                text += columns[1] + " " * ("SpaceAfter=No" not in columns[9])
        yield text, starts
