"""Segments cut in memory are those of the graph, and words alone have the pieces of the text."""

import numpy as np
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from spanbert_tf.data.documents import segment_documents
from spanbert_tf.tasks.coreference.conll import Document
from spanbert_tf.tasks.coreference.rows import DocumentTokenizer, Pieces, segment_pieces
from spanbert_tf.text.tokenization import TextTokenizer
from spanbert_tf.text.vocabulary import Casing

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
IDS = {"start_id": 2, "end_id": 3}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 6), st.sampled_from([0, 0, 0, 1, 2])), max_size=40),
    st.integers(3, 12),
)
def test_segments_are_those_of_the_graph(words, sequence_length):
    """Of words with so many pieces, some of which begin sentences."""
    sizes = [size for size, _ in words]
    sentences = np.cumsum([step for _, step in words], dtype="int32")
    pieces = Pieces(
        np.arange(sum(sizes), dtype="int32") + 5,
        np.repeat(np.arange(len(sizes), dtype="int32"), sizes),
        np.repeat(sentences, sizes),
        [0],
    )
    found = segment_pieces(pieces, sequence_length=sequence_length, **IDS)
    ids, numbers, sentences = (
        tf.RaggedTensor.from_row_lengths(values, [len(values)]) for values in pieces[:3]
    )
    expected = segment_documents(ids, sentences, numbers, sequence_length=sequence_length, **IDS)
    for name, values in found._asdict().items():
        assert values.dtype == np.int32
        assert values.tolist() == getattr(expected, name)[0].numpy().tolist(), name


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
    casing: (DocumentTokenizer(PIECES, casing), TextTokenizer(PIECES, casing, segment_aware=False))
    for casing in (Casing.of(True), Casing.of(True, False), Casing.of(False))
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
def test_words_alone_have_the_pieces_of_the_text(texts, casing):
    alone, in_context = TOKENIZERS[casing]
    documents = [Document("a", n, words, [0], [], []) for n, words in enumerate(texts)]
    expected = list(in_context([" ".join(words) for words in texts]))
    for words, pieces, text in zip(texts, alone(documents), expected, strict=True):
        assert pieces.token_ids.tolist() == text.token_ids.tolist()
        ends = np.cumsum([len(word) + 1 for word in words])
        assert pieces.words.tolist() == np.searchsorted(ends, text.starts, side="right").tolist()
