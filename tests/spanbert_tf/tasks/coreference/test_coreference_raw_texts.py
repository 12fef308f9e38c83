"""What the resolver of raw texts hands the model."""

import types

import made_up_documents
import pytest
import tensorflow as tf
from task_tests import SEQUENCE_LENGTH, SPECIAL

from spanbert_tf.models import SpanBertCoreferenceResolverPreprocessor, SpanBertTokenizer
from spanbert_tf.tasks.coreference import schema, serving
from spanbert_tf.tasks.coreference.decoding import NO_CLUSTER, LinkedSpans
from spanbert_tf.tasks.coreference.raw_texts import resolve_texts


@pytest.fixture
def seen():
    """Speakers of the documents that the model was given."""
    return []


@pytest.fixture
def resolve(monkeypatch, seen):
    """All that lies before and behind the model, which is left out."""
    vocabulary = SPECIAL + made_up_documents.VOCABULARY
    tokenizer = SpanBertTokenizer(vocabulary, lowercase=True)
    preprocessor = SpanBertCoreferenceResolverPreprocessor(tokenizer, SEQUENCE_LENGTH)

    def note(model, features):
        tf.py_function(lambda ids: seen.extend(ids.numpy().tolist()), [features["speaker_ids"]], [])
        first = tf.zeros_like(features["speaker_ids"][:, :1])
        return LinkedSpans(first, first, tf.fill(tf.shape(first), NO_CLUSTER))

    monkeypatch.setattr(serving, "link_spans", note)
    return resolve_texts(types.SimpleNamespace(preprocessor=preprocessor))


def test_speakers_of_lines_reach_the_model_in_both_spellings(resolve, seen):
    text, all_speakers = "Ann has the cat .\nShe likes the cat .", (["Bob", "Ann"], "Bob\nAnn")
    all_speakers += (["Ann", "Ann"], None)
    found = resolve([{"text": text, "speakers": speakers} for speakers in all_speakers])
    assert found == [{"text": text, "clusters": [], "strings": []}] * 4
    listed, in_lines, of_one, none = ([ids[1:6], ids[6:11]] for ids in seen)
    bob, ann = listed[0][0], listed[1][0]
    assert listed == in_lines == [[bob] * 5, [ann] * 5]
    assert of_one == [[ann] * 5] * 2 and none == [[schema.NO_SPEAKER] * 5] * 2
    assert len({bob, ann, schema.NO_SPEAKER, schema.SPECIAL_SPEAKER}) == 4


def test_keys_of_documents_come_back_with_their_texts(resolve):
    texts = {"one": "Ann .", "two": "Ann has the cat .", "three": "Ann has ."}
    found = resolve([{"doc_key": key, "text": text} for key, text in texts.items()])
    assert {document["doc_key"]: document["text"] for document in found} == texts
