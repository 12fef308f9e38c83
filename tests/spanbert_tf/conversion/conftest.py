import keras
import pytest
import torch_models

from spanbert_tf.models import SpanBertBackbone, SpanBertTokenizer

# With the entries that mark entities.
VOCABULARY = [*torch_models.VOCABULARY, *(f"[unused{number}]" for number in range(1, 7))]


@pytest.fixture(scope="session")
def tiny_backbone():
    keras.utils.set_random_seed(1)
    return SpanBertBackbone(len(VOCABULARY), 1, 2, 8, 8, max_sequence_length=16)


@pytest.fixture(scope="session")
def tiny_tokenizer():
    return SpanBertTokenizer(VOCABULARY, lowercase=True)
