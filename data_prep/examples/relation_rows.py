"""Writes examples of relations as packed rows: what `prepare tacred` and `semeval2010` share."""

import collections
import functools
import os
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from data_prep.examples.features import serialize_features
from data_prep.examples.relations import RelationSet, check_relations
from data_prep.examples.row_writer import RowWriter
from data_prep.examples.task_records import write_task_records
from spanbert_tf.data.entity_markers import OBJECT, SUBJECT, EntityMode, make_markers
from spanbert_tf.data.relation_packer import RelationPacker
from spanbert_tf.data.row_lengths import lengths_path
from spanbert_tf.data.rows_info import ROW_TOKEN_IDS, SECOND_START
from spanbert_tf.data.schema import VOCABULARY_FILE, token_id_dtype
from spanbert_tf.errors import BadInputError
from spanbert_tf.files.outputs import OutputKind, check_output
from spanbert_tf.files.text_files import write_json_lines
from spanbert_tf.process.console import show_progress
from spanbert_tf.process.lines import print_line
from spanbert_tf.tasks.relation_extraction import schema
from spanbert_tf.tasks.relation_extraction.schema import RelationExtractionInfo
from spanbert_tf.text.vocabulary import Casing, check_case, load_vocabulary

RECORDS = OutputKind(
    "records of relations",
    RelationExtractionInfo.file_name(),
    (
        RelationExtractionInfo.rows_file,
        os.path.basename(lengths_path(RelationExtractionInfo.rows_file)),
        schema.EXAMPLES_FILE,
        VOCABULARY_FILE,
    ),
)
_EXAMPLES_AT_ONCE = 1024
_TEXT_FIELDS, _PLACE_FIELDS = ("text", "subject_type", "object_type"), ("subject", "object")


def write_relations(
    relations: RelationSet,
    output: str,
    *,
    training: RelationSet | None = None,
    vocabulary: str,
    casing: Casing,
    entities: EntityMode = "masked",
    sequence_length: int = 128,
    overwrite: bool = False,
) -> RelationExtractionInfo:
    """Writes a directory of rows and examples; it appears whole or not at all.

    Args:
        relations: relations of one file.
        output: directory, new or empty.
        training: whose types and relations count; by default `relations`.
        vocabulary: path of a WordPiece vocabulary with entries `[unusedN]`.
        casing: what is done to the text; must suit the vocabulary.
        entities: `"masked"` or `"text"`, see `RelationPacker`.
        sequence_length: positions of a row at most.
        overwrite: whether earlier records of relations may be replaced.

    Returns:
        The description that was written. Its `counts` tell `full_rows`, which may have been cut,
        and of what the training set does not have `unknown_types` (entities that have the marker
        of their role alone) and `unknown_relations` (examples, which cannot be predicted right).

    Raises:
        BadInputError: the examples or the vocabulary cannot be used, or the output exists or
            cannot be written.
        MismatchError: the vocabulary is not of the stated case.
    """
    output = check_output(output, RECORDS, overwrite=overwrite)
    training = training or relations
    for some in (relations, training):
        check_relations(some)
    if training.examples[0]["relation"] is None:
        raise BadInputError(
            f"{training.path}: has no relations to learn; give the training set as --training-input"
        )
    pieces = load_vocabulary(vocabulary)
    check_case(pieces, vocabulary, casing)
    types = [
        {example[f"{role}_type"] for example in training.examples if entities == "masked"}
        for role in _PLACE_FIELDS
    ]
    markers = make_markers(pieces, *types, place=vocabulary)
    packer = RelationPacker(
        pieces, casing, markers, entities=entities, sequence_length=sequence_length
    )
    writer = _Writer(
        relations,
        packer,
        training.labels(),
        markers,
        pieces,
        sequence_length,
        is_masked=entities == "masked",
    )
    describe = functools.partial(
        RelationExtractionInfo,
        **casing._asdict(),
        sequence_length=sequence_length,
        labels=training.labels(),
        markers=markers,
        entities=entities,
        layout=relations.layout,
    )
    info = write_task_records(output, RECORDS, pieces, writer.write, describe, overwrite=overwrite)
    _print_summary(output, info)
    return info


def prepare_relations(
    read: Callable[[str], RelationSet],
    path: str,
    training_path: str | None,
    *,
    lowercase: bool,
    strip_accents: bool | None,
    **options: str | int,
) -> RelationExtractionInfo:
    """Reads a file and, where it is another, its training set; see `write_relations`.

    Args:
        read: function that reads the files' format.
        path: path of the examples.
        training_path: path of the training set, or `None`.
        lowercase: lower-case the text.
        strip_accents: and strip accents; `None`: where it is lower-cased.
        **options: as for `write_relations`.
    """
    training = read(training_path) if training_path else None
    casing = Casing.of(lowercase, strip_accents)
    return write_relations(read(path), training=training, casing=casing, **options)


class _Writer:
    """Writes the rows of examples and counts what became of them."""

    def __init__(
        self,
        relations: RelationSet,
        packer: RelationPacker,
        labels: Sequence[str],
        markers: Mapping[str, str],
        pieces: Sequence[str],
        sequence_length: int,
        is_masked: bool,
    ) -> None:
        self._is_masked = is_masked
        self._examples = relations.examples
        self._pack = tf.function(packer, reduce_retracing=True)
        self._numbers = {label: number for number, label in enumerate(labels, start=1)}
        self._markers = markers
        self._dtype = np.dtype(token_id_dtype(len(pieces))).newbyteorder("<")
        self._sequence_length = sequence_length
        self._counts = collections.Counter(full_rows=0, unknown_types=0, unknown_relations=0)

    def write(self, directory: str) -> Mapping[str, int]:
        """Writes the files into a directory; returns what became of the examples."""
        examples = self._examples
        with RowWriter(os.path.join(directory, RelationExtractionInfo.rows_file)) as writer:
            firsts = range(0, len(examples), _EXAMPLES_AT_ONCE)
            for first in show_progress(firsts, len(firsts), "batches"):
                self._write_batch(writer, examples[first : first + _EXAMPLES_AT_ONCE])
        write_json_lines(os.path.join(directory, schema.EXAMPLES_FILE), examples)
        counts = {**writer.counts(), **self._counts}
        if examples[0]["relation"] is None:
            counts["training_rows"] = 0
        return counts

    def _write_batch(self, writer: RowWriter, examples: Sequence[schema.ExampleLine]) -> None:
        columns = {
            name: tf.constant([x[name].encode("utf-8", "replace") for x in examples])
            for name in _TEXT_FIELDS
        }
        columns |= {name: tf.constant([x[name] for x in examples]) for name in _PLACE_FIELDS}
        rows = self._pack(**columns)
        flat, splits = rows.flat_values.numpy().astype(self._dtype), rows.row_splits.numpy()
        for example, row in zip(examples, np.split(flat, splits[1:-1]), strict=True):
            label = self._numbers.get(example["relation"], 0)
            self._counts["unknown_relations"] += not label and example["relation"] is not None
            self._counts["full_rows"] += len(row) == self._sequence_length
            self._counts["unknown_types"] += self._is_masked and self._num_unknown(example)
            numbers = {SECOND_START: len(row), schema.LABEL: label}
            writer.write(serialize_features(numbers, {ROW_TOKEN_IDS: row.tobytes()}), len(row))

    def _num_unknown(self, example: schema.ExampleLine) -> int:
        names = zip((SUBJECT, OBJECT), _PLACE_FIELDS, strict=True)
        found = [(role, example[f"{field}_type"]) for role, field in names]
        return sum(bool(kind) and f"{role}={kind}" not in self._markers for role, kind in found)


def _print_summary(output: str, info: RelationExtractionInfo) -> None:
    counts = info.counts
    print_line(
        f"{output}: {counts['rows']:,} examples, {len(info.labels)} relations, {len(info.markers)} "
        f"markers; {counts['full_rows']:,} rows are full and may have been cut"
    )
    if counts["unknown_types"]:
        print_line(
            f"entities of types that the training set does not have: {counts['unknown_types']:,}"
        )
    if counts["unknown_relations"]:
        print_line(
            f"relations that the training set does not have: {counts['unknown_relations']:,}"
        )
