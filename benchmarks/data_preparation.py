"""Megabytes of text a second of `prepare pretraining`, per process, beside two peers.

    python -m benchmarks.data_preparation [--input GLOB --vocabulary FILE]

Ours is the whole preparation, from compressed files to sorted shards with checksums. The peers:
HuggingFace's `encode_batch_fast`, which only makes the word pieces, on one thread, and Model
Garden's `create_pretraining_data`, both on a sample of the same text. Everything that is measured
with one process is bound to one core and shown by processor time too, which other programs on the
machine disturb less; two processes are bound to two cores, which should have nothing else to do.

Start-up apart: the time of the same call on a tiny input is taken off. Rounds are interleaved, the
table shows medians of the rounds. Without --input, text that comes with Python is used.
"""

import concurrent.futures
import contextlib
import functools
import io
import itertools
import multiprocessing
import os
import pydoc_data.topics
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import click

from benchmarks.machine import describe_machine
from data_prep.text.corpus import DocumentReader
from data_prep.text.storage import find_files

ROUNDS = 3
LARGE_BYTES = 60_000_000  # of text; smaller inputs are taken several times
TINY_BYTES = 20_000
ENCODING_BYTES = 8_000_000
MODEL_GARDEN_BYTES = 800_000
_FILES = 16
_PYTHON_VOCABULARY_SIZE = 8_000

Paragraphs = list[str]


class Cost(NamedTuple):
    """What was done, and in which time."""

    num_bytes: int
    seconds: float
    processor_seconds: float  # of the process itself, not of those that it starts

    def beyond(self, other: "Cost") -> "Cost":
        """What this took more than the other."""
        return Cost(*(mine - its for mine, its in zip(self, other, strict=True)))


@click.command()
@click.option("--input", "input_pattern", metavar="GLOB")
@click.option("--vocabulary", metavar="FILE", help="Default: one trained on the input.")
def main(input_pattern: str | None, vocabulary: str | None) -> None:
    with tempfile.TemporaryDirectory() as directory:
        if input_pattern is None:
            input_pattern = os.path.join(directory, "topics.txt")
            with open(input_pattern, "w", encoding="utf-8") as file:
                file.write("\n\n".join(pydoc_data.topics.topics.values()))
        if vocabulary is None:
            from data_prep.text.vocabulary import write_vocabulary

            vocabulary = os.path.join(directory, "vocab.txt")
            write_vocabulary(input_pattern, vocabulary, vocabulary_size=_PYTHON_VOCABULARY_SIZE)
        print(describe_machine())
        documents = list(read_documents(input_pattern))
        _compare(documents, vocabulary, directory)


def read_documents(pattern: str) -> Iterator[Paragraphs]:
    """The documents of all files of a pattern."""
    for file in find_files(pattern):
        paragraphs: Paragraphs = []
        for part in DocumentReader(file.path):
            paragraphs += part.paragraphs
            if part.ends_document:
                yield paragraphs
                paragraphs = []


def _compare(documents: list[Paragraphs], vocabulary: str, directory: str) -> None:
    large = write_corpus(documents, LARGE_BYTES, os.path.join(directory, "large"))
    tiny = write_corpus(documents, TINY_BYTES, os.path.join(directory, "tiny"))
    sample = list(_take(documents, ENCODING_BYTES))
    piece = list(_take(documents, MODEL_GARDEN_BYTES))
    costs: dict[str, list[Cost]] = {}
    with _bound_to(1) as one_core, _bound_to(2) as two_cores:
        for _ in range(ROUNDS + 1):  # the first one warms up
            for name, submit, function, text, more in (
                ("prepare, 1 process", one_core, _prepare, (large, tiny), (1,)),
                ("prepare, 2 processes", two_cores, _prepare, (large, tiny), (2,)),
                ("HuggingFace encode_batch_fast", one_core, _encode, sample, ()),
                ("Model Garden create_pretraining_data", one_core, _model_garden, piece, ()),
            ):
                cost = submit(function, text, vocabulary, *more).result()
                costs.setdefault(name, []).append(cost)
    _print_table({name: values[1:] for name, values in costs.items()})


def _print_table(costs: dict[str, list[Cost]]) -> None:
    rates, processor_rates = (
        {
            name: statistics.median(cost.num_bytes / 1e6 / cost[kind] for cost in values)
            for name, values in costs.items()
        }
        for kind in (1, 2)
    )
    one, two = (f"prepare, {number} process{'es' * (number > 1)}" for number in (1, 2))
    print(f"{'':40}{'MB/s':>8}{'MB/s of processor time':>25}{'one process / it':>20}")
    for name, rate in rates.items():
        print(f"{name:40}{rate:8.2f}", end="")
        if name != two:
            ratio = processor_rates[one] / processor_rates[name]
            print(f"{processor_rates[name]:25.2f}{ratio:20.2f}", end="")
        print()
    print(f"two processes give {rates[two] / rates[one]:.2f} x")


def _take(documents: list[Paragraphs], num_bytes: int) -> Iterator[Paragraphs]:
    """Documents of about that many bytes, in random order, long ones cut off, all if need be twice.

    No document is more than a sixteenth of the whole, so that two processes can share the work.
    """
    order = random.Random(1).sample(documents, len(documents))
    for document in itertools.cycle(order):
        paragraphs: Paragraphs = []
        room = min(num_bytes, -(-num_bytes // _FILES))
        for paragraph in document:
            if room <= 0:
                break
            paragraphs.append(paragraph)
            size = len(paragraph.encode())
            room, num_bytes = room - size, num_bytes - size
        if paragraphs:
            yield paragraphs
        if num_bytes <= 0:
            return


def write_corpus(documents: list[Paragraphs], num_bytes: int, directory: str) -> str:
    """Writes files of WikiExtractor's text of about equal sizes; returns their pattern."""
    os.makedirs(directory)
    files = [io.StringIO() for _ in range(_FILES)]
    for number, paragraphs in enumerate(_take(documents, num_bytes)):
        smallest = min(files, key=io.StringIO.tell)
        text = "\n\n".join(paragraphs).replace("<", "&lt;")
        smallest.write(f'<doc id="{number}" url="" title="T">\nT\n\n{text}\n\n</doc>\n')
    for number, file in enumerate(files):
        if file.getvalue():
            path = os.path.join(directory, f"wiki_{number:02}")
            with open(path, "w", encoding="utf-8") as output:
                output.write(file.getvalue())
    return os.path.join(directory, "wiki_*")


@contextlib.contextmanager
def _bound_to(num_cores: int) -> Iterator[Callable[..., concurrent.futures.Future]]:
    """A process that may use so many cores, and stays, so that its start-up is not measured."""
    cores = sorted(os.sched_getaffinity(0))[:num_cores]
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, context, _bind, (cores,)) as executor:
        yield executor.submit


def _bind(cores: list[int]) -> None:
    os.sched_setaffinity(0, cores)
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "TOKENIZERS_PARALLELISM": "false"}


def _measure(function: Callable[[], object], num_bytes: int) -> Cost:
    start, processor_start = time.perf_counter(), time.process_time()
    function()
    return Cost(num_bytes, time.perf_counter() - start, time.process_time() - processor_start)


def _prepare(patterns: tuple[str, str], vocabulary: str, num_processes: int) -> Cost:
    """What the large input takes beyond the tiny one."""
    large, tiny = (_prepare_one(pattern, vocabulary, num_processes) for pattern in patterns)
    return large.beyond(tiny)


def _prepare_one(pattern: str, vocabulary: str, num_processes: int) -> Cost:
    from data_prep.beam.writing import write_pretraining_records

    num_bytes = _num_bytes(list(read_documents(pattern)))
    with tempfile.TemporaryDirectory() as directory, contextlib.redirect_stdout(io.StringIO()):
        prepare = functools.partial(
            write_pretraining_records,
            pattern,
            vocabulary=vocabulary,
            output=os.path.join(directory, "records"),
            num_processes=num_processes,
            num_shards=4,
        )
        return _measure(prepare, num_bytes)


def _encode(documents: list[Paragraphs], vocabulary: str) -> Cost:
    """A call for each document."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    from spanbert_tf.text.vocabulary import load_vocabulary

    ids = {piece: number for number, piece in enumerate(load_vocabulary(vocabulary))}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()

    def encode() -> None:
        for document in documents:
            tokenizer.encode_batch_fast(document, add_special_tokens=False)

    return _measure(encode, _num_bytes(documents))


def _model_garden(documents: list[Paragraphs], vocabulary: str) -> Cost:
    """One copy (dupe_factor 1) of sequences of 512."""
    from official.nlp.data import create_pretraining_data

    from data_prep.text.corpus import split_sentences

    texts = ["\n".join(split_sentences(document, "en")[0]) for document in documents]
    with tempfile.TemporaryDirectory() as directory:
        sentences = os.path.join(directory, "sentences.txt")
        with open(sentences, "w", encoding="utf-8") as file:
            file.write("\n\n".join(texts))
        create_pretraining_data.FLAGS(
            [
                "create_pretraining_data",
                f"--input_file={sentences}",
                f"--output_file={os.path.join(directory, 'records')}",
                f"--vocab_file={vocabulary}",
                "--do_lower_case=false",
                "--max_seq_length=512",
                "--max_predictions_per_seq=77",
                "--dupe_factor=1",
            ]
        )
        return _measure(functools.partial(create_pretraining_data.main, []), _num_bytes(documents))


def _num_bytes(documents: list[Paragraphs]) -> int:
    return sum(len(paragraph.encode()) for document in documents for paragraph in document)


if __name__ == "__main__":
    main()
