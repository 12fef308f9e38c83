"""Requests a second of `spanbert-tf serve`, beside the `transformers` pipeline behind LitServe.

    pip install litserve
    python -m benchmarks.http_serving --vocabulary vocab.txt [--layers 4 --width 256] [--threads 2]

A BERT with random weights fills [MASK] in texts of 8 to 96 tokens; both servers have the same
weights, whose answers must be equal, the same threads, and batches of the same number of tokens.
Clients are threads of a process of their own, each with one connection. Both are asked in turns,
and the medians of all rounds are printed. The cost of the layer is the p50 of one client, without
that of the export's signature, which a process of its own calls at once after the last call, or
after a pause of 2 ms: about as long as a server waits for a client, in which caches grow cold.
"""

import concurrent.futures
import contextlib
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

import click

from benchmarks.machine import describe_machine, free_port
from benchmarks.serving import write_models, write_texts

LENGTHS = (8, 16, 24, 32, 48, 64, 80, 96)  # tokens
CLIENTS = {1: 200, 8: 240, 64: 640}  # clients → requests in a round
_BATCH_TOKENS = 16_384
_WARM_UP = 3
_PAUSE = 0.002  # seconds
_OURS, _PEER = "spanbert-tf serve", "LitServe"
_OURS_MODULE, _PEER_MODULE = "spanbert_tf.cli", "benchmarks.http_serving_peer"
_TOLERANCE = 1e-3  # of a probability, relative


@click.command(help=__doc__.splitlines()[0])
@click.option("--vocabulary", required=True, type=click.Path(exists=True, dir_okay=False))
@click.option("--layers", default=4, show_default=True)
@click.option("--width", default=256, show_default=True)
@click.option("--threads", default=2, show_default=True)
@click.option("--wait", default=0.0, show_default=True, help="Seconds that LitServe waits.")
@click.option("--rounds", default=5, show_default=True)
def main(vocabulary: str, layers: int, width: int, threads: int, wait: float, rounds: int) -> None:
    """Starts both servers and prints the table."""
    rows = _BATCH_TOKENS // max(LENGTHS)
    print(describe_machine())
    print(f"{layers} layers of width {width}; {threads} threads; {_BATCH_TOKENS:,} tokens a batch,")
    print(f"{rows} rows with LitServe, which waits {wait} s for them; serve waits for nothing")
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        with open(vocabulary, encoding="utf-8") as file:
            pieces = file.read().splitlines()
        shape = {
            "num_hidden_layers": layers,
            "hidden_size": width,
            "num_attention_heads": max(width // 64, 1),
            "intermediate_size": 4 * width,
        }
        write_models(directory, pieces, ["float32"], **shape)
        texts = [text for length in LENGTHS for text in write_texts(pieces, length, 8)]
        with open(os.path.join(directory, "texts.json"), "w", encoding="utf-8") as file:
            json.dump(texts, file)
        environment = _environment(threads)
        ports = {name: free_port() for name in (_OURS, _PEER)}
        ours, theirs = (os.path.join(directory, name) for name in ("ours", "theirs"))
        serve = [_OURS_MODULE, "serve", ours, "--port", ports[_OURS]]
        serve += ["--max-batch-tokens", _BATCH_TOKENS]
        peer = [_PEER_MODULE, theirs, ports[_PEER], threads, rows, wait]
        for name, command in ((_OURS, serve), (_PEER, peer)):
            stack.enter_context(_running(["-m", *map(str, command)], environment))
            _wait_for(ports[name])
        _compare(ports, texts)
        _measure(ports, directory, environment, rounds)


def _environment(threads: int) -> dict[str, str]:
    names = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
    return {**os.environ, **dict.fromkeys(names, str(threads)), "TF_CPP_MIN_LOG_LEVEL": "3"}


@contextlib.contextmanager
def _running(command: Sequence[str], environment: dict[str, str]) -> Iterator[None]:
    """Runs a server until the end, with all its processes."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    child = subprocess.Popen(
        [sys.executable, *command], env=environment, start_new_session=True, **quiet
    )
    try:
        yield
    finally:
        os.killpg(child.pid, 15)
        try:
            child.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, 9)
            child.wait()


def _wait_for(port: int) -> None:
    for _ in range(300):
        with contextlib.suppress(OSError, http.client.HTTPException):
            if _ask(http.client.HTTPConnection("127.0.0.1", port), "a [MASK]"):
                return
        time.sleep(1)
    raise SystemExit("a server did not start")


def _ask(connection: http.client.HTTPConnection, text: str) -> list[dict]:
    body = json.dumps({"inputs": text, "top_k": 5})
    connection.request("POST", "/answer", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    content = response.read()
    if response.status != 200:
        raise http.client.HTTPException(f"{response.status}: {content[:200]!r}")
    return json.loads(content)


def _compare(ports: dict[str, int], texts: Sequence[str]) -> None:
    """Compares the answers to all texts.

    Raises:
        SystemExit: they differ.
    """
    largest = 0.0
    for text in texts:
        ours, theirs = (
            _ask(http.client.HTTPConnection("127.0.0.1", ports[name]), text) for name in ports
        )
        for one, other in zip(ours, theirs, strict=True):
            largest = max(largest, abs(one["score"] / other["score"] - 1))
        tokens = [[one["token"] for one in answers] for answers in (ours, theirs)]
        if largest > _TOLERANCE or tokens[0] != tokens[1]:
            raise SystemExit(f"the answers differ by {largest}: {ours} {theirs}")
    print(
        f"equal answers to {len(texts)} texts; "
        f"probabilities differ by at most {largest:.1e} of one",
        flush=True,
    )


def _measure(
    ports: dict[str, int], directory: str, environment: dict[str, str], rounds: int
) -> None:
    figures: dict[tuple[str, int], list[list[float]]] = {}
    direct: list[list[float]] = []
    for number in range(rounds):
        direct.append(_child(environment, "--direct", directory))
        for name, port in ports.items():
            for clients in CLIENTS:
                found = _child(environment, "--clients", directory, str(port), str(clients))
                figures.setdefault((name, clients), []).append(found)
        print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
    print("clients | server | requests/s | p50 | p99")
    for clients in CLIENTS:
        for name in ports:
            rate, p50, p99 = map(statistics.median, zip(*figures[name, clients], strict=True))
            print(
                f"{clients} | {name} | {rate:.0f} | {p50 * 1e3:.1f} ms | {p99 * 1e3:.1f} ms",
                flush=True,
            )
    ours = [p50 for _, p50, _ in figures[_OURS, 1]]
    for name, alone in zip(("at once", "after 2 ms"), zip(*direct, strict=True), strict=True):
        layer = [more - less for more, less in zip(ours, alone, strict=True)]
        print(
            f"p50 of the signature alone, {name}: {statistics.median(alone) * 1e3:.2f} ms; "
            f"cost of the layer: {statistics.median(layer) * 1e3:.2f} ms"
        )


def _child(environment: dict[str, str], *arguments: str) -> list[float]:
    command = [sys.executable, "-m", "benchmarks.http_serving", *arguments]
    child = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return json.loads(child.stdout.splitlines()[-1])


def _ask_all(directory: str, port: str, clients: str) -> None:
    """Prints requests a second, p50 and p99 of so many clients."""
    texts = _read_texts(directory)
    count = CLIENTS[int(clients)] // int(clients)

    def run(number: int) -> list[float]:
        connection = http.client.HTTPConnection("127.0.0.1", int(port))
        seconds = []
        for index in range(_WARM_UP + count):
            start = time.perf_counter()
            _ask(connection, texts[(number * 7 + index) % len(texts)])
            seconds.append(time.perf_counter() - start)
        return seconds[_WARM_UP:]

    start = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(int(clients)) as pool:
        found = list(pool.map(run, range(int(clients))))
    wall = time.perf_counter() - start
    seconds = sorted(second for one in found for second in one)
    total = (count + _WARM_UP) * int(clients)
    p99 = seconds[int(0.99 * (len(seconds) - 1))]
    print(json.dumps([total / wall, statistics.median(seconds), p99]))


def _call_directly(directory: str) -> None:
    """Prints the p50 of a call of the signature for one text, at once and after a pause."""
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  registers its operations

    loaded = tf.saved_model.load(os.path.join(directory, "ours", "1"))
    signature = loaded.signatures["serving_default"]
    texts = _read_texts(directory)
    print(json.dumps([_p50(signature, texts, pause) for pause in (0.0, _PAUSE)]))


def _p50(signature: Any, texts: Sequence[str], pause: float) -> float:
    import tensorflow as tf

    seconds = []
    for index in range(_WARM_UP + CLIENTS[1]):
        time.sleep(pause)
        start = time.perf_counter()
        outputs = signature(texts=tf.constant([texts[index % len(texts)]]))
        for values in outputs.values():
            values.numpy()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[_WARM_UP:])


def _read_texts(directory: str) -> list[str]:
    with open(os.path.join(directory, "texts.json"), encoding="utf-8") as file:
        return json.load(file)


if __name__ == "__main__":
    programs = {"--clients": _ask_all, "--direct": _call_directly}
    if sys.argv[1:2] and sys.argv[1] in programs:
        programs[sys.argv[1]](*sys.argv[2:])
    else:
        main()
