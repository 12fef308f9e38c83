"""CoNLL files to records, beside the way of the original `minimize.py`.

    python -m benchmarks.coreference_reading --input train.english.v4_gold_conll.gz \
      --vocabulary vocab.txt --lowercase

Both sides read the file, tokenize words by BERT's rules, cut segments, and write pieces, maps,
speakers and clusters; how many documents are the same on both sides is told. Each is timed with the
whole file and with its first document alone, which is nearly all start: the vocabulary, a
tokenizer, what is built at first. The rate is that of the documents after the first. Goal: 5 times.
"""

import collections
import functools
import itertools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable

import click

from benchmarks.machine import describe_machine
from benchmarks.minimize_peer import minimize
from spanbert_tf.command_line import case_options
from spanbert_tf.text.vocabulary import TextRules

_END = "#end document\n"


@click.command()
@click.option("--input", "path", required=True, type=click.Path(exists=True), help="CoNLL-2012.")
@click.option("--vocabulary", required=True, type=click.Path(exists=True))
@click.option("--sequence-length", default=384, show_default=True, help="Of a segment.")
@click.option("--rounds", default=5, show_default=True)
@case_options
def main(
    path: str,
    vocabulary: str,
    sequence_length: int,
    rounds: int,
    lowercase: bool,
    strip_accents: bool | None,
) -> None:
    print(describe_machine())
    show_reading(path, vocabulary, TextRules.of(lowercase, strip_accents), sequence_length, rounds)


def show_reading(
    path: str, vocabulary: str, text_rules: TextRules, sequence_length: int, rounds: int
) -> None:
    """CoNLL to records, here and word by word in Python, in CPU seconds of alternating rounds."""
    from spanbert_tf.files.text_files import read_text_file

    text = read_text_file(path)
    num_documents = text.count(f"\n{_END}")
    with tempfile.TemporaryDirectory() as directory:
        first = os.path.join(directory, "first_conll")
        with open(first, "w", encoding="utf-8") as file:
            file.write(text[: text.index(_END) + len(_END)])
        calls = [
            functools.partial(write, source, directory, vocabulary, text_rules, sequence_length)
            for source in (first, path)  # the whole file last, for the comparison
            for write in (write_ours, write_theirs)
        ]
        our_start, their_start, ours, theirs = _medians(calls, rounds)
        num_equal = _num_equal(directory, vocabulary)
    print(f"CoNLL to records, {num_documents} documents, median CPU seconds of {rounds} rounds:")
    print(f"  {num_equal} documents have the same positions, maps and clusters on both sides")
    print(
        f"  whole file: {ours:.2f} s, the way of minimize.py {theirs:.2f} s, {_ratio(theirs, ours)}"
    )
    print(f"  first document alone: {our_start:.2f} s, there {their_start:.2f} s")
    rate, their_rate = (
        (num_documents - 1) / (whole - start)
        for whole, start in ((ours, our_start), (theirs, their_start))
    )
    print(
        f"  after the first: {rate:.0f} documents a second, there {their_rate:.0f}, "
        f"{_ratio(rate, their_rate)} (goal: at least 5)"
    )


def write_ours(
    path: str, directory: str, vocabulary: str, text_rules: TextRules, sequence_length: int
) -> None:
    """Writes `records` into the directory."""
    from spanbert_tf.tasks.coreference.files import read_documents
    from spanbert_tf.tasks.coreference.rows import write_documents

    write_documents(
        read_documents([path]),
        os.path.join(directory, "records"),
        vocabulary=vocabulary,
        **text_rules._asdict(),
        sequence_length=sequence_length,
        max_span_width=30,
        overwrite=True,
    )


def write_theirs(
    path: str, directory: str, vocabulary: str, text_rules: TextRules, sequence_length: int
) -> None:
    """Writes `documents.jsonlines` into the directory."""
    from official.nlp.tools.tokenization import FullTokenizer

    from spanbert_tf.files.text_files import read_text_file

    tokenizer = FullTokenizer(vocabulary, do_lower_case=text_rules.lowercase)
    with open(os.path.join(directory, "documents.jsonlines"), "w", encoding="utf-8") as file:
        for line in minimize(read_text_file(path), tokenizer, sequence_length):
            file.write(line + "\n")


def _medians(calls: list[Callable[[], None]], rounds: int) -> list[float]:
    """Median CPU seconds of each call, one after the other in each round."""
    seconds = []
    for _ in range(rounds + 1):
        of_round = []
        for call in calls:
            start = time.process_time()
            call()
            of_round.append(time.process_time() - start)
        seconds.append(of_round)
    del seconds[0]  # imports
    return [statistics.median(column) for column in zip(*seconds, strict=True)]


def _ratio(larger: float, smaller: float) -> str:
    return f"{larger / smaller:.1f} times as fast"


def _num_equal(directory: str, vocabulary: str) -> int:
    """How many documents have the same positions, maps and clusters on both sides."""
    from spanbert_tf.tasks.lookup import task_dataset
    from spanbert_tf.text.vocabulary import load_vocabulary

    pieces = load_vocabulary(vocabulary)
    records = task_dataset(os.path.join(directory, "records"), batch_size=1, training=False)
    ours = {}
    for x, y in records.as_numpy_iterator():
        mask = x["padding_mask"][0] > 0  # [segments, positions]
        tokens = [pieces[token] for token in x["token_ids"][0][mask]]
        maps = [x[name][0][: len(tokens)].tolist() for name in ("sentence_indices", "word_indices")]
        names = ("mention_clusters", "mention_starts", "mention_ends")
        clusters = collections.defaultdict(set)
        for cluster, start, end in zip(*(y[name][0].tolist() for name in names), strict=True):
            clusters[cluster].add((start, end))
        clusters.pop(0, None)  # padding
        ours[x["row_index"][0]] = (tokens, *maps, set(map(frozenset, clusters.values())))
    count = 0
    with open(os.path.join(directory, "documents.jsonlines"), encoding="utf-8") as file:
        for number, document in enumerate(map(json.loads, file)):
            tokens = list(itertools.chain.from_iterable(document["sentences"]))
            clusters = {frozenset(map(tuple, spans)) for spans in document["clusters"]}
            theirs = (tokens, document["sentence_map"], document["subtoken_map"], clusters)
            count += ours[number] == theirs
    return count


if __name__ == "__main__":
    main()
