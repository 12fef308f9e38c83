"""Documents whose tokens count up, as blocks are made of, and the features of a block."""

import numpy as np
import written_records
from hypothesis import strategies as st

from data_prep.blocks.sequences import Sentences, number_sentences

LIMIT = 9
# documents > paragraphs > lengths of sentences; none is empty
SHAPES = st.lists(
    st.lists(
        st.lists(st.integers(1, 31), min_size=1, max_size=4), min_size=1, max_size=4
    ),
    min_size=1,
    max_size=4,
)  # fmt: skip


def make_documents(shapes):
    """Documents of paragraphs of sentences, whose tokens count up."""
    tokens = iter(range(1, 10**6))
    return [
        [[[next(tokens) for _ in range(length)] for length in paragraph] for paragraph in document]
        for document in shapes
    ]


def make_sentences(documents, first_document=0, first_paragraph=0):
    """The arrays of some documents, the first of which may be the end of one."""
    of_document, of_paragraph, sentences = [], [], []
    for number, document in enumerate(documents, start=first_document):
        for paragraph_number, paragraph in enumerate(document):
            for sentence in paragraph:
                of_document.append(number)
                of_paragraph.append(1000 * number + paragraph_number)
                sentences.append(sentence)
    documents_array = np.array(of_document, np.int64)
    paragraphs, indices = number_sentences(documents_array, np.array(of_paragraph, np.int64))
    paragraphs = paragraphs + first_paragraph * (documents_array == first_document)
    lengths = np.array([len(sentence) for sentence in sentences], np.int64)
    token_ids = np.array([token for sentence in sentences for token in sentence], np.int32)
    return Sentences(
        token_ids, lengths, documents_array, paragraphs, indices, np.zeros_like(lengths)
    )


def to_features(block):
    features = {
        name: np.frombuffer(raw, "<u2").tolist()
        for name, raw in zip(written_records.LISTS, block.lists, strict=False)
    }
    features["token_ids"] = np.frombuffer(block.token_ids, "<u2").tolist()
    features["first_token_index"] = block.first_token_index
    assert block.num_tokens == len(features["token_ids"])
    return features
