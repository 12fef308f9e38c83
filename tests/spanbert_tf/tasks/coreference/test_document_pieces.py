"""The words of documents, tokenized one by one, have the pieces of the text."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from spanbert_tf.tasks.coreference.conll import Document
from spanbert_tf.tasks.coreference.rows import DocumentTokenizer
from spanbert_tf.text.tokenization import TextTokenizer
from spanbert_tf.text.vocabulary import TextRules

PIECES = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "a",
    "##a",
    "e",
    "##e",
    "b",
    "'",
    ".",
    "\u03c3",
]


ODD = [
    "\u200b",
    "ae\u0301",
    "\u0301a",
    "ΑΣ",
    "ﬁ",
    "a b",
    "",
    "\n",
    "中a",
    "a" * 101,
    "\ud800a",
    "a\u3000b",
]
TOKENIZERS = {
    text_rules: (
        DocumentTokenizer(PIECES, text_rules),
        TextTokenizer(PIECES, text_rules, segment_aware=False),
    )
    for text_rules in (TextRules.of(True), TextRules.of(True, False), TextRules.of(False))
}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.lists(st.one_of(st.sampled_from(ODD), st.text("aeb'. É\u0301", max_size=4)), min_size=1),
        min_size=1,
        max_size=3,
    ),
    st.sampled_from(list(TOKENIZERS)),
)
def test_words_alone_have_the_pieces_of_the_text(texts, text_rules):
    alone, in_context = TOKENIZERS[text_rules]
    pieces = alone([Document("a", n, words, [0], [], []) for n, words in enumerate(texts)])
    expected = in_context([" ".join(words) for words in texts])
    for number, (words, text) in enumerate(zip(texts, expected, strict=True)):
        assert pieces.token_ids[number].numpy().tolist() == text.token_ids.tolist()
        ends = np.cumsum([len(word) + 1 for word in words])
        found = np.searchsorted(ends, text.starts, side="right")
        assert pieces.word_indices[number].numpy().tolist() == found.tolist()
        assert (
            pieces.word_sizes[number].tolist() == np.bincount(found, minlength=len(words)).tolist()
        )
