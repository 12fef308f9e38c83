"""Files of named entities: columns of CoNLL-2003, JSON lines with characters, CrossRE."""

import re
from collections.abc import Callable, Mapping
from typing import NotRequired

from typing_extensions import TypedDict

from data_prep.examples.tagged_sentences import (
    Entity,
    Sentence,
    SentenceSet,
    check_spans,
    sentence_of_words,
    spans_of_tags,
)
from spanbert_tf.errors import BadInputError
from spanbert_tf.files.text_files import read_json_objects, read_text_file

_DOCUMENT = "-DOCSTART-"
_COLUMNS = re.compile("[ \t]+")  # and no other space, which can be part of a word


class _Span(TypedDict):
    start: int
    end: int
    label: str


class _Line(TypedDict):
    text: str
    id: NotRequired[str | int]
    entities: NotRequired[list[_Span] | None]


class _CrossReLine(TypedDict):
    doc_key: str
    sentence: list[str]
    ner: list[list]


def read_conll2003(path: str) -> SentenceSet:
    """Reads columns: a word a line, its tag last, and a blank line after each sentence.

    Args:
        path: path of the file, .gz or not; tags in BIO (of either kind) or BIOES.

    Raises:
        BadInputError: a line has one column, or a tag is of another kind; the message names it.
    """
    sentences: list[Sentence] = []
    rows: list[list[str]] = []
    num_begun, first_line = 0, 1
    for number, line in enumerate([*read_text_file(path).split("\n"), ""], start=1):
        columns = _COLUMNS.split(line.strip(" \t\r"))
        if columns != [""] and columns[0] != _DOCUMENT:
            if len(columns) < 2:
                raise BadInputError(
                    f"{path}: line {number}: {line!r} has one column; a word and its tag are needed"
                )
            first_line = first_line if rows else number
            rows.append(columns)
        elif rows:
            place = f"{path}: line {first_line}"
            spans, begun = spans_of_tags([row[-1] for row in rows], place)
            sentences.append(sentence_of_words(str(first_line), [row[0] for row in rows], spans))
            num_begun += begun
            rows = []
    return SentenceSet(path, sentences, {"entities begun by I- or E-": num_begun})


def read_entity_lines(path: str) -> SentenceSet:
    """Reads JSON lines `{"text": …, "entities": [{"start": …, "end": …, "label": …}]}`.

    Args:
        path: path of the file, .gz or not. Characters are counted from 0, the end is exclusive. An
            `id` is kept; lines without `entities` can be predicted only.

    Raises:
        BadInputError: a line is not JSON, lacks a key, or an entity is not in its text, overlaps
            another or is empty.
    """
    sentences = []
    for number, line in enumerate(read_json_objects(path, _Line), start=1):
        place = f"{path}: entry {number}"
        spans = line.get("entities")
        entities = None
        if spans is not None:
            found = [(span["start"], span["end"] - 1, span["label"]) for span in spans]
            check_spans(found, len(line["text"]), place)
            entities = tuple(Entity(start, end + 1, label) for start, end, label in sorted(found))
        identifier = str(line.get("id", number))
        sentences.append(Sentence(identifier, line["text"], None, entities))
    return SentenceSet(path, sentences)


def read_crossre(path: str) -> SentenceSet:
    """Reads CrossRE's own JSON lines (Bassignana and Plank, 2022); of relations, nothing.

    Args:
        path: path of the file, .gz or not; `ner` has first and last word (inclusive) and type.

    Raises:
        BadInputError: a line is not JSON, lacks a key, or an entity is not in its sentence or
            overlaps another.
    """
    sentences = []
    for number, line in enumerate(read_json_objects(path, _CrossReLine), start=1):
        place = f"{path}: entry {number} ({line['doc_key']})"
        for span in line["ner"]:
            if [type(value) for value in span] != [int, int, str]:
                raise BadInputError(f"{place}: ner: {span} is not [first, last, type]")
        spans = [(first, last, name) for first, last, name in line["ner"]]
        check_spans(spans, len(line["sentence"]), place)
        sentences.append(sentence_of_words(line["doc_key"], line["sentence"], spans))
    return SentenceSet(path, sentences)


READERS: Mapping[str, Callable[[str], SentenceSet]] = {
    "conll2003": read_conll2003,
    "jsonlines": read_entity_lines,
    "crossre": read_crossre,
}
