"""Makes rows of labelled texts, for `prepare glue` and `prepare classification`."""

import collections
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from spanbert_tf.data.records import (
    POSITION_DTYPE,
    ROW_TOKEN_IDS,
    SECOND_START,
    SEGMENT_POSITIONS,
    Records,
)
from spanbert_tf.data.text_rows import TextRowPacker, TextRows
from spanbert_tf.errors import BadInputError
from spanbert_tf.tasks.graphs import string_tensor
from spanbert_tf.tasks.preparation import Row, RowMaker, write_task_records
from spanbert_tf.tasks.text_classification.files import LabelledText, LabelledTexts
from spanbert_tf.tasks.text_classification.records import (
    EXAMPLES_FILE,
    LABEL,
    TextClassificationManifest,
    text_names,
)
from spanbert_tf.terminal import show_progress
from spanbert_tf.text.tokenization import WordPieceTokenizer
from spanbert_tf.text.vocabulary import SpecialTokenIds, TextRules

_TEXTS_AT_ONCE = 4096
_SHOWN_LABELS = 12


def write_labelled_texts(
    texts: LabelledTexts,
    output: str,
    *,
    sequence_length: int = 128,
    segment_aware: bool = False,
    **options: Any,
) -> TextClassificationManifest:
    """Writes the records of labelled texts, completely or not at all.

    Args:
        texts: texts of one file.
        output: directory that is new or empty.
        sequence_length: largest number of positions of a row (SpanBERT, appendix B: 128). The
            longer text of a pair is cut first.
        segment_aware: whether rows store SegaBERT's positions.
        **options: as for `write_task_records`: `preset`, `vocabulary` and so on.

    Returns:
        The manifest. Its `counts` are `rows`, `tokens`, `cut_rows`, `empty_texts` (which have rows,
        too) and `skipped_lines`; and `training_rows`, which is 0, if the texts have no labels.

    Raises:
        BadInputError: the texts cannot be used, or the output exists or cannot be written.
        MismatchError: the vocabulary is not of the stated case.
    """
    texts.check()
    maker = LabelledTextRows(texts, segment_aware=segment_aware)
    return write_task_records(maker, output, sequence_length=sequence_length, **options)


class LabelledTextRows(RowMaker[TextClassificationManifest]):
    """Makes the rows of labelled texts."""

    manifest_class = TextClassificationManifest
    title = "records of labelled texts"

    def __init__(self, texts: LabelledTexts, *, segment_aware: bool) -> None:
        super().__init__()
        self._texts = texts
        self._segment_aware = segment_aware
        self.is_labelled = texts.examples[0].label is not None
        num_empty = 0
        for example in texts.examples:
            num_empty += sum(not text.strip() for text in example.texts)
        self.counts.update(cut_rows=0, skipped_lines=texts.num_skipped, empty_texts=num_empty)
        self.lines[EXAMPLES_FILE] = (_example_line(texts, example) for example in texts.examples)

    def rows(
        self, pieces: Sequence[str], text_rules: TextRules, sequence_length: int
    ) -> Iterator[Row]:
        """Yields a row for each text or pair of texts."""
        featurize = Featurizer(
            pieces, text_rules, sequence_length, segment_aware=self._segment_aware
        )
        rows = featurize(self._texts, self.counts)
        for example, row in zip(self._texts.examples, rows, strict=True):
            label = {LABEL: _label_number(self._texts, example)}
            yield row._replace(numbers={**row.numbers, **label})

    def described(self) -> dict[str, Any]:
        """Returns the classes and their counts, and the kind of the texts."""
        texts = self._texts
        label_counts: list[int] = []
        if not texts.is_regression:
            counts = collections.Counter(example.label for example in texts.examples)
            label_counts = [counts[label] for label in texts.labels]
        return {
            "segment_aware": self._segment_aware,
            "labels": list(texts.labels),
            "label_counts": label_counts,
            "is_pair": texts.is_pair,
            "is_regression": texts.is_regression,
            "dataset": texts.dataset,
        }

    def summary(self, manifest: TextClassificationManifest, seconds: float) -> Iterator[str]:
        """Yields the numbers of texts, tokens and labels, and of cut or skipped texts."""
        dataset = f"{manifest.dataset}: " if manifest.dataset else ""
        kind = "pairs of texts" if manifest.is_pair else "texts"
        counts = f"{manifest.num_rows:,} {kind}, {manifest.num_tokens:,} tokens"
        yield f"{dataset}{counts}, {seconds:.1f} s"
        if not manifest.is_labelled:
            yield "  without labels: to predict, not to train or to score"
        elif not manifest.is_regression:
            label_counts = list(zip(manifest.labels, manifest.label_counts, strict=True))
            shown = ", ".join(f"{label} {count:,}" for label, count in label_counts[:_SHOWN_LABELS])
            if len(label_counts) > _SHOWN_LABELS:
                shown += ", …"
            yield f"  labels: {shown}"
        for name in ("cut_rows", "empty_texts", "skipped_lines"):
            if manifest.counts[name]:
                yield f"  {name.replace('_', ' ')}: {manifest.counts[name]:,}"


class Featurizer:
    """Makes rows of labelled texts in large batches."""

    def __init__(
        self,
        pieces: Sequence[str],
        text_rules: TextRules,
        sequence_length: int,
        *,
        segment_aware: bool,
    ) -> None:
        self._tokenizer = WordPieceTokenizer.shared(pieces, text_rules)
        packer = TextRowPacker(SpecialTokenIds.from_vocabulary(list(pieces)), sequence_length)
        self._pack = tf.function(packer, reduce_retracing=True, autograph=False)
        self._segment_aware = segment_aware

    def rows(self, texts: Sequence[tuple[str, ...]]) -> TextRows:
        """Packs texts, or pairs of texts."""
        tokenized = []
        for column in zip(*texts, strict=True):
            tokenized.append(self._tokenizer.tokenize(string_tensor(column)))
        return self._pack(*tokenized)

    def __call__(self, texts: LabelledTexts, counts: collections.Counter) -> Iterator[Row]:
        """Yields rows without labels, and counts those that were cut in `cut_rows`."""
        starts = range(0, len(texts.examples), _TEXTS_AT_ONCE)
        for first in show_progress(starts, len(starts), "batches of texts"):
            batch = texts.examples[first : first + _TEXTS_AT_ONCE]
            rows = self.rows([example.texts for example in batch])
            counts["cut_rows"] += int(np.count_nonzero(rows.is_cut))
            lists = {ROW_TOKEN_IDS: rows.token_ids.numpy()}
            if self._segment_aware:
                features = rows.features(segment_aware=True)
                for name in SEGMENT_POSITIONS:
                    lists[name] = features[name].numpy().astype(POSITION_DTYPE)
            lengths = rows.lengths.numpy().tolist()
            second_starts = rows.second_starts.numpy().tolist()
            for row, (length, second) in enumerate(zip(lengths, second_starts, strict=True)):
                own = {name: values[row, :length] for name, values in lists.items()}
                yield Row({SECOND_START: second}, own)


def _label_number(texts: LabelledTexts, example: LabelledText) -> int | float:
    """Returns the label as it is stored: the number of a regression, or the id of a class."""
    if texts.is_regression:
        return float(example.label or 0)
    return 0 if example.label is None else texts.labels.index(example.label)


def _example_line(texts: LabelledTexts, example: LabelledText) -> dict:
    """Returns the JSON line of a text or a pair of texts."""
    named = dict(zip(text_names(texts.is_pair), example.texts, strict=True))
    return {"line": example.line, **named, "label": example.label}


def load_labels(directory: str) -> list[str]:
    """Returns the labels of training records, for records of another file."""
    manifest = Records.of(directory, TextClassificationManifest).manifest
    if manifest.is_regression:
        raise BadInputError(f"{directory}: has numbers for labels; give --regression")
    return manifest.labels
