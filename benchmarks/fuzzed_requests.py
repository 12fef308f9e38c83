"""Sends a server thousands of wrong requests and counts how it answers.

    PYTHONPATH=tests/support python -m benchmarks.fuzzed_requests --requests 10000

`spanbert-tf serve` runs in a process of its own with a tiny model of each task. Requests of every
protocol are damaged: bytes, values of the JSON, types of content, ways to send it. An answer may be
2xx or 4xx with the error of the path's protocol; it may not be 5xx, come late, or not at all.
Prints the statuses, what was wrong, and the memory of the server before and after.
"""

import collections
import concurrent.futures
import contextlib
import copy
import json
import pathlib
import random
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import click
import numpy as np

SECONDS = 20
_CLIENTS = 4

_TEXTS: tuple[str, ...] = (
    "", " ", "\x00", "ann\x00has", "\ud800", "x\udfff", "\u202eann", "\U0010ffff", "é" * 40,
    "a" * 3_000, "北京 " * 500, "?" * 2_000, "[MASK] [SEP] [CLS]", "{}", "../../etc/passwd",
)  # fmt: skip
_NUMBERS: tuple[Any, ...] = (
    0, -1, 1, 2**31, -(2**31) - 1, 2**63, 2**64, 10**40, 1.5, -0.0, 1e308, True, False, None,
)  # fmt: skip
# No JSON for these: they are put into its text.
_LITERALS = ("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "9" * 5_000, "0x10", "01", "'a'")
_ROW = {"token_ids": [2, 5, 3], "segment_ids": [0, 0, 0], "padding_mask": [1, 1, 1]}
_MASKED_ROW = {"token_ids": [2, 4, 3], "padding_mask": [1, 1, 1], "mask_positions": [1]}


class Sent(NamedTuple):
    """A request as it goes over the line."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    is_chunked: bool

    def to_bytes(self) -> bytes:
        """Returns head and body."""
        lines = [f"{self.method} {self.path} HTTP/1.1", "Host: localhost", "Connection: close"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        body = self.body
        if self.is_chunked:
            lines.append("Transfer-Encoding: chunked")
            parts = [body[start : start + 97] for start in range(0, len(body), 97)]
            body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in [*parts, b""])
        else:
            lines.append(f"Content-Length: {len(body)}")
        return "\r\n".join([*lines, "", ""]).encode() + body


def valid_requests(tasks: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, dict]]:
    """Lists right requests of every protocol.

    Args:
        tasks: name of a model → a raw input.

    Returns:
        Paths with the content of their bodies.
    """
    found: list[tuple[str, dict]] = []
    for name, item in tasks.items():
        found.append(("/answer", {"model": name, "inputs": [item, item], "top_k": 1}))
        row = _row_of_signature(name, item)
        found.append((f"/v1/models/{name}:predict", {"instances": [row]}))
        columns = {key: [value] for key, value in row.items()}
        found.append((f"/v1/models/{name}/versions/1:predict", {"inputs": columns}))
        infer = {"id": "1", "inputs": _tensors([row])}
        found.append((f"/v2/models/{name}/infer", infer))
        if name == "coreference":  # its rows of ids are windows, with more inputs
            continue
        ids = [_MASKED_ROW if name == "fill_mask" else _ROW] * 2
        by_ids = {"signature_name": "token_ids", "instances": ids}
        found.append((f"/v1/models/{name}:predict", by_ids))
        infer = {"parameters": {"signature_name": "token_ids"}, "inputs": _tensors(ids)}
        found.append((f"/v2/models/{name}/infer", infer))
    texts = ["ann has the cat .", "bob"]
    embed = {"model": "text_embedding", "input": texts, "encoding_format": "base64"}
    found.append(("/v1/embeddings", embed | {"dimensions": 8}))
    found.append(("/v1/embeddings", {"model": "text_embedding", "input": texts[0]}))
    return found


def _row_of_signature(name: str, item: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a raw input by the names of the inputs of its export's signature."""
    if name == "fill_mask":
        return {"texts": item["text"]}
    if name == "relation_extraction":
        return {"subject_type": "", "object_type": "", **item}
    return item


def _tensors(rows: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns rows as tensors of the Open Inference Protocol."""
    tensors = []
    for key in rows[0]:
        data = [row[key] for row in rows]
        datatype = "BYTES" if isinstance(data[0], str) else "INT32"
        shape = [*np.shape(data)]
        tensors.append({"name": key, "shape": shape, "datatype": datatype, "data": data})
    return tensors


def damaged_requests(
    valid: list[tuple[str, dict]], source: random.Random, count: int
) -> Iterator[Sent]:
    """Makes requests of which most are wrong.

    Args:
        valid: right requests.
        source: where what is damaged comes from.
        count: how many.
    """
    for _ in range(count):
        path, content = source.choice(valid)
        body = source.choice(_DAMAGES)(content, source)
        headers = {"Content-Type": source.choice(_CONTENT_TYPES)}
        method = "POST"
        kind = source.random()
        if kind < 0.03:
            method = source.choice(["GET", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "X"])
        elif kind < 0.06:
            path = _damaged_path(path, source)
        elif kind < 0.08:
            headers[source.choice(["Content-Encoding", "Expect", "X-A"])] = source.choice(
                ["gzip", "100-continue", "\u00e9", "a" * 4_000]
            )
        yield Sent(method, path, headers, body, is_chunked=source.random() < 0.2)


_CONTENT_TYPES = ("application/json", "text/plain", "multipart/form-data; boundary=x", "", "a/b;;")


def _damaged_path(path: str, source: random.Random) -> str:
    other = source.choice(["%00", "%2F..%2F", "%ff", "//", ":", "/", "%F0%9F", "versions/", "?a=%"])
    place = source.randrange(1, len(path))
    return path[:place] + other + path[place + source.randrange(3) :]


def _encoded(content: Any) -> bytes:
    return json.dumps(content, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _other_texts(content: Any, source: random.Random) -> bytes:
    """Puts other texts into the places of texts, which most often reach the model."""
    whole = {"": copy.deepcopy(content)}
    for holder, key in list(_places(whole)):
        if key in ("text", "question", "context", "input", 0) and isinstance(holder[key], str):
            holder[key] = source.choice(_TEXTS)
    return json.dumps(whole[""]).encode()


def _as_it_is(content: Any, source: random.Random) -> bytes:
    return _encoded(content)


def _other_values(content: Any, source: random.Random) -> bytes:
    """Puts other values into places of the JSON."""
    whole = {"": copy.deepcopy(content)}
    for _ in range(source.randrange(1, 4)):
        places = list(_places(whole))
        holder, key = source.choice(places)
        action = source.random()
        if action < 0.15 and isinstance(holder, dict):
            holder[source.choice(["", "text", "inputs", "b64", "\x00", "name"])] = holder[key]
        elif action < 0.3 and holder is not whole:
            del holder[key]
        elif action < 0.45:
            holder[key] = [holder[key]] * source.randrange(4)
        else:
            holder[key] = _any_value(source, 3)
    return json.dumps(whole[""]).encode()  # lone surrogates are escaped: \ud800


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Lists all (object or list, key or index) of a JSON value."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield value, key
            yield from _places(item)


def _any_value(source: random.Random, depth: int) -> Any:
    kind = source.randrange(6 if depth else 3)
    if kind == 0:
        return source.choice(_TEXTS)
    if kind in (1, 2):
        return source.choice(_NUMBERS)
    if kind == 3:
        return {"b64": source.choice(["", "YW5u", "?", "/w==", "gICA", 3])}
    size = source.randrange(4)
    if kind == 4:
        return [_any_value(source, depth - 1) for _ in range(size)]
    names = source.choices([*_ROW, "text", "name", "shape", "data", "model", ""], k=size)
    return {name: _any_value(source, depth - 1) for name in names}


def _any_json(content: Any, source: random.Random) -> bytes:
    return json.dumps(_any_value(source, 4)).encode()


def _other_literals(content: Any, source: random.Random) -> bytes:
    """Puts what is no JSON, or a number beyond all types, in place of a value."""
    return _with_literal(content, source, lambda: source.choice(_LITERALS))


def _with_literal(content: Any, source: random.Random, draw: Callable[[], str]) -> bytes:
    """Puts a text that is drawn into the JSON in place of a value."""
    whole = {"": copy.deepcopy(content)}
    holder, key = source.choice(list(_places(whole)))
    holder[key] = "\x01HERE"
    return json.dumps(whole[""]).replace('"\\u0001HERE"', draw()).encode()


def _deep(content: Any, source: random.Random) -> bytes:
    depth = source.choice([10, 300, 900, 1_100, 20_000])
    opened, closed = source.choice([("[", "]"), ('{"a":', "}")])
    inner = opened * depth + "3" + closed * source.choice([0, depth, depth])
    return _with_literal(content, source, lambda: inner)


def _damaged_bytes(content: Any, source: random.Random) -> bytes:
    body = bytearray(_encoded(content))
    for _ in range(source.randrange(1, 6)):
        place = source.randrange(len(body) + 1)
        end = min(place + source.randrange(1, 12), len(body))
        action = source.randrange(4)
        if action == 0:
            body[place:end] = source.randbytes(end - place)
        elif action == 1:
            del body[place:end]
        elif action == 2:
            body[place:place] = body[place:end]
        else:
            body[place:place] = source.choice([b"\x00", b"\xff", b'"', b"\\", b"}", b"[", b"\xef"])
    return bytes(body)


def _truncated(content: Any, source: random.Random) -> bytes:
    body = _encoded(content)
    return body[: source.randrange(len(body))]


_DAMAGES = (
    _as_it_is, _other_texts, _other_texts, _other_values, _other_values, _other_values, _any_json,
    _other_literals, _deep, _damaged_bytes, _damaged_bytes, _truncated,
)  # fmt: skip


def fault_of(sent: Sent, status: int, content_type: str, body: bytes) -> str | None:
    """Says what is wrong with an answer; `None` if nothing is."""
    if not (200 <= status < 300 or 400 <= status < 500):
        return f"status {status}"
    if sent.method == "HEAD":
        return None
    if 200 <= status < 300 and sent.method != "POST":
        return None
    if content_type != "application/json":
        return f"status {status} of type {content_type!r}"
    try:
        content = json.loads(body, parse_constant=_no_json)
    except ValueError:
        return f"status {status} with no JSON: {body[:80]!r}"
    if status < 300:
        return "an answer that is an error" if _is_error(content) else None
    error = content.get("error") if isinstance(content, dict) else None
    if sent.path == "/v1/embeddings":
        error = error.get("message") if isinstance(error, dict) else None
    return None if isinstance(error, str) and error else f"status {status} without an error"


def _is_error(content: Any) -> bool:
    return isinstance(content, dict) and "error" in content


def _no_json(name: str) -> None:
    raise ValueError(name)


def _ask(address: tuple[str, int], sent: Sent, seconds: float = SECONDS) -> tuple[str, str | None]:
    """Sends a request on a connection of its own; returns what came and what is wrong with it."""
    try:
        with socket.create_connection(address, seconds) as connection:
            connection.sendall(sent.to_bytes())
            answer = b""
            while part := connection.recv(1 << 20):
                answer += part
    except OSError as error:
        return type(error).__name__, f"{type(error).__name__}: {error}"
    while answer.startswith(b"HTTP/1.1 100"):
        _, _, answer = answer.partition(b"\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    status = int(lines[0].split(" ")[1]) if lines[0].startswith("HTTP/1.1 ") else 0
    fields = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
    return str(status), fault_of(sent, status, fields.get("content-type", ""), body)


def _write_exports(directory: pathlib.Path) -> tuple[list[str], dict[str, Mapping[str, Any]]]:
    """Exports a tiny model of each task; returns the directories, and inputs by their names."""
    from tiny_models import ALL_INPUTS, export_tiny_model  # of tests/support

    names = sorted(ALL_INPUTS)
    for name in names:
        export_tiny_model(name, directory)
    return [str(directory / name) for name in names], {name: ALL_INPUTS[name] for name in names}


def _memory(process_id: int) -> int:
    import psutil

    return psutil.Process(process_id).memory_info().rss


@click.command(help=__doc__.splitlines()[0])
@click.option("--requests", default=10_000, show_default=True)
@click.option("--seed", default=0, show_default=True)
def main(requests: int, seed: int) -> None:
    """Runs the server, asks it, and prints a table."""
    with tempfile.TemporaryDirectory() as name:
        paths, tasks = _write_exports(pathlib.Path(name))
        with served(paths) as (server, address):
            _fuzz(server, address, tasks, requests, seed)


@contextlib.contextmanager
def served(paths: Sequence[str]) -> Iterator[tuple[subprocess.Popen, tuple[str, int]]]:
    """Runs the server of some models, and prints how it ended.

    Yields:
        The process, and the address that it listens on.
    """
    command = [sys.executable, "-m", "spanbert_tf.cli", "serve", *paths, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            yield server, _address(server)
        finally:
            server.terminate()
            rest = server.stdout.read() if server.stdout else ""
    print(f"the server ended with {server.wait()}; it printed: {rest.strip()[-300:]}")


def _fuzz(
    server: subprocess.Popen, address: tuple[str, int], tasks: dict, count: int, seed: int
) -> None:
    right = _ask_all(address, tasks)
    print(f"right requests: {right}", flush=True)
    if set(right) != {"200"}:
        raise SystemExit("a right request was refused")
    sent = list(damaged_requests(valid_requests(tasks), random.Random(seed), count))
    statuses: collections.Counter = collections.Counter()
    faults: list[str] = []
    memory = []
    with concurrent.futures.ThreadPoolExecutor(_CLIENTS) as pool:
        for start in range(0, count, max(count // 10, 1)):
            part = sent[start : start + max(count // 10, 1)]
            found = pool.map(lambda one: _ask(address, one), part)
            for one, (status, fault) in zip(part, found, strict=True):
                statuses[status] += 1
                if fault is not None:
                    faults.append(fault)
                    print(f"{fault}: {one.method} {one.path} {one.body[:300]!r}", flush=True)
            memory.append(_memory(server.pid) / 2**20)
            print(f"{start + len(part):,} requests, {memory[-1]:,.0f} MiB", flush=True)
    print(f"statuses: {dict(sorted(statuses.items()))}; wrong answers: {len(faults)}")
    print(f"memory after each tenth, MiB: {', '.join(f'{value:,.0f}' for value in memory)}")
    print(f"right requests afterwards: {_ask_all(address, tasks)}")


def _ask_all(address: tuple[str, int], tasks: dict) -> dict[str, int]:
    """Sends each right request; the first one waits until TensorFlow has optimized a graph."""
    statuses: collections.Counter = collections.Counter()
    for path, content in valid_requests(tasks):
        sent = Sent("POST", path, {}, _encoded(content), is_chunked=False)
        status, _ = _ask(address, sent, seconds=300)
        statuses[status] += 1
    return dict(statuses)


def _address(server: subprocess.Popen) -> tuple[str, int]:
    assert server.stdout is not None
    for line in server.stdout:
        if line.startswith("http://"):
            return "127.0.0.1", int(line.strip().rstrip("/").rsplit(":", 1)[1])
    raise SystemExit(f"the server ended with {server.wait()}")


if __name__ == "__main__":
    main()
