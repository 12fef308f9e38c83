"""The exported graph reads text as the records were written."""

import gzip
import itertools

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st

from spanbert_tf.models import (
    SpanBertBackbone,
    SpanBertMaskedLM,
    SpanBertMaskedLMPreprocessor,
    SpanBertTokenizer,
)
from spanbert_tf.tasks.prediction import export_preset
from spanbert_tf.text.tokenization import WordPieceTokenizer
from spanbert_tf.text.vocabulary import SPECIAL_TOKENS, TextRules, load_vocabulary

LENGTH = 64
CASED = TextRules.of(False)


def exported_pack(directory, vocabulary, text_rules):
    """The `pack` signature of a model that was exported and loaded."""
    backbone = SpanBertBackbone(len(vocabulary), 1, 2, 8, 8, max_sequence_length=LENGTH)
    tokenizer = SpanBertTokenizer(vocabulary, **text_rules._asdict())
    model = SpanBertMaskedLM(backbone, SpanBertMaskedLMPreprocessor(tokenizer))
    model.is_head_trained = True
    model.set_weights([np.ones(weight.shape) for weight in model.weights])
    model.save_to_preset(str(directory / "preset"))
    path = export_preset(str(directory / "preset"), str(directory / "served"))
    return tf.saved_model.load(path).signatures["pack"]


def check_ids(pack, vocabulary, tokenizer, texts):
    prepared = tokenizer.tokenize(texts)
    start, end = vocabulary.index("[CLS]"), vocabulary.index("[SEP]")
    expected = [[start, *row[: LENGTH - 2], end] for row in prepared.to_list()]
    rows = pack(texts=texts)
    lengths = tf.reduce_sum(rows["padding_mask"], axis=1)
    assert tf.RaggedTensor.from_tensor(rows["token_ids"], lengths).to_list() == expected


def test_real_lines_have_the_ids_of_preparation(shared_data, tmp_path):
    vocabulary = load_vocabulary(shared_data / "vocab" / "bert-base-cased-vocab.txt")
    files = sorted((shared_data / "text" / "wikipedia" / "AA").glob("*.gz"))
    found = itertools.chain.from_iterable(
        gzip.decompress(path.read_bytes()).split(b"\n") for path in files
    )
    lines = list(itertools.islice((line for line in found if line.strip()), 10_000))
    assert len(lines) == 10_000
    pack = exported_pack(tmp_path, vocabulary, CASED)
    check_ids(pack, vocabulary, WordPieceTokenizer(vocabulary, CASED), tf.constant(lines))


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(CASED, marks=pytest.mark.slow),  # real lines are cased
        TextRules.of(True),
        pytest.param(TextRules(True, False), marks=pytest.mark.slow),
    ],
    ids=TextRules.describe,
)
def export(request, tmp_path_factory):
    letters = "abcdefgiéäß中.,!#[]"
    vocabulary = [*SPECIAL_TOKENS, *letters, *(f"##{letter}" for letter in letters)]
    directory = tmp_path_factory.mktemp("export")
    pack = exported_pack(directory, vocabulary, request.param)
    return pack, vocabulary, WordPieceTokenizer(vocabulary, request.param)


@hypothesis.settings(max_examples=100)
@hypothesis.given(
    texts=st.lists(
        st.text(max_size=20) | st.text("abß中éÉÄİ[]#. \x00\u200b", max_size=80), max_size=4
    )
)
def test_made_up_strings_have_the_ids_of_preparation(export, texts):
    pack, vocabulary, tokenizer = export
    encoded = tf.constant([text.encode("utf-8") for text in texts], tf.string)
    check_ids(pack, vocabulary, tokenizer, encoded)
