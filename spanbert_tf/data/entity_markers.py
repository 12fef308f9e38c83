"""Which entry of the vocabulary stands for which entity. Nothing here needs TensorFlow."""

import re
from collections.abc import Iterable, Sequence
from typing import Literal

from spanbert_tf.errors import BadInputError

# In place of an entity's words, or around them.
EntityMode = Literal["masked", "text"]
SUBJECT, OBJECT = "SUBJ", "OBJ"
BOUNDARIES = tuple(f"{role}_{side}" for role in (SUBJECT, OBJECT) for side in ("START", "END"))
_UNUSED = re.compile(r"\[unused([1-9][0-9]*)\]")


def make_markers(
    vocabulary: Sequence[str],
    subject_types: Iterable[str] = (),
    object_types: Iterable[str] = (),
    place: str = "vocabulary",
) -> dict[str, str]:
    """The map from markers to entries of the vocabulary.

    As in the original code (run_tacred.py) the first four of `[unused1]`, `[unused2]` … stand at
    the borders of entities that are kept, and the next ones for roles and types; unlike there, in
    an order that depends on nothing but the types: one for each role with any other type, and those
    of the types sorted.

    Args:
        vocabulary: entries in order of their ids.
        subject_types: types of the training set's subjects.
        object_types: types of the training set's objects.
        place: where the vocabulary is, for errors.

    Returns:
        `SUBJ_START`, `SUBJ_END`, `OBJ_START`, `OBJ_END`, `SUBJ`, `OBJ`, `SUBJ=TYPE` … → entry.

    Raises:
        BadInputError: the vocabulary has too few such entries.
    """
    names = [*BOUNDARIES, SUBJECT, OBJECT]
    for role, types in ((SUBJECT, subject_types), (OBJECT, object_types)):
        names += [f"{role}={name}" for name in sorted(set(types) - {""})]
    found = sorted((int(m[1]), m[0]) for m in map(_UNUSED.fullmatch, vocabulary) if m)
    if len(found) < len(names):
        raise BadInputError(
            f"{place}: has {len(found)} entries [unused1], [unused2] …, of which {len(names)} are "
            "needed as markers of entities; use BERT's own vocabulary, or give your entity types "
            "fewer names"
        )
    return dict(zip(names, (piece for _, piece in found), strict=False))
