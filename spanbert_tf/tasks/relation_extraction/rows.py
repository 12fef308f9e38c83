"""Reads texts with two entities, and makes their rows.

The texts come as raw inputs, or from the files of TACRED (Zhang et al., 2017) and of SemEval-2010
task 8 (Hendrickx et al., 2010).
"""

import collections
import dataclasses
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NotRequired

import numpy as np
import tensorflow as tf
from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12

from spanbert_tf.data.records import ROW_TOKEN_IDS, SECOND_START
from spanbert_tf.data.text_rows import RelationPacker
from spanbert_tf.errors import BadInputError
from spanbert_tf.files.tables import read_rows
from spanbert_tf.files.text_files import check_json_value, join_words, read_text_file
from spanbert_tf.tasks.graphs import string_tensor
from spanbert_tf.tasks.preparation import Row, RowMaker, write_task_records
from spanbert_tf.tasks.relation_extraction.metrics import OTHER
from spanbert_tf.tasks.relation_extraction.records import (
    EXAMPLES_FILE,
    LABEL,
    ExampleLine,
    Place,
    RelationExtractionManifest,
)
from spanbert_tf.terminal import escape_controls, show_progress
from spanbert_tf.text.vocabulary import OBJECT, SUBJECT, EntityMode, TextRules, make_markers

_BRACKETS = {"lrb": "(", "rrb": ")", "lsb": "[", "rsb": "]", "lcb": "{", "rcb": "}"}
_PENN_BRACKETS = {f"-{name}-": bracket for name, bracket in _BRACKETS.items()}
NO_RELATION = "no_relation"
_SENTENCE = re.compile(r'(\d+)\t"?(.*?)"?')
# Each part ends at the first mark of its kind (`(?>`): if the rest does not match, trying later
# marks does not help and would take cubic time.
_MARKED = re.compile("(?>(.*?)<e1>)(?>(.+?)</e1>)(?>(.*?)<e2>)(?>(.+?)</e2>)(.*)")
_RELATION = re.compile(r"Other|[A-Z][A-Za-z]*-[A-Z][A-Za-z]*\((e1,e2|e2,e1)\)")
_COMMENT = "Comment:"
_EXAMPLES_AT_ONCE = 1024


class MarkedText(TypedDict):
    """A text with two entities."""

    text: str
    subject: Place
    object: Place
    subject_type: NotRequired[str]
    object_type: NotRequired[str]


class CompleteText(TypedDict):
    """A `MarkedText` with types, which are empty if they are not known."""

    text: str
    subject: Place
    object: Place
    subject_type: str
    object_type: str


class MarkedTokens(TypedDict):
    """TACRED's layout: ends are inclusive."""

    token: list[str]
    subj_start: int
    subj_end: int
    obj_start: int
    obj_end: int
    subj_type: NotRequired[str]
    obj_type: NotRequired[str]


def marked_text_of(item: Any, place: str) -> CompleteText:
    """Checks a raw input of tokens or characters, and converts it to a `CompleteText`."""
    if isinstance(item, Mapping) and "token" in item:
        return _text_of_tokens(check_json_value(item, MarkedTokens, place), place)
    found = check_json_value(item, MarkedText, place)
    _check_places(found["subject"], found["object"], len(found["text"]), "characters", place)
    return {
        "text": found["text"],
        "subject": found["subject"],
        "object": found["object"],
        "subject_type": found.get("subject_type", ""),
        "object_type": found.get("object_type", ""),
    }


def _text_of_tokens(item: MarkedTokens, place: str) -> CompleteText:
    """Joins tokens with spaces, and writes the Penn Treebank's brackets as characters."""
    words = [_PENN_BRACKETS.get(word.lower(), word) for word in item["token"]]
    subject_words = [item["subj_start"], item["subj_end"] + 1]
    object_words = [item["obj_start"], item["obj_end"] + 1]
    _check_places(subject_words, object_words, len(words), "words", place)
    text, places = join_words(words)
    subject = _place_of_words(subject_words, places)
    entity = _place_of_words(object_words, places)
    _check_places(subject, entity, len(text), "characters", place)  # a word may be empty
    return {
        "text": text,
        "subject": subject,
        "object": entity,
        "subject_type": item.get("subj_type", ""),
        "object_type": item.get("obj_type", ""),
    }


def _place_of_words(words: Sequence[int], places: Sequence[Sequence[int]]) -> list[int]:
    """Converts a span of words, its end exclusive, to characters; `places` are those of words."""
    start, end = words
    return [places[start][0], places[end - 1][1]]


def _check_places(
    subject: Sequence[int], entity: Sequence[int], length: int, unit: str, place: str
) -> None:
    """Refuses entities (ends exclusive) that are empty, outside of the text, or overlap."""
    for name, (start, end) in (("subject", subject), ("object", entity)):
        if not 0 <= start < end <= length:
            raise BadInputError(
                f"{place}: the {name} is from {start} to before {end}, which is not in its text of "
                f"{length} {unit}; mend its borders"
            )
    if max(subject[0], entity[0]) < min(subject[1], entity[1]):
        raise BadInputError(f"{place}: subject and object overlap; leave the example out")


@dataclasses.dataclass(frozen=True)
class RelationSet:
    """The examples of a file.

    Attributes:
        path: path of the file.
        layout: `"tacred"` or `"semeval2010"`, which decides on the scorer.
        negative: the relation that means none.
        examples: the examples; their relations are `None` if the file has no relations.
    """

    path: str
    layout: str
    negative: str
    examples: list[ExampleLine]

    def labels(self) -> list[str]:
        """Returns the relation that means none, followed by the others, sorted."""
        found = {self.negative}
        for example in self.examples:
            if example["relation"] is not None:
                found.add(example["relation"])
        return [self.negative, *sorted(found - {self.negative})]


def check_relations(relations: RelationSet) -> None:
    """Refuses an empty file, duplicate ids, and relations that are missing or have controls."""
    path = relations.path
    examples = relations.examples
    if not examples:
        raise BadInputError(f"{path}: holds no examples")
    counts = collections.Counter(example["id"] for example in examples)
    for identifier, count in counts.items():
        if count > 1:
            raise BadInputError(f"{path}: example id {identifier!r} occurs {count} times")
    without = [example["id"] for example in examples if example["relation"] is None]
    for example in examples:
        relation = example["relation"] or ""
        if relation != escape_controls(relation):  # files of predictions have one a line
            raise BadInputError(
                f"{path}: example {example['id']!r}: the relation {relation!r} has a line end or "
                "another control character; rename it"
            )
    if 0 < len(without) < len(examples):
        raise BadInputError(f"{path}: example {without[0]!r}: has no relation, as others have")


class _Entry(MarkedTokens):
    id: str | int
    relation: NotRequired[str | None]


def read_tacred(path: str) -> RelationSet:
    """Reads a table of examples, as TACRED's JSON array; ends of entities are inclusive."""
    examples: list[ExampleLine] = []
    for row in read_rows(path):
        found = check_json_value(row.values, _Entry, row.place)
        identifier = str(found["id"])
        text = _text_of_tokens(found, f"{row.place} ({identifier})")
        examples.append({"id": identifier, **text, "relation": found.get("relation")})
    return RelationSet(path, "tacred", NO_RELATION, examples)


def read_semeval2010(path: str) -> RelationSet:
    """Reads the task's own files: a line with number and sentence, its relation, a comment."""
    examples: list[ExampleLine] = []
    for number, text in enumerate(read_text_file(path).split("\n"), start=1):
        line = text.strip("\r ")
        place = f"{path}: line {number}"
        if not line or line.startswith(_COMMENT):
            continue
        sentence = _SENTENCE.fullmatch(line)
        if sentence:
            examples.append(_example(sentence[1], sentence[2], place))
        elif _RELATION.fullmatch(line) and examples and examples[-1]["relation"] is None:
            examples[-1]["relation"] = line
        else:
            raise BadInputError(
                f"{place}: {line[:40]!r} is no number with a sentence, no relation of the task "
                "that follows one, and no comment"
            )
    return RelationSet(path, "semeval2010", OTHER, examples)


def _example(identifier: str, marked: str, place: str) -> ExampleLine:
    """Parses a sentence in which `<e1>…</e1>` and `<e2>…</e2>` mark the entities."""
    found = _MARKED.fullmatch(marked)
    if not found:
        raise BadInputError(f"{place}: the sentence has not <e1>…</e1> and then <e2>…</e2>, once")
    parts = found.groups()
    ends = list(itertools.accumulate(len(part) for part in parts))
    return {
        "id": identifier,
        "text": "".join(parts),
        "subject": [ends[0], ends[1]],
        "object": [ends[2], ends[3]],
        "subject_type": "",
        "object_type": "",
        "relation": None,
    }


def write_relations(
    relations: RelationSet,
    output: str,
    *,
    training: RelationSet | None = None,
    entities: EntityMode = "masked",
    sequence_length: int = 128,
    **options: Any,
) -> RelationExtractionManifest:
    """Writes the records of examples, completely or not at all.

    Args:
        relations: the examples.
        output: directory that is new or empty.
        training: the training set, whose relations and types the model learns; by default the
            examples themselves.
        entities: whether entities are masked, or kept between markers.
        sequence_length: largest number of positions of a row.
        **options: as for `write_task_records`.

    Returns:
        The manifest.

    Raises:
        BadInputError: the examples cannot be used, or the output exists or cannot be written.
    """
    training = training or relations
    for relation_set in (relations, training):
        check_relations(relation_set)
    if training.examples[0]["relation"] is None:
        raise BadInputError(
            f"{training.path}: has no relations to learn; give the training set as --training-input"
        )
    source = options.get("preset") or options.get("vocabulary") or "vocabulary"
    maker = RelationRows(relations, training, entities, source)
    return write_task_records(maker, output, sequence_length=sequence_length, **options)


class RelationRows(RowMaker[RelationExtractionManifest]):
    """Makes the rows of examples, and counts what the training set does not have.

    `unknown_types` counts entities with a type that is not in the training set; their marker names
    only their role. `unknown_relations` counts examples with such a relation, which a model cannot
    predict.

    Args:
        relations: the examples.
        training: the training set.
        entities: whether entities are masked, or kept between markers.
        vocabulary: name of the vocabulary, for errors.
    """

    manifest_class = RelationExtractionManifest
    title = "records of relations"

    def __init__(
        self, relations: RelationSet, training: RelationSet, entities: EntityMode, vocabulary: str
    ) -> None:
        super().__init__()
        self._relations = relations
        self._training = training
        self._entities = entities
        self._vocabulary = vocabulary
        self._labels = training.labels()
        self._label_ids = {label: label_id for label_id, label in enumerate(self._labels, start=1)}
        self.counts.update(full_rows=0, unknown_types=0, unknown_relations=0)
        self.lines[EXAMPLES_FILE] = relations.examples
        self.is_labelled = relations.examples[0]["relation"] is not None

    def rows(
        self, pieces: Sequence[str], text_rules: TextRules, sequence_length: int
    ) -> Iterator[Row]:
        """Yields a row for each example."""
        subject_types: set[str] = set()
        object_types: set[str] = set()
        if self._entities == "masked":
            for example in self._training.examples:
                subject_types.add(example["subject_type"])
                object_types.add(example["object_type"])
        self._markers = make_markers(pieces, subject_types, object_types, self._vocabulary)
        packer = RelationPacker(
            pieces,
            text_rules,
            self._markers,
            entities=self._entities,
            sequence_length=sequence_length,
        )
        pack = tf.function(packer, reduce_retracing=True)
        firsts = range(0, len(self._relations.examples), _EXAMPLES_AT_ONCE)
        for first in show_progress(firsts, len(firsts), "batches"):
            batch = self._relations.examples[first : first + _EXAMPLES_AT_ONCE]
            yield from self._batch(batch, pack, sequence_length)

    def described(self) -> dict[str, Any]:
        """Returns the relations, their counts, the markers of entities, and the files' layout."""
        counts = collections.Counter(row["relation"] for row in self._relations.examples)
        return {
            "labels": self._labels,
            "label_counts": [counts[label] for label in self._labels],
            "markers": self._markers,
            "entities": self._entities,
            "layout": self._relations.layout,
        }

    def summary(self, manifest: RelationExtractionManifest, seconds: float) -> Iterator[str]:
        """Yields the numbers of examples, and of types and relations new to the training set."""
        counts = manifest.counts
        yield (
            f"{counts['rows']:,} examples, {len(manifest.labels)} relations, "
            f"{len(manifest.markers)} markers; {counts['full_rows']:,} rows are full and may have "
            "been cut"
        )
        for name, title in (("types", "entities of types"), ("relations", "relations")):
            count = counts[f"unknown_{name}"]
            if count:
                yield f"{title} that the training set does not have: {count:,}"

    def _batch(
        self, examples: Sequence[ExampleLine], pack: Callable, sequence_length: int
    ) -> Iterator[Row]:
        """Packs some examples as rows, and counts them."""
        rows = pack(
            text=string_tensor([example["text"] for example in examples]),
            subject=tf.constant([example["subject"] for example in examples]),
            object=tf.constant([example["object"] for example in examples]),
            subject_type=string_tensor([example["subject_type"] for example in examples]),
            object_type=string_tensor([example["object_type"] for example in examples]),
        )
        splits = rows.row_splits.numpy()
        token_ids = np.split(rows.flat_values.numpy(), splits[1:-1])
        for example, row in zip(examples, token_ids, strict=True):
            relation = example["relation"]
            label = 0 if relation is None else self._label_ids.get(relation, 0)
            self.counts["unknown_relations"] += relation is not None and label == 0
            self.counts["full_rows"] += len(row) == sequence_length
            if self._entities == "masked":
                self.counts["unknown_types"] += self._num_unknown_types(example)
            numbers = {SECOND_START: len(row), LABEL: label}
            yield Row(numbers, {ROW_TOKEN_IDS: row})

    def _num_unknown_types(self, example: ExampleLine) -> int:
        """Returns how many entities of an example have a type without its own marker."""
        markers = []
        if example["subject_type"]:
            markers.append(f"{SUBJECT}={example['subject_type']}")
        if example["object_type"]:
            markers.append(f"{OBJECT}={example['object_type']}")
        return sum(marker not in self._markers for marker in markers)
