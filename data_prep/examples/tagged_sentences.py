"""Sentences with named entities, as the readers of their formats hand them on."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from spanbert_tf.data.word_places import join_words
from spanbert_tf.errors import BadInputError

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
