"""`prepare pretraining` on one corpus in each format, beside `datasets` with `tokenizers`.

    python -m benchmarks.prepare_formats --input 'corpus/*.gz' --vocabulary vocab.txt

The articles are written as WikiExtractor's text, JSON lines, CSV and Parquet, plain and in zstd.
All records must have the same token ids. Times are those beyond a tiny input, on one core; rounds
are interleaved, and the table shows medians. The peer reads the same file, makes word pieces on
one thread and writes blocks of 512 to an Arrow file; it has no reader of WikiExtractor's text.

Then one file of JSON lines, one of CSV and one of Parquet, `--one-file` MB of repeated articles,
are read by 1 and 2 processes. For JSON lines, the command is also killed after half of its
processor time, which other work on the machine disturbs less than the clock, and `--kills` times at
random.
`datasets` may lie in a folder that PYTHONPATH names.
"""

import collections
import contextlib
import csv
import hashlib
import html
import itertools
import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import TextIO

import click
import psutil

from benchmarks.data_preparation import read_documents
from benchmarks.machine import describe_machine

_FORMATS = ("wikipedia", "jsonl", "csv", "parquet")
_NUM_TINY = 3  # documents
# Runs a command and prints its seconds, its processor seconds and those of its processes, and its
# peak memory in MB.
_MEASURED = """
import resource, subprocess, sys, time
start = time.perf_counter()
done = subprocess.run(sys.argv[1:], capture_output=True, text=True)
seconds = time.perf_counter() - start
if done.returncode:
    sys.exit(done.stderr[-3000:])
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)
"""
_PEER = """
import itertools, os, sys
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_DATASETS_OFFLINE"] = "1"
import datasets
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
kind, path, vocabulary, folder = sys.argv[1:]
with open(vocabulary, encoding="utf-8") as file:
    ids = {line.rstrip("\\n"): number for number, line in enumerate(file)}
tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
def encode(rows):
    texts = [text or "" for text in rows["text"]]  # an empty cell of CSV is read as a null
    found = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    return {"token_ids": [each.ids for each in found]}
def cut(rows):
    joined = list(itertools.chain.from_iterable(rows["token_ids"]))
    return {"token_ids": [joined[start : start + 510] for start in range(0, len(joined), 510)]}
data = datasets.load_dataset(kind, data_files=path, split="train", cache_dir=folder)
data = data.map(encode, batched=True, remove_columns=data.column_names)
data.map(cut, batched=True).save_to_disk(os.path.join(folder, "records"))
"""


@click.command()
@click.option("--input", "pattern", required=True, metavar="GLOB")
@click.option("--vocabulary", required=True, type=click.Path(exists=True))
@click.option("--megabytes", default=80, show_default=True, help="Of articles, in each format.")
@click.option("--rounds", default=3, show_default=True)
@click.option("--one-file", default=1000, show_default=True, help="MB of the shared file; 0: none.")
@click.option("--kills", default=20, show_default=True)
def main(
    pattern: str, vocabulary: str, megabytes: int, rounds: int, one_file: int, kills: int
) -> None:
    print(describe_machine())
    vocabulary = os.path.abspath(vocabulary)
    documents = [
        {"title": f"Title {number}", "text": html.escape("\n".join(paragraphs), quote=False)}
        for number, paragraphs in enumerate(read_documents(pattern))
    ]
    with tempfile.TemporaryDirectory() as folder:
        if rounds:
            _compare_formats(pathlib.Path(folder), documents, vocabulary, megabytes, rounds)
        if one_file:
            for kind in ("jsonl", "csv", "parquet"):
                path = os.path.join(folder, f"one.{kind}")
                size = _write(path, _repeated(documents, one_file * 10**6))
                _share(path, vocabulary, size, kills if kind == "jsonl" else 0)


def _repeated(documents: list[dict], num_bytes: int) -> Iterator[dict]:
    """The documents, again and again, up to so many bytes of text."""
    for document in itertools.cycle(documents):
        yield document
        num_bytes -= len(document["text"].encode())
        if num_bytes <= 0:
            return


def _write(path: str, documents: Iterator[dict] | list[dict]) -> int:
    """Writes a file in the format that its name says; returns the bytes of its texts."""
    import zstandard

    documents = list(documents)
    is_packed = path.endswith(".zst")
    kind = path.removesuffix(".zst").rpartition(".")[2]
    if kind == "parquet":
        import pyarrow
        import pyarrow.parquet

        table = pyarrow.Table.from_pylist(documents)
        codec = "zstd" if is_packed else "snappy"
        pyarrow.parquet.write_table(table, path, compression=codec, row_group_size=1024)
    else:
        plain = f"{path}.plain" if is_packed else path
        with open(plain, "w", encoding="utf-8", newline="") as file:
            _WRITERS[kind](file, documents)
        if is_packed:
            with open(plain, "rb") as source, open(path, "wb") as target:
                zstandard.ZstdCompressor().copy_stream(source, target)
            os.remove(plain)
    return sum(len(document["text"].encode()) for document in documents)


def _write_wikipedia(file: TextIO, documents: list[dict]) -> None:
    for number, document in enumerate(documents):
        title = document["title"]
        file.write(f'<doc id="{number}" url="" title="{title}">\n{title}\n\n')
        file.write(f"{document['text']}\n\n</doc>\n")


def _write_json_lines(file: TextIO, documents: list[dict]) -> None:
    for document in documents:
        file.write(json.dumps(document, ensure_ascii=False) + "\n")


def _write_csv(file: TextIO, documents: list[dict]) -> None:
    writer = csv.DictWriter(file, ["title", "text"])
    writer.writeheader()
    writer.writerows(documents)


_WRITERS = {"wikipedia": _write_wikipedia, "jsonl": _write_json_lines, "csv": _write_csv}


def _compare_formats(
    folder: pathlib.Path, documents: list[dict], vocabulary: str, megabytes: int, rounds: int
) -> None:
    large = list(_repeated(documents, megabytes * 10**6))
    commands: dict[str, Callable[[str], list[str]]] = {}
    for kind in _FORMATS:
        for ending in ("", ".zst"):
            for size, chosen in (("large", large), ("tiny", large[:_NUM_TINY])):
                num_bytes = _write(f"{folder}/{size}.{kind}{ending}", chosen)
                if size == "large":
                    num_large = num_bytes
            path = f"{folder}/{{size}}.{kind}{ending}"
            commands[f"{kind}{ending}"] = _ours(path, vocabulary, f"{folder}/{kind}{ending}")
            if kind != "wikipedia":
                commands[f"datasets {kind}{ending}"] = _peers(
                    kind.replace("jsonl", "json"), path, vocabulary, str(folder)
                )
    rates: dict[str, list[tuple[float, float]]] = collections.defaultdict(list)
    for number in range(rounds):
        names = list(commands)
        random.Random(number).shuffle(names)
        for name in names:
            tiny = _measure(commands[name]("tiny"))
            found = _measure(commands[name]("large"))
            used = [more - less for more, less in zip(found[:2], tiny[:2], strict=True)]
            rates[name].append((num_large / 1e6 / used[0], num_large / 1e6 / used[1]))
    print(f"{num_large / 1e6:.1f} MB of text, {rounds} rounds; MB/s, and of processor time")
    for name in commands:
        wall, processor = (statistics.median(column) for column in zip(*rates[name], strict=True))
        line = f"{name:24}{wall:8.2f}{processor:8.2f}"
        peer = rates.get(f"datasets {name}")
        if peer:
            ratio = processor / statistics.median(rate for _, rate in peer)
            line += f"   {ratio:.2f} x datasets (processor time)"
        print(line)
    contents = {name: _token_ids(f"{folder}/{name}/large") for name in commands if " " not in name}
    print("the same multiset of token ids:", len(set(contents.values())) == 1)


def _ours(path: str, vocabulary: str, output: str) -> Callable[[str], list[str]]:
    os.makedirs(output)

    def command(size: str) -> list[str]:
        return _prepare(path.format(size=size), vocabulary, f"{output}/{size}", "--overwrite")

    return command


def _prepare(path: str, vocabulary: str, output: str, *others: str) -> list[str]:
    words = [sys.executable, "-m", "spanbert_tf.cli", "prepare", "pretraining", "--input", path]
    return [*words, "--vocabulary", vocabulary, "--output", output, *others]


def _peers(kind: str, path: str, vocabulary: str, folder: str) -> Callable[[str], list[str]]:
    def command(size: str) -> list[str]:
        cache = tempfile.mkdtemp(dir=folder)
        named = path.format(size=size)
        if kind == "parquet" and named.endswith(".zst"):  # it knows the codec, and not the name
            link = os.path.join(cache, "zstd.parquet")
            os.symlink(named, link)
            named = link
        return [sys.executable, "-c", _PEER, kind, named, vocabulary, cache]

    return command


def _measure(words: list[str], num_cores: int = 1) -> tuple[float, float, float]:
    """Seconds, processor seconds and MB of memory of a command that is bound to some cores."""
    cores = sorted(os.sched_getaffinity(0))[:num_cores]
    os.sync()
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED, *words],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    seconds, processor_seconds, megabytes = map(float, done.stdout.split())
    return seconds, processor_seconds, megabytes


def _token_ids(directory: str) -> str:
    """A hash of the multiset of the records' token ids."""
    import tensorflow as tf

    found = []
    for path in sorted(pathlib.Path(directory).glob("*.tfrecord")):
        for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
            example = tf.train.Example.FromString(record)
            value = example.features.feature["token_ids"].SerializeToString()
            found.append(hashlib.sha256(value).digest())
    return hashlib.sha256(b"".join(sorted(found))).hexdigest()


def _share(path: str, vocabulary: str, num_bytes: int, kills: int) -> None:
    """Reads one file with 1 and 2 processes, and is killed."""
    print(f"{os.path.basename(path)}: {num_bytes / 1e6:,.0f} MB of text")
    found = {}
    whole = {}
    for number in (1, 2):
        output = f"{path}-{number}"
        words = _prepare(path, vocabulary, output, f"--num-processes={number}")
        found[number] = _measure(words, number)
        whole[number] = _bytes_of(output)
        seconds, processor_seconds, megabytes = found[number]
        print(
            f"  {number} process(es): {seconds:.1f} s, processor time {processor_seconds:.1f} s, "
            f"peak memory of the largest process {megabytes:.0f} MB"
        )
    ratio = found[1][0] / found[2][0]
    possible = 2 * found[1][1] / found[2][1]  # if no process waits
    print(
        f"  ratio {ratio:.2f}, by processor time {possible:.2f}; same bytes: {whole[1] == whole[2]}"
    )
    if not kills:
        return
    output = f"{path}-killed"
    words = _prepare(path, vocabulary, output, "--num-processes=2")
    used = _kill_after_work(words, found[2][1] / 2)
    seconds, processor_seconds, _ = _measure(words, 2)
    print(
        f"  killed after {used:.1f} s of processor time: the second start takes "
        f"{processor_seconds:.1f} s, {processor_seconds / found[2][1]:.0%} of the whole ("
        f"{seconds / found[2][0]:.0%} by the clock), same bytes: {_bytes_of(output) == whole[1]}"
    )
    source = random.Random(1)
    output = f"{path}-kills"
    words = _prepare(path, vocabulary, output, "--num-processes=2")
    done = 0
    while done < kills and not os.path.exists(output):
        _kill_after(words, source.uniform(0.1, 0.4) * found[2][0])
        done += 1
    _measure([*words, *["--overwrite"] * os.path.exists(output)], 2)
    print(f"  {done} kills at random, same bytes: {_bytes_of(output) == whole[1]}")


def _kill_after(words: list[str], seconds: float) -> None:
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    _kill(process)


def _kill_after_work(words: list[str], processor_seconds: float) -> float:
    """Kills a command when its processes have used so much time; returns what they had used."""
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    used = 0.0
    while used < processor_seconds and process.poll() is None:
        time.sleep(0.1)
        with contextlib.suppress(psutil.NoSuchProcess):
            first = psutil.Process(process.pid)
            times = [each.cpu_times() for each in [first, *first.children(recursive=True)]]
            used = sum(each.user + each.system for each in times)
    _kill(process)
    return used


def _kill(process: subprocess.Popen) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()
    time.sleep(1)  # its processes notice it


def _bytes_of(directory: str) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in pathlib.Path(directory).iterdir()
    }


if __name__ == "__main__":
    main()
