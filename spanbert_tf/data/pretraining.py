"""The pre-training data set: read → shuffle → parse → batch → pack → mask on the fly.

B rows, S positions, K prediction slots, W records of a chunk.
"""

import functools
import os
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from spanbert_tf.data.ahead import computed_ahead
from spanbert_tf.data.buckets import Buckets, constant_tokens
from spanbert_tf.data.manifest import (
    POSITION_LISTS,
    RECORD_ID,
    PretrainingManifest,
)
from spanbert_tf.data.rows import (
    ParsedRecords,
    pack_rows,
    pack_spans,
    parse_records,
    scalar_names,
    segment_aware_indices,
    starts_of_words,
)
from spanbert_tf.data.stream import evaluation_chunks, length_batches, training_chunks
from spanbert_tf.data.tfrecords import serialize_features
from spanbert_tf.errors import BadInputError, ConfigurationError
from spanbert_tf.masking import MaskingOptions, SpanMasker
from spanbert_tf.text.vocabulary import SpecialTokenIds
from spanbert_tf.validation import whole_number


def pretraining_dataset(
    directory: str | os.PathLike,
    *,
    batch_size: int,
    masking: str | dict | MaskingOptions = "geometric_spans",
    split: str = "train",
    seed: int = 0,
    first_batch: int = 0,
    segment_aware: bool = False,
    schedule_steps: int | None = None,
    with_words: bool = False,
    batch_by_length: bool = False,
) -> tf.data.Dataset:
    """Returns batches of masked rows for `SpanBertPretrainer.fit`.

    The training split is endless: each epoch is a permutation of all records, and a batch may
    contain records of two epochs. Order and masks depend only on (seed, epoch, record), and on the
    step if the masking rate changes. The validation split is read once, in the order of its files,
    always with the same masks; its last batch is filled up with empty rows of weight 0.

    With `batch_by_length`, batches of the training split have rows of similar length. They have at
    most 8 widths, and about as many positions as `batch_size` rows of the full length (`buckets`).
    Each record is in one batch of an epoch; the last batch is filled up with empty rows of weight
    0. The masks of a record are the same as without `batch_by_length`. If all rows need the full
    length, so are the batches.

    Args:
        directory: what `spanbert-tf prepare pretraining` wrote.
        batch_size: B, rows of the global batch; with `batch_by_length`, those of the full length.
        masking: a scheme's name, a dict of the fields of `MaskingOptions`, or `MaskingOptions`.
        split: `"train"` or `"validation"`.
        seed: seed of the order and of the masks.
        first_batch: number of batches of the training stream to skip, to resume; 0 for the
            validation split, which is read from its start.
        segment_aware: whether to add SegaBERT's three indices.
        schedule_steps: batches of the training split from the first masking rate to the last
            one, if `masking` has two.
        with_words: whether to add `starts_word`, which no model takes.
        batch_by_length: whether to batch records of similar length.

    Returns:
        A data set of dicts, with static shapes unless `batch_by_length`: `token_ids`,
        `segment_ids`, `padding_mask` (int32 [B, S]); `mask_positions`, `mask_ids`,
        `span_left_positions`, `span_right_positions`, `span_offsets` (int32 [B, K]);
        `mask_weights`, `span_weights` (float32 [B, K]); for pairs
        `next_sentence_labels` (int32 [B]); if `segment_aware`, `paragraph_indices`,
        `sentence_indices`, `token_indices` (int32 [B, S]); if `with_words`, `starts_word` (bool
        [B, S]), true at the first token of each word and at every position that is not in a word.

    Raises:
        BadInputError: the directory or one of its files is missing or unusable, the split has
            no records, or a number cannot be used.
        ConfigurationError: `masking` cannot be used, or has two rates and `schedule_steps` is
            missing.
        MismatchError: the records lack what `masking` or `segment_aware` needs.
    """
    options = MaskingOptions.of(masking)
    batch_size = whole_number("batch_size", batch_size, least=1)
    seed = whole_number("seed", seed)
    first_batch = whole_number("first_batch", first_batch, least=0)
    is_scheduled = options.has_schedule and split == "train"
    if is_scheduled and schedule_steps is None:
        raise ConfigurationError(
            f"masking.rate: {options.rate} changes from step to step; give schedule_steps, the "
            "steps that this takes"
        )
    directory = os.fspath(directory)
    manifest = PretrainingManifest.load(directory)
    manifest.check_fit(directory, split, segment_aware=segment_aware)
    if first_batch and split != "train":
        raise BadInputError(f"first_batch: {first_batch} of the {split} split; use skip() instead")
    files = manifest.files(directory, split)
    pipeline = PretrainingPipeline(
        directory,
        manifest,
        options,
        seed=seed,
        segment_aware=segment_aware,
        schedule_steps=schedule_steps if is_scheduled else None,
        with_words=with_words,
    )
    plan = None
    if batch_by_length and split == "train":
        plan = LengthPlan.of(directory, manifest, batch_size)
    if plan is not None:
        batches = plan.batches(seed, first_batch).prefetch(1)
        mask = functools.partial(pipeline.mask_bucket, plan.buckets)
    else:
        if split == "train":
            first_record = first_batch * batch_size
            chunks = training_chunks(files, manifest.num_records(split), seed, first_record)
        else:
            missing = -manifest.num_records(split) % batch_size
            fill = tf.data.Dataset.from_tensors(_empty_record(manifest)).repeat(missing)
            chunks = evaluation_chunks(files, fill)
        batches = chunks.map(pipeline.parse).prefetch(1).rebatch(batch_size, drop_remainder=True)
        mask = pipeline.mask
    if not is_scheduled:
        return computed_ahead(batches, mask)
    return computed_ahead(batches.enumerate(first_batch), lambda step, part: mask(*part, step))


class LengthPlan(NamedTuple):
    """How the training records are batched by length.

    Attributes:
        files: paths of the shards.
        num_rows: int64 [L + 1], the number of records of each length in word pieces.
        buckets: widths of the batches in word pieces, and their rows.
        fill: a serialized record without text.
    """

    files: list[str]
    num_rows: np.ndarray
    buckets: Buckets
    fill: bytes

    @classmethod
    def of(
        cls, directory: str, manifest: PretrainingManifest, batch_size: int
    ) -> "LengthPlan | None":
        """Reads the lengths of the records; `None` if all rows need the full length.

        Raises:
            BadInputError: the lengths are missing or not those of the records.
        """
        num_rows = manifest.num_rows(directory, "train")
        num_special = manifest.sequence_length - manifest.num_places
        buckets = constant_tokens(
            np.pad(num_rows, (num_special, 0)),
            batch_size=batch_size,
            sequence_length=manifest.sequence_length,
        )
        if buckets.widths.tolist() == [manifest.sequence_length]:
            return None
        in_pieces = Buckets(buckets.widths - num_special, buckets.sizes)
        return cls(manifest.files(directory, "train"), num_rows, in_pieces, _empty_record(manifest))

    @property
    def num_batches(self) -> int:
        """The number of batches of an epoch."""
        return self.buckets.num_batches(self.num_rows)

    def batches(self, seed: int, first_batch: int) -> tf.data.Dataset:
        """Returns batches of serialized records; see `length_batches`."""
        return length_batches(
            self.files,
            self.num_rows,
            self.buckets,
            fill=self.fill,
            seed=seed,
            first_batch=first_batch,
        )


class PretrainingPipeline:
    """The two graph functions of the data set: records to tensors, tensors to a masked batch."""

    def __init__(
        self,
        directory: str,
        manifest: PretrainingManifest,
        options: MaskingOptions,
        *,
        seed: int = 0,
        segment_aware: bool = False,
        schedule_steps: int | None = None,
        with_words: bool = False,
    ) -> None:
        vocabulary = manifest.vocabulary(directory)
        self._manifest = manifest
        self._options = options
        self._segment_aware = segment_aware
        self._with_words = with_words
        self._special = SpecialTokenIds.from_vocabulary(vocabulary)
        unigram_counts = manifest.unigram_counts(directory)
        self._masker = SpanMasker.from_vocabulary(
            vocabulary, unigram_counts, options, seed, schedule_steps
        )
        self._spans = options.chosen_scheme.spans
        self._span_features = manifest.span_features(self._spans, options.scheme, directory)

    @tf.autograph.experimental.do_not_convert  # plain operations; conversion only costs time
    def parse(self, serialized: tf.Tensor, epochs: tf.Tensor) -> tuple[ParsedRecords, tf.Tensor]:
        """Parses records, string [W]; their epochs, int64 [W], are returned as they are."""
        return self._parse(serialized), epochs

    def _parse(self, serialized: tf.Tensor, num_places: int | None = None) -> ParsedRecords:
        position_lists = POSITION_LISTS if self._segment_aware else ()
        word_lists = self._manifest.word_lists
        list_names = dict.fromkeys((*self._span_features, *word_lists, *position_lists))
        return parse_records(serialized, self._manifest, tuple(list_names), num_places)

    @tf.autograph.experimental.do_not_convert
    def mask(
        self, records: ParsedRecords, epochs: tf.Tensor, step: tf.Tensor | None = None
    ) -> dict[str, tf.Tensor]:
        """Packs and masks a batch of parsed records; the dict of `pretraining_dataset`."""
        features, blocks = pack_rows(records, self._special)
        annotated = pack_spans(records, self._spans) if self._spans else None
        starts_word = starts_of_words(records, blocks, self._masker.is_word_start)
        if self._with_words:
            features["starts_word"] = starts_word
        record_ids = records.scalars[RECORD_ID]
        width = blocks.token_ids.shape[1]
        num_slots = self._options.num_slots(width, self._manifest.num_blocks)
        features |= self._masker(
            blocks, epochs, record_ids, num_slots, annotated, step, starts_word
        )
        if self._segment_aware:
            features |= segment_aware_indices(records)
        return features

    @tf.autograph.experimental.do_not_convert
    def mask_bucket(
        self,
        buckets: Buckets,
        bucket: tf.Tensor,
        serialized: tf.Tensor,
        epochs: tf.Tensor,
        step: tf.Tensor | None = None,
    ) -> dict[str, tf.Tensor]:
        """Parses and masks a batch of records of similar length.

        The graph has a part for each width, whose shapes are static.

        Args:
            buckets: widths of the batches in word pieces, and their rows.
            bucket: number of the batch's width, int64 [].
            serialized: the records, string [B].
            epochs: their epochs, int64 [B].
            step: the step, if the masking rate changes.
        """

        def of_width(num_places: int, size: int) -> dict[str, tf.Tensor]:
            records = self._parse(tf.ensure_shape(serialized, [size]), num_places)
            return self.mask(records, tf.ensure_shape(epochs, [size]), step)

        shapes = zip(buckets.widths.tolist(), buckets.sizes.tolist(), strict=True)
        branches = [functools.partial(of_width, *shape) for shape in shapes]
        if len(branches) == 1:
            return branches[0]()
        return tf.switch_case(tf.cast(bucket, tf.int32), branches)


def _empty_record(manifest: PretrainingManifest) -> bytes:
    """Makes a serialized record without tokens, to fill up a batch."""
    lists = [name for name, stored in manifest.stored().items() if stored.is_list]
    return serialize_features(dict.fromkeys(scalar_names(manifest), 0), dict.fromkeys(lists, b""))
