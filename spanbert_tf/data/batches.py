"""Batches of a task's packed rows: the input of all fine-tuning and prediction.

Rows of a task have lengths from 20 to 512 tokens, and a batch is as wide as its longest row, so in
batches of random rows a third of the positions is padding. Rows are batched with rows of similar
length:

1. the rows of the epoch are permuted, all of them;
2. they fill buckets of at most 16 widths, and full buckets are batches (`buckets`). Small data sets
   have one bucket: see `FEWEST_SORTED`;
3. the order of the batches is permuted over the whole epoch.

All this is a function of the lengths, the batch size, the seed and the epoch, and is computed at
once for an epoch (130,000 rows: 0.1 s). So batch number n of a run can be asked for without those
before it, on any number of devices and threads.

The last batch of an epoch is filled up to B with `FILLER` rows. A batch that goes on into the next
epoch would need no filling, but then epochs would not have a whole number of steps.

The rows lie in one TFRecord file and are read at their places; the task's own function makes
tensors of a whole batch at once, with `PackedRows`. This module does not depend on the task.

N rows, B rows of a batch, W widths.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from spanbert_tf.data.ahead import computed_ahead
from spanbert_tf.data.buckets import FILLER, WIDTH_MULTIPLE, Buckets, batch_widths
from spanbert_tf.data.parsing import parse_examples
from spanbert_tf.data.records import (
    ROW_TOKEN_IDS,
    SECOND_START,
    SEGMENT_POSITIONS,
    Records,
    TaskManifest,
)
from spanbert_tf.data.tfrecords import RecordFile
from spanbert_tf.errors import BadInputError
from spanbert_tf.masking.random_bits import row_keys
from spanbert_tf.text.vocabulary import SpecialTokenIds

# An epoch of fewer batches has one bucket. With 26 batches of rows of one length the F1 of named
# entities was 67.5, and 68.8 with batches of any rows (GUM, MiniLM, five seeds).
FEWEST_SORTED = 128
MAX_WIDTHS = 16  # shapes that XLA compiles a step for
# What is permuted.
_ROWS = 0
_BATCHES = 1


class Plan(NamedTuple):
    """Batches in their order.

    Attributes:
        rows: int64 [batches, B], numbers of rows; `FILLER` only at the end of a batch.
        widths: int32 [batches], number of positions to which each batch is padded.
    """

    rows: np.ndarray
    widths: np.ndarray


class LengthBatches:
    """Batches of rows of similar length.

    Args:
        lengths: int [N], tokens of each row; at least one row.
        batch_size: B.
        max_length: largest width of a batch, in positions; no row is longer.
    """

    def __init__(self, lengths: np.ndarray, *, batch_size: int, max_length: int) -> None:
        if not len(lengths) or batch_size < 1 or np.max(lengths) > max_length:
            raise ValueError(
                f"{len(lengths)} rows in batches of {batch_size}, none longer than {max_length}"
            )
        self.batch_size = batch_size
        self.widths = batch_widths(np.bincount(lengths), max_length, MAX_WIDTHS)  # [W]
        self._lengths = np.asarray(lengths)
        self._row_widths = self.widths[np.searchsorted(self.widths, lengths)]  # [N]
        is_small = self.num_batches < FEWEST_SORTED
        widths = self.widths[-1:] if is_small else self.widths
        self._buckets = Buckets(widths, np.full(len(widths), batch_size))

    @property
    def num_batches(self) -> int:
        """Batches of an epoch."""
        return -(-len(self._lengths) // self.batch_size)

    def epoch(self, seed: int, epoch: int) -> Plan:
        """Plans the batches of one epoch of training; each row is in one of them."""
        order = _permutation(len(self._lengths), seed, epoch, _ROWS)
        buckets = self._buckets.of_lengths(self._lengths[order])
        places = self._buckets.fill(buckets, is_end=True).rows
        rows = np.where(places == FILLER, FILLER, order[places]).reshape(-1, self.batch_size)
        widest_first = np.argsort(-self._widths_of(rows), axis=1, kind="stable")
        rows = np.take_along_axis(rows, widest_first, axis=1)
        rows = rows[_permutation(self.num_batches, seed, epoch, _BATCHES)]
        return Plan(rows, self._widths_of(rows).max(axis=1))

    def longest_first(self, max_positions: int | None = None) -> Plan:
        """Plans all rows, the longest first; those of one batch in the order of their numbers.

        Args:
            max_positions: largest number of positions of a batch, with padding; a longer row is
                a batch of its own. No limit by default.
        """
        order = np.argsort(-self._lengths, kind="stable")
        rows = self._in_batches(order)
        if max_positions is not None:
            rows = self._in_small_batches(order, max_positions)
        # As unsigned numbers fillers are the largest.
        rows = np.sort(rows.astype("uint64"), axis=1).astype("int64")
        return Plan(rows, self._widths_of(rows).max(axis=1))

    def _in_small_batches(self, rows: np.ndarray, max_positions: int) -> np.ndarray:
        """Does the same as `_in_batches`, with fillers where batches would be too large."""
        batches: list[list[int]] = []
        room = 0
        for row in rows.tolist():
            if not room:
                batches.append([])
                width = int(self._row_widths[row])  # the first row of a batch is its longest
                room = min(max(max_positions // width, 1), self.batch_size)
            batches[-1].append(row)
            room -= 1
        fillers = [[FILLER] * (self.batch_size - len(batch)) for batch in batches]
        return np.array([[*a, *b] for a, b in zip(batches, fillers, strict=True)], "int64")

    def _in_batches(self, rows: np.ndarray) -> np.ndarray:
        """Returns numbers of rows [N], followed by fillers, as [batches, B]."""
        num_fillers = self.num_batches * self.batch_size - len(rows)
        return np.append(rows, np.full(num_fillers, FILLER)).reshape(-1, self.batch_size)

    def _widths_of(self, rows: np.ndarray) -> np.ndarray:
        return np.where(rows == FILLER, 0, self._row_widths[rows])


def packed_batches(
    records: Records,
    parse: Callable[["PackedRows", tf.Tensor, tf.Tensor], tuple[dict, Any]],
    *,
    batch_size: int,
    training: bool,
    **options: Any,
) -> tf.data.Dataset:
    """Returns batches of a task's rows, rows of similar length together.

    S is one of at most 16 widths; see `LengthBatches`.

    Args:
        records: the records, opened.
        parse: `(rows, serialized, width)` → `(x, y)`, by `rows.parse`.
        batch_size: B.
        training: as for `row_batches`.
        **options: as well.

    Raises:
        BadInputError: the rows are damaged, or there is none (to train on).
    """
    manifest = records.manifest
    lengths = records.lengths(training=training)
    if (longest := int(max(lengths))) > manifest.sequence_length:
        raise BadInputError(
            f"{records}: has rows of {longest} tokens, and {manifest.file_name()} says "
            f"{manifest.sequence_length} at most (sequence_length); write the records again"
        )
    batches = LengthBatches(lengths, batch_size=batch_size, max_length=manifest.sequence_length)
    rows = PackedRows(manifest, SpecialTokenIds.from_vocabulary(records.vocabulary).pad)
    parse_rows = functools.partial(parse, rows)
    return row_batches(records.rows, batches, parse_rows, training=training, **options)


class PackedRows:
    """Makes tensors of serialized rows.

    Args:
        manifest: description of the rows.
        pad_id: id of [PAD].

    Attributes:
        manifest: as given.
    """

    def __init__(self, manifest: TaskManifest, pad_id: int) -> None:
        self.manifest = manifest
        self._pad_id = pad_id

    def parse(
        self,
        serialized: tf.Tensor,
        width: tf.Tensor,
    ) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
        """Returns the encoder's features, and what else the task has stored.

        Args:
            serialized: string [B].
            width: int32 [], S.

        Returns:
            `token_ids`, `segment_ids`, `padding_mask` and, if the records have them,
            `paragraph_indices`, `sentence_indices` and `token_indices`, int32 [B, S]; and the
            task's own features, numbers as int32 or float32 [B], lists as int32 [B, S].
        """
        stored = self.manifest.stored()
        found = parse_examples(serialized, stored, width)
        _, num_tokens = found[ROW_TOKEN_IDS]
        static = [serialized.shape[0], None]

        def as_feature(name: str) -> tf.Tensor:
            if stored[name].is_list:
                return tf.ensure_shape(tf.cast(found[name][0], tf.int32), static)
            is_float = stored[name].dtype == "float32"
            return found[name] if is_float else tf.cast(found[name], tf.int32)

        positions = tf.range(width, dtype=tf.int64)[tf.newaxis]  # [1, S]
        is_token = positions < num_tokens[:, tf.newaxis]  # [B, S]
        is_second = positions >= found[SECOND_START][:, tf.newaxis]
        x = {
            "token_ids": tf.where(is_token, as_feature(ROW_TOKEN_IDS), self._pad_id),
            "segment_ids": tf.cast(is_token & is_second, tf.int32),
            "padding_mask": tf.cast(is_token, tf.int32),
        }
        if self.manifest.segment_aware:
            x |= {name: as_feature(name) for name in SEGMENT_POSITIONS}
        return x, {name: as_feature(name) for name in self.manifest.features()}


def row_batches(
    records: RecordFile,
    batches: LengthBatches,
    parse: Callable[..., tuple[dict, dict]],
    *,
    training: bool,
    seed: int = 0,
    first_batch: int = 0,
    last_batch: int | None = None,
    with_keys: bool = False,
    max_positions: int | None = None,
) -> tf.data.Dataset:
    """Returns batches of rows of similar length.

    Args:
        records: the rows. Rows that `batches` does not know are not trained.
        batches: the rows of each batch; B is its batch size.
        parse: turns records (string [B]) and the width to pad them to (int32 []) into `(x, y)`,
            tensors of B rows.
        training: whether to return endless batches of B of the rows to train on. Each epoch has its
            own order, a function of (seed, epoch). Otherwise each row occurs once, the longest
            first, and the last batch is smaller.
        seed: seed of the order.
        first_batch: number of batches to skip, to resume; they are not read.
        last_batch: for TPUs: repeats the batches up to this one, all in one shape. Only operations
            of TensorFlow make them, so all rows are held in memory.
        with_keys: whether to give `parse` also a key of each row and epoch (uint64 [B]), for a task
            that draws a new part of a row at each visit; see `random_bits`.
        max_positions: largest number of positions of a batch that is not trained, with padding.

    Returns:
        For training, a data set of `(x, y, sample_weight)`: `sample_weight`, float32 [B], is 0
        where a copy of the first row fills up the last batch of an epoch. Otherwise of `(x, y)`,
        where `x` also has `row_index`, int32 [B], the number of the row in the file, ascending in
        a batch: with it predictions return to the order of the file.
    """
    read = functools.partial(_read, records)
    if last_batch is not None:
        everything = np.array(records.read(range(len(records))), object)  # [N]
        read = functools.partial(tf.gather, tf.constant(everything))

    @tf.autograph.experimental.do_not_convert  # plain operations
    def take(rows: tf.Tensor, width: tf.Tensor, epoch: tf.Tensor) -> tuple[dict, dict, tf.Tensor]:
        is_row = rows != FILLER
        rows = tf.where(is_row, rows, rows[0])
        keys = [row_keys(seed, tf.fill(tf.shape(rows), epoch), rows)] if with_keys else []
        x, y = parse(read(rows), width, *keys)
        return x, y, tf.cast(is_row, tf.float32)

    @tf.autograph.experimental.do_not_convert
    def take_once(rows: tf.Tensor, width: tf.Tensor) -> tuple[dict, dict]:
        rows = tf.boolean_mask(rows, rows != FILLER)
        x, y = parse(read(rows), width)
        return x | {"row_index": tf.cast(rows, tf.int32)}, y

    if not training:
        plan = tf.data.Dataset.from_tensor_slices(tuple(batches.longest_first(max_positions)))
        return computed_ahead(plan, take_once)
    if last_batch is None:
        return computed_ahead(_endless_plan(batches, seed, first_batch), take)
    plan = _static_plan(batches, seed, first_batch, last_batch)
    shapes = [values.shape for values in tf.nest.flatten(take(*next(iter(plan))))]
    return computed_ahead(plan, lambda *part: _with_shapes(shapes, *take(*part)))


def _endless_plan(batches: LengthBatches, seed: int, first_batch: int) -> tf.data.Dataset:
    """Yields rows, width and epoch of each batch from one on; plans an epoch when it begins."""
    first_epoch, first_in_epoch = divmod(first_batch, batches.num_batches)

    @tf.autograph.experimental.do_not_convert
    def plan_of(epoch: tf.Tensor) -> tf.data.Dataset:
        rows, widths = tf.numpy_function(
            lambda number: tuple(batches.epoch(seed, int(number))),
            [epoch],
            (tf.int64, tf.int32),
        )
        rows.set_shape([batches.num_batches, batches.batch_size])
        widths.set_shape([batches.num_batches])
        num_passed = tf.where(epoch == first_epoch, tf.constant(first_in_epoch, tf.int64), 0)
        epochs = tf.fill(tf.shape(widths), epoch)
        return tf.data.Dataset.from_tensor_slices((rows, widths, epochs)).skip(num_passed)

    return tf.data.Dataset.range(first_epoch, tf.int64.max).flat_map(plan_of)


def _static_plan(batches: LengthBatches, seed: int, first: int, last: int) -> tf.data.Dataset:
    """Yields rows, the largest width and epoch of the batches from one up to another, for ever."""
    numbers = np.arange(first, max(last, first + 1))
    epochs, places = np.divmod(numbers, batches.num_batches)
    rows = {epoch: batches.epoch(seed, epoch).rows for epoch in np.unique(epochs).tolist()}
    taken = [rows[epoch][place] for epoch, place in zip(epochs.tolist(), places, strict=True)]
    widths = np.full(len(numbers), batches.widths[-1])
    return tf.data.Dataset.from_tensor_slices((taken, widths, epochs)).repeat()


@tf.autograph.experimental.do_not_convert
def _with_shapes(shapes: list[tf.TensorShape], *batch: object) -> tuple:
    values = map(tf.ensure_shape, tf.nest.flatten(batch), shapes)
    return tf.nest.pack_sequence_as(batch, list(values))


@tf.autograph.experimental.do_not_convert
def _read(records: RecordFile, rows: tf.Tensor) -> tf.Tensor:
    """Reads the records of a batch, string [B]."""
    serialized = tf.numpy_function(
        lambda numbers: np.array(records.read(numbers), object), [rows], tf.string
    )
    serialized.set_shape(rows.shape)
    return serialized


def even_width(longest: tf.Tensor, max_length: int) -> tf.Tensor:
    """Returns the width, int32 [], of a batch of rows whose lengths are not known in advance.

    One of at most `MAX_WIDTHS` evenly spaced multiples of `WIDTH_MULTIPLE`, or `max_length`.

    Args:
        longest: int32 [], tokens of the batch's longest row; no more than `max_length`.
        max_length: largest width.
    """
    step = WIDTH_MULTIPLE * -(-max_length // (MAX_WIDTHS * WIDTH_MULTIPLE))
    return tf.clip_by_value(-(-longest // step) * step, 1, max_length)


def _permutation(size: int, seed: int, epoch: int, purpose: int) -> np.ndarray:
    """Returns the numbers below `size` in an order that no version of NumPy changes.

    The bits of a generator are promised to stay; what `Generator.permutation` makes of them is not.
    """
    sequence = np.random.SeedSequence([int(seed) % 2**64, epoch, purpose])
    return np.argsort(np.random.PCG64(sequence).random_raw(size), kind="stable")
