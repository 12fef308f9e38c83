"""Counts the lengths of masked spans in records, and plots them with the exact distribution.

The shapes below name the number of rows of a batch B and the number of prediction slots K.
"""

import dataclasses
import os
from typing import BinaryIO

import numpy as np
import tensorflow as tf

from spanbert_tf.data import pretraining_dataset
from spanbert_tf.data.manifest import RECORD_ID, PretrainingManifest
from spanbert_tf.data.rows import pack_rows, parse_records, starts_of_words
from spanbert_tf.files.figures import save_figure
from spanbert_tf.lazy import import_figure
from spanbert_tf.masking import MaskingOptions
from spanbert_tf.masking.random_bits import row_keys
from spanbert_tf.masking.spans import draw_candidates, find_words
from spanbert_tf.text.vocabulary import SpecialTokenIds, begin_words

_BATCH_SIZE = 64
_LONGEST_SHOWN = 20


@dataclasses.dataclass(frozen=True)
class SpanLengths:
    """Counts of spans by their length in words, up to 20 words.

    Entry n of each array belongs to spans of n words; entry 20 includes longer spans.

    Attributes:
        drawn: int [21]. Lengths of the first draw of each block. The lengths follow the
            distribution of the scheme, unless the end of the block cuts the span. All 0 if `exact`
            is `None`.
        merged: int [21]. Lengths of the spans of the batches. Draws that touch form one span, and
            the budget of masked tokens may cut a span.
        exact: float [21]. Probability of each length; `None` if the scheme defines none.
    """

    drawn: np.ndarray
    merged: np.ndarray
    exact: np.ndarray | None


def count_span_lengths(
    directory: str | os.PathLike,
    options: MaskingOptions,
    *,
    split: str = "train",
    seed: int = 0,
    max_batches: int = 100,
) -> SpanLengths:
    """Masks up to `max_batches` batches of 64 records and counts the lengths of their spans.

    If the rate changes from step to step, the records are masked at the last rate.

    Args:
        directory: directory of the records.
        options: options of the masking.
        split: `"train"` or `"validation"`.
        seed: seed of the masks.
        max_batches: maximum number of batches to count.
    """
    directory = os.fspath(directory)
    manifest = PretrainingManifest.load(directory)
    vocabulary = manifest.vocabulary(directory)
    num_batches = min(-(-manifest.num_records(split) // _BATCH_SIZE), max_batches)
    batches = pretraining_dataset(
        directory,
        batch_size=_BATCH_SIZE,
        masking=options.at_last_rate,
        split=split,
        seed=seed,
        with_words=True,
    )
    merged = np.zeros(_LONGEST_SHOWN + 1, np.int64)
    for batch in batches.take(num_batches).as_numpy_iterator():
        merged += _histogram(_merged_lengths(batch))
    drawn = np.zeros_like(merged)
    exact = None
    scheme = options.chosen_scheme
    if scheme.max_units > 1 and scheme.spans is None:
        exact = np.zeros(_LONGEST_SHOWN + 1)
        for length, share in enumerate(options.span_length_probabilities(), start=1):
            exact[min(length, _LONGEST_SHOWN)] += float(share)
        special = SpecialTokenIds.from_vocabulary(vocabulary)
        records = tf.data.TFRecordDataset(manifest.files(directory, split)).batch(_BATCH_SIZE)
        begins_word = tf.constant(begin_words(vocabulary))
        lengths = records.take(num_batches).map(
            lambda serialized: _drawn_lengths(
                serialized, manifest, special, begins_word, options, seed
            )
        )
        for batch_lengths in lengths.as_numpy_iterator():
            drawn += _histogram(batch_lengths)
    return SpanLengths(drawn, merged, exact)


def plot_span_lengths(lengths: SpanLengths, file: str | BinaryIO, title: str) -> None:
    """Plots the share of each length as bars, and the exact probabilities as points.

    Args:
        lengths: result of `count_span_lengths`.
        file: path or open file of the picture, a PNG.
        title: title of the picture.
    """
    figure = import_figure()(figsize=(7, 3.5), layout="constrained")
    axes = figure.subplots()
    words = np.arange(1, _LONGEST_SHOWN + 1)
    bars = {"drawn": lengths.drawn, "merged (touching spans are one)": lengths.merged}
    for index, (label, counts) in enumerate(bars.items()):
        if counts.any():
            axes.bar(words + 0.4 * index - 0.2, counts[1:] / counts.sum(), 0.4, label=label)
    if lengths.exact is not None:
        shown = lengths.exact[1:] > 0
        axes.plot(words[shown], lengths.exact[1:][shown], "ko", label="exact")
    axes.set(title=title, xlabel="length in words", ylabel="share of spans", xticks=words)
    axes.set_xticklabels([*map(str, words[:-1]), f"{_LONGEST_SHOWN}+"])
    axes.legend()
    save_figure(figure, file)


def _histogram(lengths: np.ndarray) -> np.ndarray:
    return np.bincount(np.minimum(lengths, _LONGEST_SHOWN), minlength=_LONGEST_SHOWN + 1)


def _merged_lengths(batch: dict[str, np.ndarray]) -> np.ndarray:
    """Counts the words of each span of a batch; int [number of spans]."""
    positions = batch["mask_positions"]
    used = batch["mask_weights"] == 1  # [B, K]
    begins_span = np.ones_like(used)
    begins_span[:, 1:] = positions[:, 1:] != positions[:, :-1] + 1
    begins_word = begins_span | np.take_along_axis(batch["starts_word"], positions, axis=1)
    span_starts = np.flatnonzero(begins_span[used])
    if not len(span_starts):
        return span_starts
    return np.add.reduceat(begins_word[used].astype(np.int64), span_starts)


@tf.autograph.experimental.do_not_convert
def _drawn_lengths(
    serialized: tf.Tensor,
    manifest: PretrainingManifest,
    special: SpecialTokenIds,
    begins_word: tf.Tensor,
    options: MaskingOptions,
    seed: int,
) -> tf.Tensor:
    """Counts the words of the first draw of each block with text, int [number of such blocks]."""
    records = parse_records(serialized, manifest, manifest.word_lists)
    _, blocks = pack_rows(records, special)
    words = find_words(blocks, starts_of_words(records, blocks, begins_word))
    record_ids = records.scalars[RECORD_ID]
    keys = row_keys(seed, tf.zeros_like(record_ids), record_ids)
    draws = draw_candidates(blocks, words, keys, tf.zeros([1], tf.int64), options)
    lengths = words.containing(draws.ends) - words.containing(draws.starts) + 1
    return lengths[blocks.lengths[:, :, tf.newaxis] > 0]
