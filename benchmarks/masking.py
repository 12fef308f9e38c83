"""Sequences a second of dynamic masking, per core, beside three peers on the same rows.

    python -m benchmarks.masking [--records DIR]

The peers: KerasHub's `MaskedLMMaskGenerator` (single word pieces, no spans), TensorFlow Text's
`mask_language_model` over whole words, and the plain-Python definition of span masking that the
tests hold (one row at a time). Then the other masking schemes, and what reading, parsing and
packing the records adds. Rates are rows a
second of processor time over all threads, so that other programs on the machine do not count; only
two threads beside one are compared by the clock on the wall. Rounds are interleaved, the table
shows medians of the rounds.

Without --records, annotated records of 512 positions are written from text that comes with
Python (half a minute, mostly spaCy's). Records without annotations show three schemes of five.
"""

import random
import statistics
import tempfile
import time
from collections.abc import Callable

import click
import keras_hub
import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

from benchmarks.machine import describe_machine
from benchmarks.python_text import write_records_of_python_text
from spanbert_tf.data.ahead import computed_ahead
from spanbert_tf.data.manifest import ANNOTATIONS, RECORD_ID, PretrainingManifest
from spanbert_tf.data.pretraining import pretraining_dataset
from spanbert_tf.data.rows import pack_rows, pack_spans, parse_records
from spanbert_tf.masking import MaskingOptions, SpanMasker
from spanbert_tf.text.vocabulary import (
    SPECIAL_TOKENS,
    SpecialTokenIds,
    begin_words,
    load_vocabulary,
)
from tests.support import masking_oracle

BATCH_SIZE = 256
ROUNDS = 9
SECONDS_A_ROUND = 1.0
ORACLE_ROWS = 256


@click.command()
@click.option("--records", help="Directory of records of 512 positions.")
def main(records: str | None) -> None:
    # One core: TensorFlow's own pools have one thread; data sets below get theirs by option.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        if records is None:
            records = write_records_of_python_text(
                directory, sequence_length=512, annotate=tuple(ANNOTATIONS)
            )
        print(describe_machine())
        _compare(records)


def _compare(records: str) -> None:
    manifest = PretrainingManifest.load(records)
    vocabulary = load_vocabulary(f"{records}/vocab.txt")
    print(
        f"{manifest.num_records('train')} records of {manifest.sequence_length}, batch {BATCH_SIZE}"
    )
    spans = MaskingOptions()
    full = _full_records(records)
    special = SpecialTokenIds.from_vocabulary(vocabulary)
    packed = pack_rows(parse_records(full, manifest), special)[1].token_ids.numpy()

    runs: dict[str, Callable[[], int]] = {
        "this masker, geometric_spans": _masking_run(records, spans, threads=1),
        "KerasHub MaskedLMMaskGenerator": _keras_hub_run(packed, vocabulary),
        "TensorFlow Text whole words": _tf_text_run(packed, vocabulary),
        "plain-Python definition": _oracle_run(
            packed, vocabulary, manifest.unigram_counts(records)
        ),
        "reading to masking": _dataset_run(
            pretraining_dataset(records, batch_size=BATCH_SIZE), threads=1
        ),
        "masking, 1 thread by the clock": _masking_run(records, spans, threads=1),
        "masking, 2 threads by the clock": _masking_run(records, spans, threads=2),
    }
    schemes = ["subwords", "whole_words", *manifest.annotations]
    for scheme in schemes:
        options = MaskingOptions(scheme=scheme)
        runs[f"this masker, {scheme}"] = _masking_run(records, options, threads=1)
    rates = _interleaved_medians(runs)
    ours, _ = rates["this masker, geometric_spans"]
    print(f"{'':36}{'rows/s':>10}{'this / it':>12}")
    for name, (rate, _) in rates.items():
        print(f"{name:36}{rate:10,.0f}{ours / rate:12.2f}")
    reading, _ = rates["reading to masking"]
    print(f"reading, parsing and packing add {ours / reading - 1:.1%} to masking")
    one, two = (
        rates[f"masking, {threads} by the clock"][1] for threads in ("1 thread", "2 threads")
    )
    print(f"two threads give {two / one:.2f} x")


def _full_records(records: str) -> tf.Tensor:
    """One batch of serialized records whose blocks are full, or nearly; string [B]."""
    manifest = PretrainingManifest.load(records)
    serialized = next(iter(tf.data.TFRecordDataset(manifest.files(records, "train")).batch(8192)))
    lengths = parse_records(serialized, manifest).lengths
    longest = tf.argsort(lengths, direction="DESCENDING", stable=True)
    return tf.gather(serialized, tf.gather(longest, tf.range(BATCH_SIZE) % tf.size(longest)))


def _masking_run(records: str, options: MaskingOptions, threads: int) -> Callable[[], int]:
    """Masks one batch of packed rows again and again, in a new epoch each time."""
    manifest = PretrainingManifest.load(records)
    vocabulary = load_vocabulary(f"{records}/vocab.txt")
    annotation = options.chosen_scheme.spans
    lists = ANNOTATIONS.get(annotation, ())
    parsed = parse_records(_full_records(records), manifest, lists)
    _, blocks = pack_rows(parsed, SpecialTokenIds.from_vocabulary(vocabulary))
    annotated = pack_spans(parsed, annotation) if annotation else None
    masker = SpanMasker.from_vocabulary(vocabulary, manifest.unigram_counts(records), options)
    num_slots = options.num_slots(manifest.sequence_length, manifest.num_blocks)
    record_ids = parsed.scalars[RECORD_ID]

    @tf.autograph.experimental.do_not_convert
    def mask(epoch: tf.Tensor) -> dict[str, tf.Tensor]:
        return masker(blocks, tf.fill([BATCH_SIZE], epoch), record_ids, num_slots, annotated)

    return _dataset_run(computed_ahead(tf.data.Dataset.counter(), mask), threads)


def _dataset_run(batches: tf.data.Dataset, threads: int) -> Callable[[], int]:
    settings = tf.data.Options()
    settings.threading.private_threadpool_size = threads
    iterator = iter(batches.with_options(settings))

    def run() -> int:
        next(iterator)
        return BATCH_SIZE

    return run


def _keras_hub_run(packed: np.ndarray, vocabulary: list[str]) -> Callable[[], int]:
    masker = keras_hub.layers.MaskedLMMaskGenerator(
        vocabulary_size=len(vocabulary),
        mask_selection_rate=0.15,
        mask_selection_length=77,
        mask_token_id=vocabulary.index("[MASK]"),
        unselectable_token_ids=[vocabulary.index(token) for token in SPECIAL_TOKENS],
    )
    return _tensor_run(masker, tf.constant(packed))


def _tf_text_run(packed: np.ndarray, vocabulary: list[str]) -> Callable[[], int]:
    selector = tf_text.RandomItemSelector(
        max_selections_per_batch=77,
        selection_rate=0.15,
        unselectable_ids=[vocabulary.index(token) for token in SPECIAL_TOKENS],
    )
    values = tf_text.MaskValuesChooser(len(vocabulary), vocabulary.index("[MASK]"), 0.8, 0.1)
    starts_word = begin_words(vocabulary)[packed]
    starts_word[:, 0] = True
    word_lengths = np.diff(np.append(np.flatnonzero(starts_word), packed.size))
    words = tf.RaggedTensor.from_row_lengths(
        tf.RaggedTensor.from_row_lengths(packed.reshape(-1), word_lengths), starts_word.sum(axis=1)
    )  # [B, (words), (word pieces)]
    mask = lambda rows: tf_text.mask_language_model(rows, selector, values)  # noqa: E731
    return _tensor_run(mask, words)


def _tensor_run(mask: Callable, rows: tf.Tensor | tf.RaggedTensor) -> Callable[[], int]:
    compiled = tf.function(mask)

    def run() -> int:
        compiled(rows)
        return BATCH_SIZE

    return run


def _oracle_run(
    packed: np.ndarray, vocabulary: list[str], unigram_counts: tuple[int, ...]
) -> Callable[[], int]:
    starts_word = begin_words(vocabulary).tolist().__getitem__
    thresholds = (np.cumsum(unigram_counts) / sum(unigram_counts)).tolist()
    rules = masking_oracle.Rules(mask_rate=0.8, random_rate=0.1)
    end = vocabulary.index("[SEP]")
    rows = [row.tolist() for row in packed[:ORACLE_ROWS]]
    seeds = iter(range(10**9))

    def run() -> int:
        row = random.choice(rows)
        masking_oracle.mask_row(
            row,
            [(1, row.index(end) - 1)],
            starts_word,
            rules,
            masking_oracle.PseudoRandomDraws(next(seeds)),
            thresholds,
            vocabulary.index("[MASK]"),
        )
        return 1

    return run


def _interleaved_medians(runs: dict[str, Callable[[], int]]) -> dict[str, tuple[float, float]]:
    """Median rows a second of each run: of processor time, and by the clock."""
    for run in runs.values():
        run()  # warm up
    rates: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for _ in range(ROUNDS):
        for name, run in runs.items():
            rows, start, processor_start = 0, time.perf_counter(), time.process_time()
            while (elapsed := time.perf_counter() - start) < SECONDS_A_ROUND:
                rows += run()
            rates[name].append((rows / (time.process_time() - processor_start), rows / elapsed))
    return {
        name: tuple(statistics.median(column) for column in zip(*pairs, strict=True))
        for name, pairs in rates.items()
    }


if __name__ == "__main__":
    main()
