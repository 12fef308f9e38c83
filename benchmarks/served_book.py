"""A book through coreference by `/answer`: time, memory of the server, and others meanwhile.

    PYTHONPATH=tests/support python -m benchmarks.served_book --input TEXTS --vocabulary FILE

`spanbert-tf serve` runs in a process of its own with a resolver of random weights and a tiny text
classifier, which another client asks again and again. The peak of the memory is that since the row
before.
"""

import concurrent.futures
import glob
import http.client
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import click

from benchmarks.fuzzed_requests import served
from benchmarks.machine import describe_machine

_SMALL = {"model": "text_classification", "inputs": "ann has the cat ."}
_SHOWN = (0.1, 0.25, 0.5, 0.75, 1.0)  # parts of the book


@click.command(help=__doc__.splitlines()[0])
@click.option("--input", "pattern", required=True, help="Texts; a glob pattern.")
@click.option("--vocabulary", required=True, type=click.Path(exists=True, dir_okay=False))
@click.option("--words", default=200_000, show_default=True)
@click.option("--layers", default=2, show_default=True)
@click.option("--width", default=128, show_default=True)
@click.option("--tiny", is_flag=True, help="The resolver of the tests instead.")
def main(pattern: str, vocabulary: str, words: int, layers: int, width: int, tiny: bool) -> None:
    """Serves the models, sends the book and prints a table."""
    book = _book(pattern, words)
    print(describe_machine())
    print(f"{words:,} words, {len(book):,} characters")
    with (
        tempfile.TemporaryDirectory() as directory,
        concurrent.futures.ThreadPoolExecutor() as pool,
    ):
        root = pathlib.Path(directory)
        export = [vocabulary, str(layers), str(width)] if not tiny else []
        command = [sys.executable, "-c", _EXPORT, directory, *export]
        subprocess.run(command, check=True, capture_output=True)
        paths = [str(root / "coreference"), str(root / "text_classification")]
        with served(paths) as (server, (_, port)):
            alone = [_ask_small(port) for _ in range(200)]
            print(f"the server has {_memory(server.pid, 'VmRSS'):,} MiB; a small request alone")
            print(f"takes {_milliseconds(alone)}")
            is_over = threading.Event()
            times = pool.submit(_ask_often, port, is_over)
            _send(port, book, server.pid)
            is_over.set()
            print(f"a small request meanwhile takes {_milliseconds(times.result())}")


_EXPORT = """
import pathlib, sys
from tiny_models import export_tiny_model
from spanbert_tf import models
from spanbert_tf.tasks.prediction import export_preset
directory = pathlib.Path(sys.argv[1])
export_tiny_model("text_classification", directory)
if len(sys.argv) == 2:
    export_tiny_model("coreference", directory)
else:
    pieces = open(sys.argv[2], encoding="utf-8").read().splitlines()
    layers, width = int(sys.argv[3]), int(sys.argv[4])
    backbone = models.SpanBertBackbone(
        len(pieces), layers, max(width // 64, 1), width, 4 * width, max_sequence_length=512
    )
    tokenizer = models.SpanBertTokenizer(pieces, lowercase=False)
    preprocessor = models.SpanBertCoreferenceResolverPreprocessor(tokenizer, 384)
    model = models.SpanBertCoreferenceResolver(backbone, preprocessor=preprocessor)
    model.is_head_trained = True
    model.save_to_preset(str(directory / "preset"))
    export_preset(str(directory / "preset"), str(directory / "coreference"))
"""


def _book(pattern: str, num_words: int) -> str:
    """Returns texts one after the other, and again, until there are so many words."""
    import gzip

    texts = []
    for path in sorted(glob.glob(pattern)):
        with (gzip.open if path.endswith(".gz") else open)(path, "rt", encoding="utf-8") as file:
            texts.append(file.read())
    whole = "\n".join(texts)
    places = [match.end() for match in re.finditer(r"\S+", whole)]
    if not places:
        raise click.BadParameter(f"{pattern}: holds no words")
    times, rest = divmod(num_words, len(places))
    return "\n".join([*[whole] * times, whole[: places[rest - 1] if rest else 0]])


def _memory(pid: int, name: str) -> int:
    """Returns a row of the kernel's, in MiB."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(rf"^{name}:\s+(\d+)", status, re.M)[1]) // 2**10


def _ask_small(port: int) -> float:
    """Returns the seconds of a small request."""
    start = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("POST", "/answer", json.dumps(_SMALL))
    response = connection.getresponse()
    content = response.read()
    if response.status != 200:
        raise SystemExit(f"{response.status}: {content!r}")
    return time.perf_counter() - start


def _ask_often(port: int, is_over: threading.Event) -> list[float]:
    times = []
    while not is_over.wait(0.02):
        times.append(_ask_small(port))
    return times


def _milliseconds(times: list[float]) -> str:
    cuts = statistics.quantiles(times, n=100, method="inclusive")
    middle, late = (f"{1e3 * cuts[place]:.1f} ms" for place in (49, 98))
    return f"{middle} (p50), {late} (p99), {1e3 * max(times):.0f} ms at most; {len(times):,} asked"


def _send(port: int, book: str, pid: int) -> None:
    """Sends the book and prints a row at some parts of it."""
    print("| tokens | seconds | peak memory |\n| ---: | ---: | ---: |")
    refs = pathlib.Path(f"/proc/{pid}/clear_refs")
    refs.write_text("5")
    start = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port)
    headers = {"Accept": "application/x-ndjson"}
    body = json.dumps({"model": "coreference", "inputs": book})
    connection.request("POST", "/answer", body, headers)
    response = connection.getresponse()
    parts = list(_SHOWN)
    line: dict = {}
    for content in response:
        line = json.loads(content)
        if "of" in line and line["tokens"] >= parts[0] * line["of"]:
            parts.pop(0)
            seconds = time.perf_counter() - start
            print(f"| {line['tokens']:,} of {line['of']:,} | {seconds:.0f} | ", end="")
            print(f"{_memory(pid, 'VmHWM'):,} MiB |", flush=True)
            refs.write_text("5")
    if "error" in line:
        raise SystemExit(line["error"])
    seconds = time.perf_counter() - start
    print(f"| the answer: {len(line['clusters']):,} clusters | {seconds:.0f} | ", end="")
    print(f"{_memory(pid, 'VmHWM'):,} MiB |")


if __name__ == "__main__":
    main()
