"""Requests are gathered by tokens; each gets its own answer."""

import asyncio
import contextlib
import threading

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st
from running_server import WAIT
from tiny_models import SENTENCE

from spanbert_tf.server import batching
from spanbert_tf.server.batching import Work, Worker, compute_batch, take_batch
from spanbert_tf.server.errors import RequestError
from spanbert_tf.server.http import compute
from spanbert_tf.server.model import Model


def work_of(rows, tokens, signature="a", width=2, is_gathered=True):
    values = np.arange(rows * width).reshape(rows, width)
    return Work(signature, {"x": values}, tokens, is_gathered)


works = st.builds(
    work_of,
    rows=st.integers(0, 4),
    tokens=st.integers(1, 40),
    signature=st.sampled_from("ab"),
    width=st.integers(1, 2),
    is_gathered=st.booleans(),
)


@hypothesis.given(st.lists(works, min_size=1, max_size=12), st.integers(1, 80))
def test_batches_take_each_request_once_within_the_budget(waiting, budget):
    left = list(waiting)
    taken = []
    while left:
        oldest = left[0]
        batch = take_batch(left, budget)
        assert batch[0] is oldest  # nobody waits for ever
        rows = sum(work.num_rows for work in batch)
        longest = max(work.tokens for work in batch)
        assert len(batch) == 1 or rows * longest <= budget
        assert len({(w.signature, w.inputs["x"].shape[1]) for w in batch}) == 1
        assert len(batch) == 1 or all(work.is_gathered for work in batch)
        taken += batch
    assert sorted(map(id, taken)) == sorted(map(id, waiting))


def test_like_lengths_go_together():
    short, long, alike = work_of(1, 10), work_of(1, 100), work_of(1, 12)
    waiting = [short, long, alike]
    assert take_batch(waiting, 50) == [short, alike]
    assert waiting == [long]


def test_no_request_is_lost_behind_those_that_are_looked_at(monkeypatch):
    monkeypatch.setattr(batching, "_CONSIDERED", 2)
    three = [work_of(1, 10) for _ in range(3)]
    waiting = list(three)
    assert take_batch(waiting, 1_000) == three[:2]
    assert waiting == three[2:]


def double(signature, inputs):
    if (inputs["x"] < 0).any():
        raise RequestError(400, "negative")
    return {"y": inputs["x"] * 2}


def test_requests_get_their_own_rows():
    batch = [work_of(3, 1), work_of(0, 1), work_of(2, 1)]
    for work, found in zip(batch, compute_batch(double, batch), strict=True):
        np.testing.assert_array_equal(found["y"], work.inputs["x"] * 2)


def test_only_what_is_wanted_is_kept_of_a_batch():
    def compute(signature, inputs):
        rows = inputs["x"]
        return {"small": rows[:, 0], "large": np.zeros((len(rows), 1_000))}

    wanted, all_of_it = work_of(2, 1), work_of(1, 1)
    wanted.kept = ("small",)
    first, second = compute_batch(compute, [wanted, all_of_it])
    assert set(first) == {"small"} and set(second) == {"small", "large"}
    for arrays in (first, second):  # a view would keep the arrays of the batch
        assert all(array.base is None for array in arrays.values())


def test_the_outputs_for_each_position_are_not_kept_for_vectors(exports):
    _, version = exports["text_embedding"]
    model = Model("text_embedding", version)
    assert "sequence_output" in model.output_specs("serving_default")
    _, works = model.raw_works([SENTENCE, "bob"])
    for outputs in compute_batch(model.compute, works):
        assert set(outputs) == {"embeddings", "padding_mask"}


def test_a_wrong_request_harms_no_other():
    right, wrong = work_of(1, 1), work_of(1, 1)
    wrong.inputs["x"] -= 5
    first, second = compute_batch(double, [right, wrong])
    np.testing.assert_array_equal(first["y"], right.inputs["x"] * 2)
    assert isinstance(second, RequestError)


def test_requests_without_memory_are_answered():
    def compute(signature, inputs):
        raise MemoryError

    found = compute_batch(compute, [work_of(1, 10), work_of(1, 10)])
    assert [error.status for error in found] == [503, 503]


@pytest.mark.parametrize("error", [MemoryError(), tf.errors.ResourceExhaustedError(None, None, "")])
def test_a_model_without_memory_says_so(error, exports, monkeypatch):
    _, version = exports["text_embedding"]
    model = Model("text_embedding", version)

    def function(**inputs):
        raise error

    monkeypatch.setattr(model, "_functions", {"serving_default": function})
    with pytest.raises(RequestError) as caught:
        model.compute("serving_default", {"text": np.array([b"ann"], object)})
    assert caught.value.status == 503


def test_a_text_that_others_would_wait_for_is_refused(exports, monkeypatch):
    """A text that is cut to a row has no more tokens than the row."""
    long = f"{SENTENCE} " * 100
    for name, status in (("named_entities", 413), ("text_embedding", None)):
        model = Model(name, exports[name][1])
        monkeypatch.setattr(type(model.pipeline), "max_text_tokens", 100)
        model.raw_works([SENTENCE, SENTENCE])
        with contextlib.ExitStack() as stack:
            if status is not None:
                caught = stack.enter_context(pytest.raises(RequestError))
            model.raw_works([SENTENCE, long])
        assert status is None or caught.value.status == status


def run(steps, compute=double, max_tokens=10):
    """Runs a coroutine with a worker; returns its result and the batches."""
    batches = []

    async def main():
        worker = Worker(compute, max_tokens, lambda rows, tokens: batches.append(rows))
        try:
            return await steps(worker)
        finally:
            await worker.close()

    return asyncio.run(main()), batches


def test_requests_that_come_together_are_one_batch():
    async def steps(worker):
        asks = [worker.outputs([work_of(1, 1)]) for _ in range(5)]
        return await asyncio.gather(*asks)

    found, batches = run(steps)
    assert [outputs[0]["y"].tolist() for outputs in found] == [[[0, 2]]] * 5
    assert batches == [5]


def test_too_many_waiting_requests_are_refused_and_room_comes_back():
    async def steps(worker):
        room = worker.max_waiting_tokens
        full = asyncio.create_task(worker.outputs([work_of(1, 1), work_of(1, room - 1)]))
        await asyncio.sleep(0)
        with pytest.raises(RequestError) as caught:
            await worker.outputs([work_of(1, 1)])
        assert caught.value.status == 429
        assert caught.value.headers["Retry-After"].isdecimal()
        await full
        assert worker.waiting_tokens == 0
        await worker.outputs([work_of(1, 1)])
        with pytest.raises(RequestError) as caught:
            await worker.outputs([work_of(1, room + 1)])
        assert caught.value.status == 413

    run(steps)


def test_requests_whose_clients_have_gone_are_not_computed():
    async def steps(worker):
        works = [work_of(1, 10) for _ in range(3)]  # a batch each
        asked = [asyncio.create_task(worker.outputs([work])) for work in works]
        await asyncio.sleep(0)
        worker.withdraw(works[1:2])
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert worker.waiting_tokens == 0
        worker.withdraw(works)  # too late: nothing is left to withdraw
        return answers

    (first, second, third), batches = run(steps)
    assert first[0]["y"].shape == third[0]["y"].shape == (1, 2)
    assert isinstance(second, RequestError)
    assert batches == [1, 1]


def test_nothing_more_is_computed_for_a_request_that_is_cancelled():
    """As when the server ends, and has not finished in time."""

    class Listening:
        async def receive(self):
            await asyncio.Event().wait()

    may_go_on = threading.Event()

    def waiting(signature, inputs):
        may_go_on.wait(WAIT)
        return double(signature, inputs)

    async def steps(worker):
        works = [work_of(1, 10) for _ in range(3)]  # a batch each
        asked = asyncio.create_task(compute(Listening(), worker, works))
        while worker._waiting != works[1:]:
            await asyncio.sleep(0)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        may_go_on.set()

    _, batches = run(steps, waiting)
    assert batches == [1]


def test_closing_finishes_what_waits():
    async def steps(worker):
        asked = asyncio.create_task(worker.outputs([work_of(1, 11), work_of(1, 11)]))
        await asyncio.sleep(0)
        await worker.close()
        return await asked

    found, batches = run(steps)
    assert len(found) == 2 and batches == [1, 1]
