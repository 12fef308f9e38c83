"""Reads and checks a WordPiece vocabulary. Nothing here needs TensorFlow."""

import os
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from spanbert_tf.errors import BadInputError, MismatchError
from spanbert_tf.files.contents import refuse_device
from spanbert_tf.text.languages import DEFAULT_LANGUAGE, check_language

if TYPE_CHECKING:
    import numpy as np

PAD_TOKEN = "[PAD]"
UNKNOWN_TOKEN = "[UNK]"
START_TOKEN = "[CLS]"
END_TOKEN = "[SEP]"
MASK_TOKEN = "[MASK]"
SPECIAL_TOKENS = (PAD_TOKEN, UNKNOWN_TOKEN, START_TOKEN, END_TOKEN, MASK_TOKEN)
CONTINUATION_PREFIX = "##"
# In place of an entity's words, or around them.
EntityMode = Literal["masked", "text"]
SUBJECT = "SUBJ"
OBJECT = "OBJ"
BOUNDARIES = tuple(f"{role}_{side}" for role in (SUBJECT, OBJECT) for side in ("START", "END"))
# TACRED needs so many markers of entities: 4 borders, 2 roles, 2 types of subjects, 17 of objects.
NUM_MARKERS = 25
# Share of a text's characters that the letters of a new vocabulary cover: SentencePiece's default.
LETTER_COVERAGE = 0.9995
_UNUSED = re.compile(r"\[unused([1-9][0-9]*)\]")
_NO_WORD = re.compile(r"\[.+\]|<.+>")  # [CLS], [unused1], and <S> of Chinese BERT
_REPLACE = (
    "put another entry, such as [unused1000], in its place: the lines after it must keep their "
    "numbers"
)


class TextRules(NamedTuple):
    """What is done to text before it is split into word pieces, and by whose rules."""

    lowercase: bool  # whether it is lower-cased
    strip_accents: bool  # whether accents are stripped; only where it is lower-cased
    language: str = DEFAULT_LANGUAGE  # whose rule splits it into sentences

    @classmethod
    def of(
        cls, lowercase: bool, strip_accents: bool | None = None, language: str | None = None
    ) -> "TextRules":
        """Makes rules with Hugging Face's default: accents are stripped if text is lower-cased.

        Raises:
            ValueError: accents would be stripped from cased text, or the language has no rule.
        """
        if strip_accents and not lowercase:
            raise ValueError("strip_accents=True needs lowercase=True")
        if strip_accents is None:
            strip_accents = lowercase
        return cls(lowercase, strip_accents, check_language(language or DEFAULT_LANGUAGE))

    def describe(self) -> str:
        """Says the rules in words: the casing; and the language, unless it is English."""
        text = "cased"
        if self.lowercase:
            text = f"lower-cased, accents {'stripped' if self.strip_accents else 'kept'}"
        return text if self.language == DEFAULT_LANGUAGE else f"{text}, language {self.language}"

    def options(self) -> str:
        """Returns the options of `spanbert-tf prepare` and `convert` for the casing."""
        if not self.lowercase:
            return "--cased"
        return "--lowercase" if self.strip_accents else "--lowercase --keep-accents"


class SpecialTokenIds(NamedTuple):
    """Ids of the tokens that are added to text."""

    start: int
    end: int
    pad: int

    @classmethod
    def from_vocabulary(cls, vocabulary: Sequence[str]) -> "SpecialTokenIds":
        """Looks the tokens up."""
        return cls(*(vocabulary.index(token) for token in (START_TOKEN, END_TOKEN, PAD_TOKEN)))


def load_vocabulary(path: str | os.PathLike) -> list[str]:
    """Reads `vocab.txt`: one word piece a line, the line number is its id.

    Raises:
        BadInputError: the file is missing, empty, not UTF-8, has an entry twice or an empty line,
            or lacks one of the special tokens.
    """
    refuse_device(path)
    try:
        with open(path, encoding="utf-8-sig", newline="\n") as file:
            vocabulary = file.read().replace("\r\n", "\n").removesuffix("\n").split("\n")
    except FileNotFoundError as error:
        raise BadInputError(
            f"{path}: no such vocabulary; write one with `spanbert-tf prepare vocabulary`"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError(f"{path}: cannot be read as UTF-8 text ({error})") from error
    check_vocabulary(vocabulary, path)
    return vocabulary


def check_vocabulary(vocabulary: list[str], path: str | os.PathLike) -> None:
    """Raises `BadInputError` unless entries are unique and all special tokens are there."""
    first_line: dict[str, int] = {}
    for line, piece in enumerate(vocabulary, start=1):
        if not piece:
            advice = "remove it" if line == len(vocabulary) else _REPLACE
            raise BadInputError(f"{path}: line {line}: empty entry; {advice}")
        if piece in first_line:
            raise BadInputError(
                f"{path}: line {line}: {piece!r} stands in line {first_line[piece]} already; "
                f"{_REPLACE}"
            )
        first_line[piece] = line
    missing = [token for token in SPECIAL_TOKENS if token not in first_line]
    if missing:
        raise BadInputError(f"{path}: lacks {', '.join(missing)}; add a line for each")


def check_case(vocabulary: Sequence[str], path: str, text_rules: TextRules) -> None:
    """Refuses a vocabulary whose entries do not fit text of this casing.

    Scripts without case, such as the Chinese one, fit both.

    Raises:
        MismatchError: vocabulary and casing do not fit.
    """
    words = [piece for piece in vocabulary if not _NO_WORD.fullmatch(piece)]
    is_cased = any(piece != piece.lower() for piece in words)
    if text_rules.lowercase and is_cased:
        raise MismatchError(
            f"{path}: has entries with upper-case letters, but --lowercase was given; leave it out"
        )
    has_case = any(piece.lower() != piece.upper() for piece in words)
    if has_case and not text_rules.lowercase and not is_cased:
        raise MismatchError(
            f"{path}: has no entry with an upper-case letter; give --lowercase with it"
        )
    accented = next(filter(has_accents, words), None) if text_rules.strip_accents else None
    if accented:
        raise MismatchError(
            f"{path}: has entries with accents ({accented}), which --lowercase strips from the "
            "text; give --keep-accents, too"
        )


def has_accents(piece: str) -> bool:
    """Whether stripping accents, as BERT does, changes a piece."""
    if piece.isascii():
        return False
    decomposed = unicodedata.normalize("NFD", piece)
    return any(unicodedata.category(character) == "Mn" for character in decomposed)


def is_continuation(piece: str) -> bool:
    """Whether a piece continues a word (begins with `##`)."""
    return piece.startswith(CONTINUATION_PREFIX)


def begin_words(vocabulary: Sequence[str]) -> "np.ndarray":
    """Whether each entry begins a word where nothing else tells words; bool [V]."""
    import numpy as np  # here, so that --help does not wait for it

    return np.array([not is_continuation(piece) for piece in vocabulary], bool)


def make_markers(
    vocabulary: Sequence[str],
    subject_types: Iterable[str] = (),
    object_types: Iterable[str] = (),
    place: str = "vocabulary",
) -> dict[str, str]:
    """Returns the map from markers to entries of the vocabulary.

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
    found = find_unused_entries(vocabulary)
    if len(found) < len(names):
        raise BadInputError(
            f"{place}: has {len(found)} entries [unused1], [unused2] …, of which {len(names)} are "
            "needed as markers of entities; use BERT's own vocabulary, or give your entity types "
            "fewer names"
        )
    return dict(zip(names, found, strict=False))


def find_unused_entries(vocabulary: Sequence[str]) -> list[str]:
    """Returns the entries `[unused1]`, `[unused2]` … of a vocabulary, in order of their numbers."""
    matches = filter(None, map(_UNUSED.fullmatch, vocabulary))
    return [match[0] for match in sorted(matches, key=lambda match: int(match[1]))]
