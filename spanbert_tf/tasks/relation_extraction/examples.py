"""Examples by tokens or by characters as texts with two entities, checked where they come in.

Files and raw inputs share it. Nothing here needs TensorFlow.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NotRequired

from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12

from spanbert_tf.data.word_places import join_words
from spanbert_tf.errors import BadInputError
from spanbert_tf.files.text_files import check_json_value
from spanbert_tf.tasks.relation_extraction.schema import Place

_BRACKETS = {"lrb": "(", "rrb": ")", "lsb": "[", "rsb": "]", "lcb": "{", "rcb": "}"}
_PENN_BRACKETS = {f"-{name}-": bracket for name, bracket in _BRACKETS.items()}


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
