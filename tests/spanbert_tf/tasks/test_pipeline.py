"""What all pipelines share: batches of raw inputs, and rows in chunks."""

import types

import hypothesis
import keras
import pytest
import tensorflow as tf
from hypothesis import strategies as st

from spanbert_tf.serving.description import Description
from spanbert_tf.tasks.graphs import map_row_chunks, text_specs
from spanbert_tf.tasks.pipeline import Pipeline, batches_by_length
from spanbert_tf.text.vocabulary import TextRules


@hypothesis.given(st.lists(st.integers(0, 30), max_size=20), st.integers(1, 5), st.integers(1, 60))
def test_batches_are_within_their_limits_and_take_each_input_once(lengths, batch_size, max_length):
    batches = batches_by_length(lengths, batch_size, max_length)
    assert sorted(number for batch in batches for number in batch) == list(range(len(lengths)))
    for batch in batches:
        longest = max(lengths[number] for number in batch)
        assert len(batch) <= batch_size
        assert len(batch) == 1 or longest * len(batch) <= max_length


class Lengths(Pipeline):
    """Texts → how many bytes each has, and how many texts came with it."""

    name = "lengths"
    model_class = keras.Model

    def signatures(self, model, top_k):
        def count(text):
            model.traces.append(text)
            return {
                "bytes": tf.strings.length(text),
                "texts": tf.fill([tf.size(text)], tf.size(text)),
            }

        return {"serving_default": (count, text_specs("text"))}

    def describe(self, model, top_k, signature):
        rules = TextRules.of(lowercase=True)
        words = ("[UNK]", "a")
        return Description("lengths", ("text",), (), {}, signature, 1, 16, {}, rules, words)

    def answer(self, description, item, found, top_k):
        return item["text"], int(found["bytes"]), int(found["texts"])


def test_answers_come_in_the_order_of_inputs_by_one_trace():
    model = types.SimpleNamespace(traces=[])
    texts = ["a" * length for length in (3, 9, 1, 9, 4)]
    found = Lengths().predictor(model)(iter(texts), batch_size=2)
    assert found == [(text, len(text), 1 if text == "a" else 2) for text in texts]
    assert len(model.traces) == 1


@pytest.mark.parametrize(
    ("max_tokens", "sizes"), [(1, [1, 1, 1, 1]), (10, [2, 1, 1, 2]), (15, [3, 3, 1, 3])]
)
def test_batches_of_tokens_count_pieces_with_special_ones(max_tokens, sizes):
    """Of 5, 3, 11 and 4 tokens."""
    texts = ["a a a", "a", " ".join("a" * 9), "a\n a"]
    found = Lengths().predictor(types.SimpleNamespace(traces=[]))(texts, 1, max_tokens)
    assert [text for text, *_ in found] == texts
    assert [size for *_, size in found] == sizes


@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize("num_rows", [0, 1, 4, 5, 13])
def test_chunks_give_what_all_rows_at_once_give(num_rows, in_graph):
    sizes = []

    def function(rows):
        tf.py_function(lambda x: sizes.append(len(x)), [rows["x"]], [])
        return {"sums": tf.reduce_sum(rows["x"], axis=1)}, tf.cast(rows["flag"], tf.int32)

    rows = {
        "x": tf.random.stateless_uniform([num_rows, 7], (1, 2)),
        "flag": tf.range(num_rows) % 3 == 0,
    }
    dtypes = ({"sums": tf.float32}, tf.int32)

    def in_chunks(rows):
        return map_row_chunks(function, rows, dtypes, max_rows=4)

    found = (tf.function(in_chunks) if in_graph else in_chunks)(rows)
    chunks = sizes.copy()
    tf.nest.map_structure(tf.debugging.assert_equal, found, function(rows))
    assert max(chunks) <= 4 and num_rows <= sum(chunks) < num_rows + len(chunks)
