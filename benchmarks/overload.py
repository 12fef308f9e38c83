"""Asks `spanbert-tf serve` for twice as much as it can compute, for minutes.

    PYTHONPATH=tests/support python -m benchmarks.overload --minutes 10

A server with a tiny model of named entities runs in a process of its own. First, a few clients ask
one request after the other, which measures what it can compute. Then requests come at twice that
rate, whatever becomes of those before. Each opens a connection, and must get an answer: 200, or 429
or 503 with `Retry-After`. Prints the statuses, how long the answers took, and the memory of the
server in each minute.
"""

import asyncio
import collections
import json
import pathlib
import statistics
import tempfile
import time

import click
import psutil

from benchmarks.fuzzed_requests import served
from benchmarks.machine import describe_machine

_MODEL = "named_entities"
_INPUTS = 64  # of a request
_WORDS = 30  # of an input
_CLIENTS = 8
_MEASURED_SECONDS = 20
_ANSWER_SECONDS = 120


@click.command()
@click.option("--minutes", default=10, show_default=True)
def main(minutes: int) -> None:
    from tiny_models import export_tiny_model  # of tests/support

    print(describe_machine())
    with tempfile.TemporaryDirectory() as directory:
        export_tiny_model(_MODEL, pathlib.Path(directory))
        with served([f"{directory}/{_MODEL}"]) as (server, (_, port)):
            asyncio.run(_overload(port, psutil.Process(server.pid), minutes))


async def _overload(port: int, server: psutil.Process, minutes: int) -> None:
    body = json.dumps({"inputs": ["ann has the cat . bob " * (_WORDS // 6)] * _INPUTS}).encode()
    rate = await _possible_rate(port, body)
    print(f"{_CLIENTS} clients, {_INPUTS} inputs a request: {rate:.1f} requests/s are possible")
    print("minute | sent | statuses | p50 | slowest | memory of the server")
    answers: list[tuple[str, float]] = []
    tasks = set()
    for minute in range(minutes):
        del answers[:]
        sent = round(60 * 2 * rate)
        start = time.perf_counter()
        for number in range(sent):
            await asyncio.sleep(max(0, start + number / (2 * rate) - time.perf_counter()))
            task = asyncio.create_task(_record(port, body, answers))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        _print_minute(minute + 1, sent, answers, server)
    del answers[:]
    await asyncio.gather(*tasks)
    _print_minute("after", 0, answers, server)


def _print_minute(
    name: int | str, sent: int, answers: list[tuple[str, float]], server: psutil.Process
) -> None:
    statuses = dict(collections.Counter(status for status, _ in answers))
    seconds = [second for _, second in answers] or [0.0]
    memory = server.memory_info().rss / 2**20
    times = f"{statistics.median(seconds):.2f} s | {max(seconds):.2f} s"
    print(f"{name} | {sent} | {statuses} | {times} | {memory:,.0f} MiB", flush=True)


async def _possible_rate(port: int, body: bytes) -> float:
    """Returns the requests a second that some clients get answered, one after the other."""
    answers: list[tuple[str, float]] = []

    async def ask_until(end: float) -> None:
        while time.perf_counter() < end:
            await _record(port, body, answers)

    start = time.perf_counter()
    end = start + _MEASURED_SECONDS
    await asyncio.gather(*(ask_until(end) for _ in range(_CLIENTS)))
    return len(answers) / (time.perf_counter() - start)


async def _record(port: int, body: bytes, answers: list[tuple[str, float]]) -> None:
    start = time.perf_counter()
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            status = await _status(port, body)
    except (OSError, EOFError, ValueError) as error:
        status = type(error).__name__
    answers.append((status, time.perf_counter() - start))


async def _status(port: int, body: bytes) -> str:
    """Returns the status of an answer that is read to its end.

    Raises:
        OSError: the connection broke, or no answer came in time.
        EOFError: the answer has no end.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        head = f"POST /answer HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()
        answer_head = (await reader.readuntil(b"\r\n\r\n")).lower()
        (length,) = (
            int(line.partition(b":")[2])
            for line in answer_head.split(b"\r\n")
            if line.startswith(b"content-length")
        )
        await reader.readexactly(length)
        status = answer_head.split()[1].decode()
        if status in ("429", "503") and b"retry-after" not in answer_head:
            status += " without Retry-After"
        return status
    finally:
        writer.close()


if __name__ == "__main__":
    main()
