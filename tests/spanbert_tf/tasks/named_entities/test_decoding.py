"""From labels of word pieces to entities."""

import numpy as np
import pytest
import tensorflow as tf

from spanbert_tf.models import (
    SpanBertBackbone,
    SpanBertTokenClassifier,
    SpanBertTokenClassifierPreprocessor,
    SpanBertTokenizer,
)
from spanbert_tf.tasks.named_entities.graph import EntityDecoder

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "acme", "hires", "ann"]


LABELS = ["O", "B-P", "I-P", "B-O", "I-O"]


def decode(texts, labels, vocabulary=VOCABULARY, strategy="simple", scores=None, **text_rules):
    """Entities of texts whose pieces have these labels, numbers of `LABELS`, and scores."""
    backbone = SpanBertBackbone(
        len(vocabulary), num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=8
    )
    tokenizer = SpanBertTokenizer(vocabulary, **text_rules)
    preprocessor = SpanBertTokenClassifierPreprocessor(tokenizer, 16)
    options = {"aggregation_strategy": strategy}
    decoder = EntityDecoder(SpanBertTokenClassifier(backbone, LABELS, preprocessor, **options))
    texts = tf.constant(texts)
    scores = np.full(len(labels), 0.5) if scores is None else np.array(scores)
    scores = tf.constant(scores, tf.float32)
    pieces = decoder.tokenize(texts)
    keeps_label = decoder.keeps_label(texts, pieces)
    return decoder.decode(texts, pieces, tf.constant(labels), scores, keeps_label)


def test_type_that_is_called_as_no_entity_is_one():
    """`O` for organisations: the label `O` alone is no entity."""
    found = decode(["acme acme hires ann"], [3, 4, 0, 1])
    assert found.types.to_list() == [[b"O", b"P"]]
    assert found.starts.to_list() == [[0, 16]]
    assert found.ends.to_list() == [[9, 19]]


@pytest.mark.parametrize("strategy", ["simple", "first", "word"])
def test_an_entity_ends_with_its_text(strategy):
    """The next text of the batch would go on with it: `I-P` after `B-P`."""
    found = decode(["hires ann", "ann hires", "acme"], [0, 1, 2, 0, 4], strategy=strategy)
    assert found.types.to_list() == [[b"P"], [b"P"], [b"O"]]
    assert found.starts.to_list() == [[6], [0], [0]]
    assert found.ends.to_list() == [[9], [3], [4]]


def test_neighbours_of_one_type_are_entities_of_their_own():
    found = decode(["ann ann acme"], [1, 1, 2])
    assert found.types.to_list() == [[b"P", b"P"]]
    assert (found.starts.to_list(), found.ends.to_list()) == ([[0, 4]], [[3, 12]])


def test_the_first_piece_speaks_for_its_word():
    """By hand: `ann` and `ann` say B-P and I-P; what `##s` says, and how surely, does not count."""
    vocabulary, scores = [*VOCABULARY, "##s"], [0.75, 0.125, 0.25]
    found = decode(["anns ann"], [1, 4, 2], vocabulary, "first", scores)
    assert found.types.to_list() == [[b"P"]]
    assert (found.starts.to_list(), found.ends.to_list()) == ([[0]], [[8]])
    assert found.scores.to_list() == [[0.5]]  # the mean of two words, not of three pieces
    found = decode(["anns ann"], [1, 4, 2], vocabulary, scores=scores)
    assert found.types.to_list() == [[b"P", b"O", b"P"]]
    assert (found.starts.to_list(), found.ends.to_list()) == ([[0, 3, 5]], [[3, 4, 8]])
    assert found.scores.to_list() == [scores]


def test_the_first_piece_speaks_for_its_word_of_the_text():
    """By hand: `U.S.` is one word of four pieces, the comma after it another."""
    vocabulary, texts = [*VOCABULARY, "u", "s", ".", ","], ["ann u.s., acme", "u.s. hires"]
    labels = [0, 1, 4, 3, 0, 0, 2, 2, 0, 0, 0, 4]  # ann u . s . , acme | u . s . hires
    scores = [0.5, 0.75, 0.5, 0.5, 0.5, 0.5, 0.5, 0.25, 0.5, 0.5, 0.5, 0.125]
    found = decode(texts, labels, vocabulary, "word", scores)
    assert found.types.to_list() == [[b"P", b"P"], [b"P", b"O"]]
    assert found.words.to_list() == [[b"u.s.", b"acme"], [b"u.s.", b"hires"]]
    assert (found.starts.to_list(), found.ends.to_list()) == (
        [[4, 10], [0, 5]],
        [[8, 14], [4, 10]],
    )
    assert found.scores.to_list() == [[0.75, 0.5], [0.25, 0.125]]
    found = decode(texts, labels, vocabulary, "first", scores)  # BERT's words
    assert found.words.to_list()[0] == [b"u", b".", b"s", b"acme"]


@pytest.mark.parametrize(
    "name", ["ANN", "\u00c4nn", "A\u0308NN", "Ann\u0301", "\u212bnn", "Acme,  ANN", "\U0001f408"]
)
def test_words_are_slices_of_the_text(name):
    """Whatever the tokenizer makes of it: lower case, no accents, pieces, an unknown word."""
    vocabulary = [*VOCABULARY, "a", "##nn", ","]
    texts = [f"hires {name} \u00e9t\u00e9", name]
    pieces = {"Acme,  ANN": 3}.get(name, 1)
    labels = [0, *[1, 2, 2][:pieces], 0, *[1, 2, 2][:pieces]]
    found = decode(texts, labels, vocabulary, lowercase=True)
    assert [[word.decode() for word in words] for words in found.words.to_list()] == [[name]] * 2
    for text, words, starts, ends in zip(
        texts, *(values.to_list() for values in found[2:]), strict=True
    ):
        assert [text[a:b].encode() for a, b in zip(starts, ends, strict=True)] == words
