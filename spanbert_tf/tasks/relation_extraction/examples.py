"""Texts with two entities, by tokens or by characters, checked where they come in.

Raw inputs, and the files of TACRED (Zhang et al., 2017) and of SemEval-2010 task 8 (Hendrickx et
al., 2010). Nothing here needs TensorFlow.
"""

import collections
import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, NotRequired

from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12

from spanbert_tf.data.word_places import join_words
from spanbert_tf.errors import BadInputError
from spanbert_tf.files.text_files import check_json_value, parse_json, read_text_file
from spanbert_tf.tasks.relation_extraction.records import ExampleLine, Place
from spanbert_tf.tasks.relation_extraction.scoring import OTHER
from spanbert_tf.terminal import escape_controls

_BRACKETS = {"lrb": "(", "rrb": ")", "lsb": "[", "rsb": "]", "lcb": "{", "rcb": "}"}
_PENN_BRACKETS = {f"-{name}-": bracket for name, bracket in _BRACKETS.items()}
NO_RELATION = "no_relation"
_LAYOUT = "TACRED is one JSON list of examples (of JSON lines: jq -s .)"
_SENTENCE = re.compile(r'(\d+)\t"?(.*?)"?')
# Each part ends at the first mark of its kind: where the rest does not fit, no later one helps, and
# looking for it would take cubic time.
_MARKED = re.compile("(?>(.*?)<e1>)(?>(.+?)</e1>)(?>(.*?)<e2>)(?>(.+?)</e2>)(.*)")
_RELATION = re.compile(r"Other|[A-Z][A-Za-z]*-[A-Z][A-Za-z]*\((e1,e2|e2,e1)\)")
_COMMENT = "Comment:"


class MarkedText(TypedDict):
    """A text with two entities."""

    text: str
    subject: Place
    object: Place
    subject_type: NotRequired[str]
    object_type: NotRequired[str]


class MarkedTokens(TypedDict):
    """TACRED's layout: ends are inclusive."""

    token: list[str]
    subj_start: int
    subj_end: int
    obj_start: int
    obj_end: int
    subj_type: NotRequired[str]
    obj_type: NotRequired[str]


def marked_text_of(item: Any, place: str) -> dict:
    """A raw input with all fields of a `MarkedText`, from tokens or characters.

    Args:
        item: as `MarkedTokens` where it has `token`, else as `MarkedText`.
        place: place of the input, for errors.

    Raises:
        BadInputError: a field is missing or of another type, or an entity is empty, not in its
            text, or overlaps the other.
    """
    if isinstance(item, Mapping) and "token" in item:
        return text_of_tokens(check_json_value(item, MarkedTokens, place), place)
    found = check_json_value(item, MarkedText, place)
    check_places(found["subject"], found["object"], len(found["text"]), "characters", place)
    return {"subject_type": "", "object_type": "", **found}


def text_of_tokens(item: MarkedTokens, place: str) -> dict:
    """A `MarkedText` with a space between the words; brackets of the Penn Treebank are brackets.

    Args:
        item: as in TACRED.
        place: place of the example, for errors.

    Raises:
        BadInputError: as `marked_text_of`.
    """
    words = [_PENN_BRACKETS.get(word.lower(), word) for word in item["token"]]
    spans = [[item[f"{role}_start"], item[f"{role}_end"] + 1] for role in ("subj", "obj")]
    check_places(*spans, len(words), "words", place)
    text, places = join_words(words)
    subject, entity = ([places[start][0], places[end - 1][1]] for start, end in spans)
    check_places(subject, entity, len(text), "characters", place)  # a word may be empty
    return {
        "text": text,
        "subject": subject,
        "object": entity,
        "subject_type": item.get("subj_type", ""),
        "object_type": item.get("obj_type", ""),
    }


def check_places(
    subject: Sequence[int], entity: Sequence[int], length: int, unit: str, place: str
) -> None:
    """Refuses entities that are empty, not in their text, or overlap.

    Args:
        subject: its first unit, and the one after its last.
        entity: the object's.
        length: units of the text.
        unit: what is counted, for errors.
        place: place of the example, for errors.
    """
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
    """What a file holds.

    Attributes:
        path: path of the file.
        layout: `"tacred"` or `"semeval2010"`, whose official scorer counts.
        negative: the relation of none.
        examples: in their order; their relations are `None` where the file has none.
    """

    path: str
    layout: str
    negative: str
    examples: list[ExampleLine]

    def labels(self) -> list[str]:
        """The relation of none, and the others sorted."""
        found = {example["relation"] for example in self.examples} - {None, self.negative}
        return [self.negative, *sorted(found)]


def check_relations(relations: RelationSet) -> None:
    """Refuses a file without examples or with relations in some alone, ids twice, controls.

    Raises:
        BadInputError: it is such a file; the message names the example.
    """
    path, examples = relations.path, relations.examples
    if not examples:
        raise BadInputError(f"{path}: holds no examples")
    counts = collections.Counter(example["id"] for example in examples)
    if twice := [identifier for identifier, count in counts.items() if count > 1]:
        raise BadInputError(f"{path}: example id {twice[0]!r} is there {counts[twice[0]]} times")
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
    """Reads a JSON list of examples; ends of entities are inclusive.

    Args:
        path: path of the file, .gz or not. Keys that are not needed (`stanford_pos` …) are ignored.

    Raises:
        BadInputError: it is not JSON, an example lacks a key, or an entity is not in its sentence
            or overlaps the other; the message names the entry.
    """
    examples = []
    entries = parse_json(read_text_file(path), list, path, _LAYOUT)
    for number, entry in enumerate(entries, start=1):
        place = f"{path}: entry {number}"
        found = check_json_value(entry, _Entry, place)
        identifier = str(found["id"])
        text = text_of_tokens(found, f"{place} ({identifier})")
        examples.append({"id": identifier, **text, "relation": found.get("relation")})
    return RelationSet(path, "tacred", NO_RELATION, examples)


def read_semeval2010(path: str) -> RelationSet:
    """Reads the task's own files: a line with number and sentence, its relation, a comment.

    Args:
        path: path of the file, .gz or not. Of the test set, sentences are followed by nothing.

    Raises:
        BadInputError: a line is none of these, or a sentence has not `<e1>…</e1>` and, after it,
            `<e2>…</e2>`; the message names the line.
    """
    examples = []
    for number, line in enumerate(read_text_file(path).split("\n"), start=1):
        line, place = line.strip("\r "), f"{path}: line {number}"
        if not line or line.startswith(_COMMENT):
            continue
        if sentence := _SENTENCE.fullmatch(line):
            examples.append(_example(*sentence.groups(), place))
        elif _RELATION.fullmatch(line) and examples and examples[-1]["relation"] is None:
            examples[-1]["relation"] = line
        else:
            raise BadInputError(
                f"{place}: {line[:40]!r} is no number with a sentence, no relation of the task "
                "that follows one, and no comment"
            )
    return RelationSet(path, "semeval2010", OTHER, examples)


def _example(identifier: str, marked: str, place: str) -> dict:
    found = _MARKED.fullmatch(marked)
    if not found:
        raise BadInputError(f"{place}: the sentence has not <e1>…</e1> and then <e2>…</e2>, once")
    parts = found.groups()
    ends = [sum(map(len, parts[:count])) for count in range(1, len(parts))]
    return {
        "id": identifier,
        "text": "".join(parts),
        "subject": [ends[0], ends[1]],
        "object": [ends[2], ends[3]],
        "subject_type": "",
        "object_type": "",
        "relation": None,
    }
