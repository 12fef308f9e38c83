"""What is said of records and an encoder that do not fit each other can be followed."""

import re

import pytest

from data_prep.cli import prepare
from spanbert_tf.errors import MismatchError
from spanbert_tf.models import SpanBertBackbone
from spanbert_tf.tasks.coreference.records import CoreferenceManifest
from spanbert_tf.tasks.evaluation import check_encoder
from spanbert_tf.tasks.named_entities.records import NamedEntitiesManifest
from spanbert_tf.tasks.question_answering.records import QuestionAnsweringManifest
from spanbert_tf.tasks.relation_extraction.records import RelationExtractionManifest
from spanbert_tf.tasks.text_classification.records import TextClassificationManifest

FACTS = {"vocabulary_hash": "x", "vocabulary_size": 9, "lowercase": True, "sequence_length": 16}
FACTS |= {"files": {}, "strip_accents": True, "language": "en"}
# Commands that write a task's records, its description, what that has of its own.
TASKS = [
    (
        ("squad", "mrqa"),
        QuestionAnsweringManifest,
        {"stride": 8, "question_first": False, "has_unanswerable": False},
    ),
    (
        ("glue", "classification"),
        TextClassificationManifest,
        {"labels": ["a", "b"], "label_counts": [1, 1], "is_pair": False, "is_regression": False},
    ),
    (
        ("named_entities",),
        NamedEntitiesManifest,
        {"labels": ["O"], "words": "marked", "label_counts": [1]},
    ),
    (
        ("tacred", "semeval2010"),
        RelationExtractionManifest,
        {
            "labels": ["a"],
            "label_counts": [1],
            "markers": {},
            "entities": "text",
            "layout": "tacred",
        },
    ),
    (("coreference",), CoreferenceManifest, {"max_training_segments": 1}),
]


@pytest.mark.parametrize(
    ("commands", "kind", "own"), TASKS, ids=[kind.task for _, kind, _ in TASKS]
)
def test_advice_on_positions_names_options_that_there_are(commands, kind, own):
    manifest = kind(**FACTS, counts={"rows": 2, "windows": 2, "tokens": 9}, **own)
    segabert, bert = (
        SpanBertBackbone(9, 1, 2, 8, 8, max_sequence_length=length, position_embeddings=positions)
        for positions, length in (("segment_aware", 16), ("absolute", 8))
    )
    for encoder, option in ((segabert, "--segment-aware"), (bert, "--sequence-length")):
        with pytest.raises(MismatchError) as caught:
            check_encoder(encoder, manifest, "records", "preset")
        message = str(caught.value)
        named = re.findall(r"--[\w-]+", message)
        is_there = [option in options_of(command) for command in commands]
        assert is_there == [option in named] * len(commands), message
        assert all(set(named) <= options_of(command) for command in commands), message
    # Rows of passages have no SegaBERT positions where the passage comes first.
    if kind is QuestionAnsweringManifest:
        with pytest.raises(MismatchError, match="with --question-first --segment-aware"):
            check_encoder(segabert, manifest, "records", "preset")


def options_of(command):
    return {option for each in prepare.commands[command].params for option in each.opts}
