"""Sentences of several splitters: agreement with NLTK's Punkt, and megabytes of text a second.

    python -m benchmarks.sentences --input 'novels/*.gz' [--every 5]

NLTK's Punkt has the parameters that this package ships. Precision and recall are those of the
places where sentences begin, but for the first of a paragraph. A word's index is the number of
sentences before its own in the paragraph, which SegaBERT embeds. The graph's rule is what exports
split with; with `sentence_starts` they take the sentences that Python found. BlingFire, nupunkt and
sentencex are compared where they are installed.

Rounds are interleaved; the table shows medians. Every round of a splitter begins with nothing
remembered, except `again`, which has split the same text before. All run in one process, TensorFlow
with as many threads as it takes.
"""

import bisect
import importlib.util
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import click
import numpy as np
import tensorflow as tf
from nltk.tokenize.punkt import PunktParameters, PunktSentenceTokenizer

from benchmarks.data_preparation import read_documents
from benchmarks.machine import describe_machine
from spanbert_tf.text.positions import find_sentences_in_graph, given_sentences
from spanbert_tf.text.sentences import PunktSplitter, sentence_splitter

ROUNDS = 3
_TEXTS_AT_ONCE = 256
_LANGUAGE = "en"
_PUNKT = "NLTK's Punkt"
_WORD = re.compile(r"\S+")
_TEXTS = tf.TensorSpec([None], tf.string)
_STARTS = tf.TensorSpec([None, None], tf.int32)

# The places where sentences begin in each paragraph, in any order; the first may be missing.
Places = list[list[int]]
Split = Callable[[Sequence[str]], Places]


class Splitter(NamedTuple):
    """A way to split paragraphs.

    Attributes:
        make: makes the function of a round; its time does not count.
        in_bytes: whether places are bytes of UTF-8 instead of characters.
    """

    make: Callable[[], Split]
    in_bytes: bool = False


class Agreement(NamedTuple):
    """How the sentences of a splitter agree with Punkt's."""

    precision: float
    recall: float
    moved_words: float  # share of the words that have another index


@click.command()
@click.option("--input", "patterns", required=True, multiple=True, metavar="GLOB")
@click.option("--every", default=1, show_default=True, help="Take every Nth paragraph.")
def main(patterns: tuple[str, ...], every: int) -> None:
    print(describe_machine(("tensorflow", "nltk")))
    for pattern in patterns:
        paragraphs = read_paragraphs(pattern)[::every]
        size = sum(len(paragraph.encode()) for paragraph in paragraphs) / 1e6
        print(f"\n{pattern}: {len(paragraphs):,} paragraphs, {size:.1f} MB")
        splitters = splitters_of(paragraphs)
        speeds = measure_speeds(splitters, paragraphs, size)
        expected = places_of(splitters[_PUNKT], paragraphs)
        print("| splitter | precision | recall | words with another index | MB/s |")
        print("| --- | --- | --- | --- | --- |")
        for name, splitter in splitters.items():
            found = compare(paragraphs, places_of(splitter, paragraphs), expected)
            print(
                f"| {name} | {found.precision:.4f} | {found.recall:.4f} | "
                f"{found.moved_words:.1%} | {speeds[name]:.1f} |"
            )


def read_paragraphs(pattern: str) -> list[str]:
    """The paragraphs of all files of a pattern, a line each."""
    paragraphs = []
    for document in read_documents(pattern):
        for paragraph in document:
            line = " ".join(paragraph.split())
            if line:
                paragraphs.append(line)
    return paragraphs


def splitters_of(paragraphs: Sequence[str]) -> dict[str, Splitter]:
    """All splitters by their names; what they need to be traced is traced with the paragraphs."""
    splitters = {
        "ours": Splitter(make_ours),
        "ours, again": Splitter(lambda: make_ours_again(paragraphs)),
        _PUNKT: Splitter(make_nltk),
        "the graph's rule": Splitter(make_graph, in_bytes=True),
        "the graph with `sentence_starts`": Splitter(make_graph_with_starts, in_bytes=True),
    }
    peers = {"blingfire": make_blingfire, "nupunkt": make_nupunkt, "sentencex": make_sentencex}
    for name, make in peers.items():
        if importlib.util.find_spec(name) is None:
            print(f"{name}: is not installed")
        else:
            splitters[name] = Splitter(make)
    return splitters


def make_ours() -> Split:
    english = sentence_splitter(_LANGUAGE)
    splitter = PunktSplitter(
        english.abbreviations,
        english.collocations,
        english.sentence_starters,
        english.orthographic_contexts,
    )
    return lambda paragraphs: [splitter.find_starts(paragraph) for paragraph in paragraphs]


def make_ours_again(paragraphs: Sequence[str]) -> Split:
    split = make_ours()
    split(paragraphs)
    return split


def make_nltk() -> Split:
    english = sentence_splitter(_LANGUAGE)
    parameters = PunktParameters()
    parameters.abbrev_types = set(english.abbreviations)
    parameters.collocations = set(english.collocations)
    parameters.sent_starters = set(english.sentence_starters)
    parameters.ortho_context.update(english.orthographic_contexts)
    punkt = PunktSentenceTokenizer(parameters)

    def split(paragraphs: Sequence[str]) -> Places:
        return [[start for start, _ in punkt.span_tokenize(text)] for text in paragraphs]

    return split


def make_graph() -> Split:
    find = tf.function(lambda texts: find_sentences_in_graph(texts, _LANGUAGE), [_TEXTS])
    find(tf.constant(["Warm. Up."]))

    def split(paragraphs: Sequence[str]) -> Places:
        places: Places = []
        for first in range(0, len(paragraphs), _TEXTS_AT_ONCE):
            places += find(tf.constant(paragraphs[first : first + _TEXTS_AT_ONCE])).to_list()
        return places

    return split


def make_graph_with_starts() -> Split:
    find_starts = make_ours()
    find = tf.function(
        lambda texts, starts: given_sentences(texts, starts, _LANGUAGE), [_TEXTS, _STARTS]
    )
    find(tf.constant(["Warm. Up."]), tf.constant([[0, 6]]))

    def split(paragraphs: Sequence[str]) -> Places:
        places: Places = []
        for first in range(0, len(paragraphs), _TEXTS_AT_ONCE):
            some = paragraphs[first : first + _TEXTS_AT_ONCE]
            starts = tf.keras.utils.pad_sequences(find_starts(some), padding="post", value=-1)
            places += find(tf.constant(some), tf.constant(starts)).to_list()
        return places

    return split


def make_blingfire() -> Split:
    import blingfire

    def split(paragraphs: Sequence[str]) -> Places:
        return [
            [start for start, _ in blingfire.text_to_sentences_and_offsets(paragraph)[1]]
            for paragraph in paragraphs
        ]

    return split


def make_nupunkt() -> Split:
    import nupunkt

    def split(paragraphs: Sequence[str]) -> Places:
        return [[start for start, _ in nupunkt.sent_spans(paragraph)] for paragraph in paragraphs]

    return split


def make_sentencex() -> Split:
    import sentencex

    def split(paragraphs: Sequence[str]) -> Places:
        places = []
        for paragraph in paragraphs:
            ends = np.cumsum([len(part) for part in sentencex.segment(_LANGUAGE, paragraph)])
            places.append([0, *ends.tolist()][:-1])
        return places

    return split


def measure_speeds(
    splitters: dict[str, Splitter], paragraphs: Sequence[str], size: float
) -> dict[str, float]:
    """Megabytes a second of each splitter."""
    seconds: dict[str, list[float]] = {name: [] for name in splitters}
    for number in range(ROUNDS):
        for name, splitter in splitters.items():
            print(f"round {number + 1} of {ROUNDS}: {name}", file=sys.stderr)
            split = splitter.make()
            started = time.perf_counter()
            split(paragraphs)
            seconds[name].append(time.perf_counter() - started)
    return {name: size / statistics.median(times) for name, times in seconds.items()}


def places_of(splitter: Splitter, paragraphs: Sequence[str]) -> list[list[int]]:
    """The first characters of sentences, ascending, at words."""
    all_starts = []
    for paragraph, places in zip(paragraphs, splitter.make()(paragraphs), strict=True):
        starts = {0}
        raw = paragraph.encode()
        for place in places:
            if splitter.in_bytes:
                place = len(raw[:place].decode())
            place += len(paragraph) - place - len(paragraph[place:].lstrip())
            if place < len(paragraph):
                starts.add(place)
        all_starts.append(sorted(starts))
    return all_starts


def compare(
    paragraphs: Sequence[str], found: list[list[int]], expected: list[list[int]]
) -> Agreement:
    """Compares the sentences of paragraphs with Punkt's."""
    num_found = 0
    num_expected = 0
    num_right = 0
    num_words = 0
    num_moved = 0
    for paragraph, starts, right in zip(paragraphs, found, expected, strict=True):
        num_found += len(starts) - 1
        num_expected += len(right) - 1
        num_right += len(set(starts) & set(right)) - 1
        for word in _WORD.finditer(paragraph):
            # A sentence can begin inside a word of this pattern, at its last mark.
            last = word.end() - 1
            num_words += 1
            num_moved += bisect.bisect(starts, last) != bisect.bisect(right, last)
    return Agreement(num_right / num_found, num_right / num_expected, num_moved / num_words)


if __name__ == "__main__":
    main()
