"""Batches of raw inputs."""

import hypothesis
from hypothesis import strategies as st

from spanbert_tf.tasks.raw_inputs import in_batches_by_length


@hypothesis.given(
    st.lists(st.text("ab", max_size=30), max_size=20), st.integers(1, 5), st.integers(1, 60)
)
def test_batches_are_within_their_limits_and_results_in_the_order_of_inputs(
    texts, batch_size, max_characters
):
    inputs = [{"text": text, "number": number} for number, text in enumerate(texts)]
    batches = []

    def work(batch):
        batches.append([len(item["text"]) for item in batch])
        return [item["number"] for item in batch]

    limits = {"batch_size": batch_size, "max_characters": max_characters}
    assert in_batches_by_length(inputs, ("text",), work, **limits) == list(range(len(texts)))
    for lengths in batches:
        assert len(lengths) <= batch_size
        assert len(lengths) == 1 or max(lengths) * len(lengths) <= max_characters
