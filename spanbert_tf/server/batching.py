"""Gathers requests to batches of so many tokens, and computes one batch after the other.

Dimensions: N rows of a request.
"""

import asyncio
import concurrent.futures
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from spanbert_tf.server.errors import RequestError

Arrays = Mapping[str, np.ndarray]  # name → array [N, …]
Compute = Callable[[str, Arrays], Arrays]  # signature, inputs → outputs
Observe = Callable[[int, int], None]  # rows, tokens of a batch

WAITING_BATCHES = 64  # full batches of requests that may wait
_CONSIDERED = 4_096  # of the oldest requests, which a batch is made of


@dataclasses.dataclass(eq=False)
class Work:
    """What one request asks of a model.

    Attributes:
        signature: name of the signature.
        inputs: its inputs, [N, …].
        tokens: number of tokens of the longest row, at least 1.
        is_gathered: whether other requests may be computed with it. They must not if the outputs
            are padded to the longest row of a batch, and the client would see the padding.
        turn: the turn of its request in which it is computed, from 0.
        kept: names of the outputs that are wanted; if there are none, all outputs.
    """

    signature: str
    inputs: Arrays
    tokens: int
    is_gathered: bool
    turn: int = 0
    kept: Sequence[str] = ()

    @property
    def num_rows(self) -> int:
        """N."""
        return len(next(iter(self.inputs.values())))

    @property
    def cost(self) -> int:
        """The number of tokens that are computed for it, with padding; of no rows, 1."""
        return max(self.num_rows * self.tokens, 1)

    def fits(self, other: "Work") -> bool:
        """Whether one batch can hold both."""
        return self.is_gathered and other.is_gathered and self._kind == other._kind

    @functools.cached_property
    def _kind(self) -> tuple:
        """What requests that are computed together have in common."""
        return self.signature, {name: values.shape[1:] for name, values in self.inputs.items()}


def take_batch(waiting: list[Work], max_tokens: int) -> list[Work]:
    """Removes the next batch from the waiting requests.

    It is the oldest request, and those nearest to it in length that fit into the budget. (Only so
    many of the oldest are looked at: a request may hold thousands, and others wait meanwhile.)

    Args:
        waiting: requests, the oldest first; not empty.
        max_tokens: budget of the batch, in which each row counts as much as the longest. A request
            over the budget is a batch of its own.
    """
    oldest = waiting[0]
    considered = waiting[:_CONSIDERED]
    others = [work for work in considered[1:] if work.fits(oldest)]
    others.sort(key=lambda work: abs(work.tokens - oldest.tokens))
    batch = [oldest]
    num_rows = oldest.num_rows
    longest = oldest.tokens
    for work in others:
        num_rows += work.num_rows
        longest = max(longest, work.tokens)
        if num_rows * longest > max_tokens:
            break
        batch.append(work)
    taken = set(batch)
    waiting[:_CONSIDERED] = [work for work in considered if work not in taken]
    return batch


def compute_batch(compute: Compute, batch: Sequence[Work]) -> list[Arrays | RequestError]:
    """Computes requests together. If that fails, each is computed alone and has its own error.

    Args:
        compute: computes the outputs of a signature.
        batch: requests that fit together.

    Returns:
        The outputs for each request, or its error.
    """
    try:
        outputs = compute(batch[0].signature, _joined_inputs(batch))
    except MemoryError:
        return [RequestError(503, "not enough memory for this request") for _ in batch]
    except RequestError as error:
        if len(batch) == 1:
            return [error]
        return [compute_batch(compute, [work])[0] for work in batch]
    results: list[Arrays | RequestError] = []
    start = 0
    for work in batch:
        end = start + work.num_rows
        kept = work.kept or outputs
        results.append({name: _own_rows(outputs[name], start, end) for name in kept})
        start = end
    return results


def _joined_inputs(batch: Sequence[Work]) -> Arrays:
    """Returns the rows of all requests of a batch, one request after the other."""
    inputs = {}
    for name in batch[0].inputs:
        inputs[name] = np.concatenate([work.inputs[name] for work in batch])
    return inputs


def _own_rows(values: np.ndarray, start: int, end: int) -> np.ndarray:
    """Returns the rows of one request.

    They are copied if there are others: a view would keep the outputs of the whole batch until the
    answer is written.
    """
    rows = values[start:end]
    return rows if len(rows) == len(values) else rows.copy()


class Worker:
    """Computes the requests of a model in one thread. It belongs to the running event loop.

    Requests that arrive while a batch is computed are the next batches; nothing waits for more.

    Args:
        compute: computes the outputs of a signature, in the thread.
        max_tokens: budget of a batch.
        observe: is called for each batch.
    """

    def __init__(self, compute: Compute, max_tokens: int, observe: Observe) -> None:
        self._compute = compute
        self._observe = observe
        self.max_tokens = max_tokens
        self.max_waiting_tokens = WAITING_BATCHES * max_tokens
        self.waiting_tokens = 0
        self._waiting: list[Work] = []
        self._results: dict[Work, asyncio.Future] = {}
        self._is_closed = False
        self._has_changed = asyncio.Event()
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "model")
        self._task = asyncio.create_task(self._run())

    async def outputs(self, works: Sequence[Work], *, is_begun: bool = False) -> list[Arrays]:
        """Computes the outputs of several works, which are admitted together.

        Args:
            works: the works.
            is_begun: whether others of the same request are computed already. They are then not
                refused because too many are waiting.

        Raises:
            RequestError: one of them is refused, or too many are waiting.
        """
        cost = sum(work.cost for work in works)
        if not is_begun:
            self._check_room(cost)
        self.waiting_tokens += cost
        futures = []
        for work in works:
            future = asyncio.get_running_loop().create_future()
            self._results[work] = future
            futures.append(future)
        self._waiting.extend(works)
        self._has_changed.set()
        found = await asyncio.gather(*futures)
        for result in found:
            if isinstance(result, RequestError):
                raise result
        return found

    def _check_room(self, cost: int) -> None:
        """Checks that a request of so many tokens may wait.

        Raises:
            RequestError: it may not.
        """
        if cost > self.max_waiting_tokens:
            raise RequestError(
                413,
                f"asks for about {cost:,} tokens; {self.max_waiting_tokens:,} are taken at once: "
                "send several requests",
            )
        if self.waiting_tokens + cost > self.max_waiting_tokens:
            raise RequestError(429, "too many requests are waiting; try again")

    def withdraw(self, works: Sequence[Work]) -> None:
        """Computes none of these requests that still waits, since nobody reads the answer."""
        unwanted = self._results.keys() & works
        if not unwanted:  # as a rule; thousands may be waiting
            return
        withdrawn = [work for work in self._waiting if work in unwanted]
        self._waiting[:] = [work for work in self._waiting if work not in unwanted]
        for work in withdrawn:
            self._finish(work, RequestError(499, "the client has gone"))

    async def close(self) -> None:
        """Computes what is waiting, and ends the thread. No more requests may come."""
        self._is_closed = True
        self._has_changed.set()
        await self._task
        self._thread.shutdown()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting or not self._is_closed:
            if not self._waiting:
                self._has_changed.clear()
                await self._has_changed.wait()
                continue
            batch = take_batch(self._waiting, self.max_tokens)
            self._observe(sum(work.num_rows for work in batch), sum(work.cost for work in batch))
            results = await loop.run_in_executor(self._thread, compute_batch, self._compute, batch)
            for work, result in zip(batch, results, strict=True):
                self._finish(work, result)

    def _finish(self, work: Work, result: Arrays | RequestError) -> None:
        self.waiting_tokens -= work.cost
        future = self._results.pop(work)
        if not future.done():  # the request may have been cancelled
            future.set_result(result)
