"""Losses a character of encoders whose vocabularies differ, by plain Python."""

import math

import keras
import numpy as np
import pytest
from record_files import VOCABULARY, random_records, write_records

from spanbert_tf.models import SpanBertBackbone, SpanBertMaskedLM, SpanBertTokenizer
from spanbert_tf.studies.before_and_after import Measure, describe_help
from spanbert_tf.studies.held_out_text import (
    HeldOutText,
    group_words,
    join_words,
    loss_per_character,
    pieces_per_word,
    read_held_out_text,
)

SMALL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "sat", "."]
LARGE = [*SMALL, "cats"]
TEXT = HeldOutText([["the", "cats", "sat", "."], ["cats", "sat"]], [[1], [0, 1]], 8)


def model_of(vocabulary, seed=1):
    keras.utils.set_random_seed(seed)
    return SpanBertMaskedLM(SpanBertBackbone(len(vocabulary), 1, 2, 8, 8, max_sequence_length=8))


def test_pieces_are_joined_to_words():
    assert join_words(["##s", "the", "cat", "##s", "##s", "."]) == ["the", "catss", "."]
    assert join_words([]) == []


def test_words_are_grouped_by_the_words_of_the_records():
    """As ICU's of Chinese; and of Thai, where a word of the records may begin inside of BERT's."""
    pieces = ["##s", "the", "cat", "##s", "sat", "##s", "."]
    begins = [True, True, False, False, True, True, True]
    assert group_words(pieces, begins, 4) == [[0, 1], [2], [3]]
    assert group_words(pieces, begins, 2) == [[0, 1]]
    assert group_words(pieces, [not piece.startswith("##") for piece in pieces], 9) == [
        [0],
        [1],
        [2],
        [3],
    ]


@pytest.mark.parametrize("way", ["none", "icu"])
def test_words_of_the_records_are_masked_whole(way, tmp_path):
    """Records of 20 tokens without continuations, whose words have 2, or 1 if they tell none."""
    records = [
        {**record, "token_ids": list(range(5 + number, 25 + number))}
        for number, record in enumerate(random_records(12, 22))
    ]
    for record in records:
        record["sentence_starts"] = [0]
        record["sentence_indices"] = [0]
        if way == "icu":
            record["word_starts"] = list(range(0, 20, 2))
    data = write_records(
        tmp_path, records[:2], records[2:], sequence_length=24, word_segmentation=way
    )
    text = read_held_out_text(str(data), [SpanBertTokenizer(VOCABULARY)])
    assert len(text.rows) == 10
    size = 2 if way == "icu" else 1
    for row, masked in zip(text.rows, text.masked, strict=True):
        assert len(row) == 20
        assert len(masked) == size * round(0.15 * 20 / size)
        starts = masked[::size]
        assert all(start % size == 0 for start in starts)
        assert masked == [start + place for start in starts for place in range(size)]


def test_pieces_per_word_are_counted():
    assert pieces_per_word(TEXT, SpanBertTokenizer(SMALL)) == pytest.approx(8 / 6)
    assert pieces_per_word(TEXT, SpanBertTokenizer(LARGE)) == 1


def test_a_uniform_model_pays_for_each_piece():
    """log V of each masked piece: cat ##s and cat ##s sat, or cats and cats sat; 11 characters."""
    for vocabulary, num_pieces in ((SMALL, 5), (LARGE, 3)):
        model = model_of(vocabulary)
        model.masked_lm_head.set_weights(
            [np.zeros(weight.shape) for weight in model.masked_lm_head.weights]
        )
        model.backbone.token_embedding.set_weights(
            [np.zeros(weight.shape) for weight in model.backbone.token_embedding.weights]
        )
        loss = loss_per_character(TEXT, model, SpanBertTokenizer(vocabulary))
        assert loss == pytest.approx(num_pieces * math.log(len(vocabulary)) / 11, rel=1e-6)


def test_loss_is_that_of_each_masked_row_by_itself():
    model = model_of(SMALL)
    rows = [  # ids with [MASK], and position → id of what was masked
        ([2, 5, 4, 4, 8, 9, 3], {2: 6, 3: 7}),
        ([2, 4, 4, 4, 3], {1: 6, 2: 7, 3: 8}),
    ]
    expected = 0.0
    for ids, targets in rows:
        inputs = {
            "token_ids": np.array([ids]),
            "segment_ids": np.zeros((1, len(ids)), "int32"),
            "padding_mask": np.ones((1, len(ids)), "int32"),
            "mask_positions": np.array([list(targets)]),
        }
        probabilities = keras.ops.softmax(model(inputs, training=False))[0]
        for place, target in enumerate(targets.values()):
            expected -= math.log(float(probabilities[place, target]))
    found = loss_per_character(TEXT, model, SpanBertTokenizer(SMALL))
    assert found == pytest.approx(expected / 11, rel=1e-5)


@pytest.mark.parametrize(
    ("measures", "words"),
    [
        ([("loss", 1.0, 0.5, "min")], "It helped: loss is better (1.000 before, 0.500 after)."),
        ([("f1", 50.0, 40.0, "max")], "It did not help: f1 is worse"),
        ([("loss", 1.0, 0.5, "min"), ("f1", 50.0, 40.0, "max")], "It helped in part: loss is"),
        ([("pieces per word", 1.2, 1.1, None)], "Whether it helped was not measured"),
    ],
)
def test_the_verdict_is_in_words(measures, words):
    assert words in describe_help([Measure(*measure) for measure in measures])
