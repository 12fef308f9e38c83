"""Sentences with named entities, and the formats that they come in.

Columns of CoNLL-2003, JSON lines with spans of characters, CrossRE's JSON lines.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, NotRequired

from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12

from spanbert_tf.data.word_places import join_words
from spanbert_tf.errors import BadInputError
from spanbert_tf.files.text_files import read_json_objects, read_text_file

_DOCUMENT = "-DOCSTART-"
_COLUMNS = re.compile("[ \t]+")  # and no other space, which can be part of a word
_BEGINS, _GOES_ON = "BS", "IE"  # B and I of BIO; E ends one of BIOES, S is one of a single word


class Entity(NamedTuple):
    """A named entity.

    Attributes:
        start: its first character.
        end: the character after its last.
        type: type of the entity.
    """

    start: int
    end: int
    type: str


@dataclasses.dataclass(frozen=True)
class Sentence:
    """A sentence, or another text that is tagged as a whole.

    Attributes:
        id: to name it by.
        text: text of the sentence.
        words: first character of each word and the one after it; `None`: the tokenizer's words.
        entities: none of them overlaps another; `None`: not known.
    """

    id: str
    text: str
    words: tuple[tuple[int, int], ...] | None
    entities: tuple[Entity, ...] | None


@dataclasses.dataclass(frozen=True)
class SentenceSet:
    """What a file holds.

    Attributes:
        path: path of the file.
        sentences: in their order.
        repairs: what was mended while reading → how often.
    """

    path: str
    sentences: list[Sentence]
    repairs: dict[str, int] = dataclasses.field(default_factory=dict)


def sentence_of_words(
    identifier: str, words: Sequence[str], spans: Sequence[tuple[int, int, str]] | None
) -> Sentence:
    """A sentence with a space between its words.

    Args:
        identifier: identifier of the sentence.
        words: any texts.
        spans: entities: first word, last word (inclusive) and type.
    """
    text, places = join_words(words)
    entities = None
    if spans is not None:
        entities = tuple(Entity(places[a][0], places[b][1], kind) for a, b, kind in sorted(spans))
    return Sentence(identifier, text, tuple(places), entities)


def spans_of_tags(tags: Sequence[str], place: str) -> tuple[list[tuple[int, int, str]], int]:
    """Entities of words that are tagged in BIO or BIOES.

    A tag that goes on with an entity which is not there begins it, as in `conlleval`; so the tags
    of the original CoNLL-2003 files, which have `B-` only between neighbours, are read as well.

    Args:
        tags: `O`, `B-TYPE` and so on.
        place: place of the sentence, for errors.

    Returns:
        First word, last word (inclusive) and type of each entity; and how many tags of the kinds
        `I-` and `E-` had nothing to go on with.

    Raises:
        BadInputError: a tag is neither of BIO nor of BIOES.
    """
    spans: list[list] = []
    is_open, num_begun = False, 0
    for number, tag in enumerate(tags):
        if tag == "O":
            is_open = False
            continue
        kind, dash, name = tag.partition("-")
        if not dash or not name or kind not in (*_BEGINS, *_GOES_ON):
            raise BadInputError(
                f"{place}: word {number + 1}: {tag!r} is no tag of BIO or BIOES, such as B-PER"
            )
        goes_on = kind in _GOES_ON and is_open and spans[-1][2] == name
        num_begun += kind in _GOES_ON and not goes_on
        if goes_on:
            spans[-1][1] = number
        else:
            spans.append([number, number, name])
        is_open = kind in "BI"
    return [(first, last, name) for first, last, name in spans], num_begun


def check_spans(spans: Sequence[tuple[int, int, str]], length: int, place: str) -> None:
    """Refuses spans, ends inclusive, that are not in a sentence or overlap.

    Args:
        spans: first and last unit and type of each entity.
        length: units of the sentence: words or characters.
        place: place of the sentence, for errors.

    Raises:
        BadInputError: one does; the message names it.
    """
    last_end = -1
    for start, end, name in sorted(spans):
        shown = f"{place}: entity {name!r} from {start} to {end}"
        if not 0 <= start <= end < length:
            raise BadInputError(f"{shown}: is not in its sentence of {length}; mend its borders")
        if start <= last_end:
            raise BadInputError(f"{shown}: overlaps the one before it; keep one of them")
        if not name or any(character.isspace() for character in name):
            raise BadInputError(f"{shown}: its type is empty or has a space")
        last_end = end


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
