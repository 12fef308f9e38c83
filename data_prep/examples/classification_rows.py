"""Writes labelled texts as packed rows: what `prepare glue` and `prepare classification` share."""

import collections
import functools
import os
import time
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from data_prep.examples.features import serialize_features
from data_prep.examples.labelled_texts import LabelledText, LabelledTexts
from data_prep.examples.row_writer import RowWriter
from data_prep.examples.task_records import write_task_records
from spanbert_tf.data.row_lengths import lengths_path
from spanbert_tf.data.rows_info import (
    POSITION_DTYPE,
    ROW_TOKEN_IDS,
    SECOND_START,
    SEGMENT_POSITIONS,
)
from spanbert_tf.data.schema import VOCABULARY_FILE, token_id_dtype
from spanbert_tf.data.task_records import Records
from spanbert_tf.data.text_rows import TextRowPacker, TextRows
from spanbert_tf.errors import BadInputError
from spanbert_tf.files.json_lines import write_json_lines
from spanbert_tf.files.outputs import OutputKind, check_output
from spanbert_tf.process.lines import print_line
from spanbert_tf.process.progress import show_progress
from spanbert_tf.tasks.text_classification.schema import (
    EXAMPLES_FILE,
    INFO_FILE,
    LABEL,
    TextClassificationInfo,
    text_names,
)
from spanbert_tf.text.tokenization import WordPieceTokenizer
from spanbert_tf.text.vocabulary import Casing, SpecialTokenIds, check_case, load_vocabulary

ROWS_FILE = TextClassificationInfo.rows_file
RECORDS = OutputKind(
    "records of labelled texts",
    INFO_FILE,
    (ROWS_FILE, os.path.basename(lengths_path(ROWS_FILE)), EXAMPLES_FILE, VOCABULARY_FILE),
)
_TEXTS_AT_ONCE = 4096
_SHOWN_LABELS = 12


def write_labelled_texts(
    texts: LabelledTexts,
    output: str,
    *,
    vocabulary: str,
    lowercase: bool,
    strip_accents: bool | None = None,
    sequence_length: int = 128,
    segment_aware: bool = False,
    overwrite: bool = False,
) -> TextClassificationInfo:
    """Writes a directory of rows and of what they were made of; it appears whole or not at all.

    Args:
        texts: texts of one file.
        output: directory, new or empty.
        vocabulary: path of a WordPiece vocabulary.
        lowercase: lower-case the text; must suit the vocabulary.
        strip_accents: and strip accents; `None`: where it is lower-cased.
        sequence_length: positions of a row at most (SpanBERT, appendix B: 128); of a pair the
            longer text is trimmed first.
        segment_aware: whether rows tell SegaBERT's positions.
        overwrite: whether earlier records of labelled texts may be replaced.

    Returns:
        The description that was written. Its `counts` tell `rows`, `training_rows`, `tokens`,
        `cut_rows`, `empty_texts` (they stay where they are) and `skipped_lines`.

    Raises:
        BadInputError: the texts cannot be used, or the output exists or cannot be written.
        MismatchError: the vocabulary is not of the stated case.
    """
    started = time.monotonic()
    output = check_output(output, RECORDS, overwrite=overwrite)
    texts.check()
    pieces = load_vocabulary(vocabulary)
    casing = Casing.of(lowercase, strip_accents)
    check_case(pieces, vocabulary, casing)
    featurize = Featurizer(pieces, casing, sequence_length, segment_aware=segment_aware)
    counts = collections.Counter(cut_rows=0, skipped_lines=texts.num_skipped)
    counts["empty_texts"] = sum(not text.strip() for one in texts.examples for text in one.texts)

    def write(directory: str) -> dict[str, int]:
        with RowWriter(os.path.join(directory, ROWS_FILE)) as writer:
            rows = zip(texts.examples, featurize(texts, counts), strict=True)
            for example, (length, (numbers, lists)) in rows:
                label = {LABEL: _label_number(texts, example)}
                writer.write(serialize_features(numbers | label, lists), length)
        lines = map(functools.partial(_example_line, texts), texts.examples)
        write_json_lines(os.path.join(directory, EXAMPLES_FILE), lines)
        is_labelled = texts.examples[0].label is not None
        counts.update(writer.counts())
        return {**counts, "training_rows": counts["rows"] if is_labelled else 0}

    of_class = collections.Counter(example.label for example in texts.examples)
    describe = functools.partial(
        TextClassificationInfo,
        **casing._asdict(),
        sequence_length=sequence_length,
        segment_aware=segment_aware,
        labels=list(texts.labels),
        label_counts=[] if texts.is_regression else [of_class[label] for label in texts.labels],
        is_pair=texts.is_pair,
        is_regression=texts.is_regression,
        dataset=texts.dataset,
    )
    info = write_task_records(output, RECORDS, pieces, write, describe, overwrite=overwrite)
    _print_summary(output, info, time.monotonic() - started)
    return info


class Featurizer:
    """Makes rows of labelled texts, thousands at once.

    Args:
        pieces: the vocabulary.
        casing: what is done to the text.
        sequence_length: positions of a row at most.
        segment_aware: whether SegaBERT's positions are wanted.
    """

    def __init__(
        self, pieces: Sequence[str], casing: Casing, sequence_length: int, *, segment_aware: bool
    ) -> None:
        self._tokenizer = WordPieceTokenizer.shared(pieces, casing)
        packer = TextRowPacker(SpecialTokenIds.from_vocabulary(list(pieces)), sequence_length)
        self._pack = tf.function(packer, reduce_retracing=True, autograph=False)
        self._dtype = f"<{np.dtype(token_id_dtype(len(pieces))).str[1:]}"
        self._segment_aware = segment_aware

    def rows(self, texts: Sequence[tuple[str, ...]]) -> TextRows:
        """The rows of texts, or of pairs of them."""
        columns = zip(*texts, strict=True)
        encoded = ([text.encode("utf-8", "replace") for text in column] for column in columns)
        return self._pack(*(self._tokenizer.tokenize(tf.constant(column)) for column in encoded))

    def __call__(
        self, texts: LabelledTexts, counts: collections.Counter
    ) -> Iterator[tuple[int, tuple[dict[str, int], dict[str, bytes]]]]:
        """The length of each row, and the features that are stored: numbers and lists.

        Args:
            texts: texts to pack.
            counts: the rows that were cut are added to `cut_rows`.
        """
        starts = range(0, len(texts.examples), _TEXTS_AT_ONCE)
        for first in show_progress(starts, len(starts), "batches of texts"):
            some = texts.examples[first : first + _TEXTS_AT_ONCE]
            rows = self.rows([example.texts for example in some])
            counts["cut_rows"] += int(np.count_nonzero(rows.is_cut))
            token_ids = rows.token_ids.numpy().astype(self._dtype)
            positions = {}
            if self._segment_aware:
                features = rows.features(segment_aware=True)
                positions = {
                    name: features[name].numpy().astype(POSITION_DTYPE)
                    for name in SEGMENT_POSITIONS
                }
            sizes = zip(
                rows.lengths.numpy().tolist(), rows.second_starts.numpy().tolist(), strict=True
            )
            for number, (length, second) in enumerate(sizes):
                lists = {ROW_TOKEN_IDS: token_ids} | positions
                raw = {name: values[number, :length].tobytes() for name, values in lists.items()}
                yield length, ({SECOND_START: second}, raw)


def _label_number(texts: LabelledTexts, example: LabelledText) -> int | float:
    if texts.is_regression:
        return float(example.label or 0)
    return 0 if example.label is None else texts.labels.index(example.label)


def _example_line(texts: LabelledTexts, example: LabelledText) -> dict:
    named = dict(zip(text_names(texts.is_pair), example.texts, strict=True))
    return {"line": example.line, **named, "label": example.label}


def _print_summary(output: str, info: TextClassificationInfo, seconds: float) -> None:
    what = f"{info.dataset}: " if info.dataset else ""
    kind = "pairs of texts" if info.is_pair else "texts"
    print_line(
        f"{output}: {what}{info.num_rows:,} {kind}, {info.num_tokens:,} tokens, {seconds:.1f} s"
    )
    if not info.is_labelled:
        print_line("  without labels: to predict, not to train or to score")
    elif not info.is_regression:
        counted = list(zip(info.labels, info.label_counts, strict=True))
        shown = ", ".join(f"{label} {count:,}" for label, count in counted[:_SHOWN_LABELS])
        print_line(f"  labels: {shown}{', …' * (len(counted) > _SHOWN_LABELS)}")
    for name in ("cut_rows", "empty_texts", "skipped_lines"):
        if info.counts[name]:
            print_line(f"  {name.replace('_', ' ')}: {info.counts[name]:,}")


def load_labels(directory: str) -> list[str]:
    """The labels of training records, for the records of other files.

    Raises:
        BadInputError: the directory holds no records of labelled texts, or those of a regression.
    """
    info = Records.of(directory, TextClassificationInfo).info
    if info.is_regression:
        raise BadInputError(f"{directory}: has numbers for labels; give --regression")
    return info.labels
