"""From labels of word pieces to entities."""

import numpy as np
import tensorflow as tf

from spanbert_tf.models import (
    SpanBertBackbone,
    SpanBertTokenClassifier,
    SpanBertTokenClassifierPreprocessor,
    SpanBertTokenizer,
)
from spanbert_tf.tasks.named_entities.decoding import EntityDecoder

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "acme", "hires", "ann"]


def test_type_that_is_called_as_no_entity_is_one():
    """`O` for organisations: the label `O` alone is no entity."""
    backbone = SpanBertBackbone(
        len(VOCABULARY), num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=8
    )
    preprocessor = SpanBertTokenClassifierPreprocessor(SpanBertTokenizer(VOCABULARY), 16)
    labels = ["O", "B-P", "I-P", "B-O", "I-O"]
    decoder = EntityDecoder(SpanBertTokenClassifier(backbone, labels, preprocessor))
    texts = tf.constant(["acme acme hires ann"])
    found = decoder.decode(
        texts,
        decoder.tokenize(texts),
        tf.constant([3, 4, 0, 1]),
        tf.constant(np.full(4, 0.5, "float32")),
    )
    assert found.types.to_list() == [[b"O", b"P"]]
    assert found.starts.to_list() == [[0, 16]]
    assert found.ends.to_list() == [[9, 19]]
