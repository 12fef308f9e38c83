"""Examples of relations as rows: what `prepare tacred` and `prepare semeval2010` share."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from spanbert_tf.data.entity_markers import OBJECT, SUBJECT, EntityMode, make_markers
from spanbert_tf.data.relation_packer import RelationPacker
from spanbert_tf.data.rows_info import ROW_TOKEN_IDS, SECOND_START
from spanbert_tf.errors import BadInputError
from spanbert_tf.tasks.preparation import Row, RowMaker, write_task_records
from spanbert_tf.tasks.relation_extraction.examples import RelationSet, check_relations
from spanbert_tf.tasks.relation_extraction.records import (
    EXAMPLES_FILE,
    LABEL,
    ExampleLine,
    RelationExtractionInfo,
)
from spanbert_tf.terminal import show_progress
from spanbert_tf.text.vocabulary import Casing

_EXAMPLES_AT_ONCE = 1024
_TEXT_FIELDS, _PLACE_FIELDS = ("text", "subject_type", "object_type"), ("subject", "object")


def write_relations(
    relations: RelationSet,
    output: str,
    *,
    training: RelationSet | None = None,
    vocabulary: str,
    entities: EntityMode = "masked",
    sequence_length: int = 128,
    **options: Any,
) -> RelationExtractionInfo:
    """Writes a directory of rows and examples; it appears whole or not at all.

    Args:
        relations: relations of one file.
        output: directory, new or empty.
        training: whose types and relations count; by default `relations`.
        vocabulary: path of a WordPiece vocabulary with entries `[unusedN]`.
        entities: `"masked"` or `"text"`, see `RelationPacker`.
        sequence_length: positions of a row at most.
        **options: as for `write_task_records`.

    Returns:
        The manifest that was written. Its `counts` tell `full_rows`, which may have been cut, and
        of what the training set does not have `unknown_types` (entities that have the marker of
        their role alone) and `unknown_relations` (examples, which cannot be predicted right).

    Raises:
        BadInputError: the examples or the vocabulary cannot be used, or the output exists or
            cannot be written.
        MismatchError: the vocabulary is not of the stated case.
    """
    training = training or relations
    for some in (relations, training):
        check_relations(some)
    if training.examples[0]["relation"] is None:
        raise BadInputError(
            f"{training.path}: has no relations to learn; give the training set as --training-input"
        )
    maker = RelationRows(relations, training, entities, vocabulary)
    return write_task_records(
        maker, output, vocabulary=vocabulary, sequence_length=sequence_length, **options
    )


class RelationRows(RowMaker):
    """Makes the rows of examples and counts what became of them."""

    info_class = RelationExtractionInfo
    title = "records of relations"

    def __init__(
        self, relations: RelationSet, training: RelationSet, entities: EntityMode, vocabulary: str
    ) -> None:
        super().__init__()
        self._relations, self._training = relations, training
        self._entities, self._vocabulary = entities, vocabulary
        self._labels = training.labels()
        self._numbers = {label: number for number, label in enumerate(self._labels, start=1)}
        self.counts.update(full_rows=0, unknown_types=0, unknown_relations=0)
        self.lines[EXAMPLES_FILE] = relations.examples

    def rows(self, pieces: Sequence[str], casing: Casing, sequence_length: int) -> Iterator[Row]:
        """A row an example."""
        training, entities = self._training, self._entities
        types = [
            {example[f"{role}_type"] for example in training.examples if entities == "masked"}
            for role in _PLACE_FIELDS
        ]
        self._markers = make_markers(pieces, *types, place=self._vocabulary)
        packer = RelationPacker(
            pieces, casing, self._markers, entities=entities, sequence_length=sequence_length
        )
        pack = tf.function(packer, reduce_retracing=True)
        firsts = range(0, len(self._relations.examples), _EXAMPLES_AT_ONCE)
        for first in show_progress(firsts, len(firsts), "batches"):
            some = self._relations.examples[first : first + _EXAMPLES_AT_ONCE]
            yield from self._batch(some, pack, sequence_length)

    def described(self) -> dict[str, Any]:
        """The relations, the markers of entities, and whose layout the files have."""
        return {
            "labels": self._labels,
            "markers": self._markers,
            "entities": self._entities,
            "layout": self._relations.layout,
        }

    def counted(self, written: Mapping[str, int]) -> dict[str, int]:
        """Without relations there is nothing to train."""
        examples, counts = self._relations.examples, {**written, **self.counts}
        if examples[0]["relation"] is None:
            counts["training_rows"] = 0
        return counts

    def summary(self, info: RelationExtractionInfo, seconds: float) -> Iterator[str]:
        """What there is, and what the training set does not have."""
        counts = info.counts
        yield (
            f"{counts['rows']:,} examples, {len(info.labels)} relations, {len(info.markers)} "
            f"markers; {counts['full_rows']:,} rows are full and may have been cut"
        )
        for name, what in (("types", "entities of types"), ("relations", "relations")):
            if count := counts[f"unknown_{name}"]:
                yield f"{what} that the training set does not have: {count:,}"

    def _batch(
        self, examples: Sequence[ExampleLine], pack: Callable, sequence_length: int
    ) -> Iterator[Row]:
        columns = {
            name: tf.constant([x[name].encode("utf-8", "replace") for x in examples])
            for name in _TEXT_FIELDS
        }
        columns |= {name: tf.constant([x[name] for x in examples]) for name in _PLACE_FIELDS}
        rows = pack(**columns)
        flat, splits = rows.flat_values.numpy(), rows.row_splits.numpy()
        for example, row in zip(examples, np.split(flat, splits[1:-1]), strict=True):
            label = self._numbers.get(example["relation"], 0)
            self.counts["unknown_relations"] += not label and example["relation"] is not None
            self.counts["full_rows"] += len(row) == sequence_length
            self.counts["unknown_types"] += self._entities == "masked" and self._num_unknown(
                example
            )
            numbers = {SECOND_START: len(row), LABEL: label}
            yield Row(numbers, {ROW_TOKEN_IDS: row})

    def _num_unknown(self, example: ExampleLine) -> int:
        names = zip((SUBJECT, OBJECT), _PLACE_FIELDS, strict=True)
        found = [(role, example[f"{field}_type"]) for role, field in names]
        return sum(bool(kind) and f"{role}={kind}" not in self._markers for role, kind in found)
