"""The pieces of texts are counted as the tokenizer of the exports makes them."""

import hypothesis
import pytest
import tensorflow as tf
from hypothesis import strategies as st

from spanbert_tf.server.lengths import SPECIAL_TOKENS, TokenCounter
from spanbert_tf.serving.description import Description
from spanbert_tf.text.tokenization import WordPieceTokenizer
from spanbert_tf.text.vocabulary import TextRules

VOCABULARY = [
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "owl", "##s", "un", "##friend", "##ly",
    "caf", "##é", "cafe", "The", "北", "京", "!", ".", "[", "]", "MASK", "a", "##a", "##b", "ﬁ",
    "##\u0301", "f", "##i",
]  # fmt: skip
RULES = {
    "cased": TextRules(lowercase=False, strip_accents=False),
    "uncased": TextRules(lowercase=True, strip_accents=True),
    "with accents": TextRules(lowercase=True, strip_accents=False),
}
PARTS = ["the", "owls", "unfriendly", "Café", "北京大", "!?", "[MASK]", " ", "\n", "…", "a" * 101]
PARTS += ["aab", "\u0301", "\xa0", "ﬁ", "한국", "नमस्ते", "😀", "€", "x_y", "naïve", "ZZ"]


def counter_of(rules):
    description = Description(
        task="", fields=(), labels=(), settings={}, signature=None, top_k=1, sequence_length=8,
        example={}, text_rules=rules, vocabulary=VOCABULARY,
    )  # fmt: skip
    return TokenCounter(description)


@pytest.fixture(params=RULES)
def both(request):
    """What counts pieces, and the tokenizer that makes them."""
    rules = RULES[request.param]
    return counter_of(rules), WordPieceTokenizer.shared(VOCABULARY, rules)


def test_counts_are_those_of_the_tokenizer(both):
    count, tokenizer = both

    @hypothesis.given(st.lists(st.sampled_from(PARTS), max_size=12).map("".join))
    def check(text):
        ids = tokenizer.tokenize(tf.constant([text]))
        assert count(text) == ids.flat_values.shape[0] + SPECIAL_TOKENS, text

    check()


def test_any_text_has_at_most_a_piece_a_letter():
    count = counter_of(RULES["uncased"])

    @hypothesis.given(st.text())
    def check(text):
        ids = WordPieceTokenizer.shared(VOCABULARY, RULES["uncased"]).tokenize(
            tf.constant([text.encode("utf-8", "replace")])
        )
        assert abs(count(text) - SPECIAL_TOKENS - ids.flat_values.shape[0]) <= len(text)

    check()
