"""Finds named entities and noun phrases with spaCy and maps them to word pieces.

The masking schemes "entities" and "noun_phrases" mask these spans (SpanBERT, section 6.1).
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from spanbert_tf.data.manifest import ANNOTATIONS, Annotation
from spanbert_tf.errors import ConfigurationError
from spanbert_tf.terminal import print_line
from spanbert_tf.text.word_segmentation import byte_positions, load_spacy_model

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.tokens import Doc, Span

# Numerical entities are excluded (SpanBERT, section 6.1: "non-numerical named entities").
NUMERICAL_LABELS = frozenset(
    {"DATE", "TIME", "PERCENT", "MONEY", "QUANTITY", "ORDINAL", "CARDINAL"}
)
# spaCy needs about 10 KB of memory for each character of the texts in a batch.
_MAX_CHARACTERS = 10_000  # of a text; longer paragraphs are cut
_BATCH_SIZE = 16
# The components of a spaCy model that each annotation needs.
_COMPONENTS: dict[Annotation, tuple[str, ...]] = {
    "entities": ("ner",),
    "noun_phrases": ("tagger", "attribute_ruler", "parser"),
}
_SHARED_COMPONENTS = frozenset({"tok2vec", "transformer"})
_TITLES: dict[Annotation, str] = {"entities": "entities", "noun_phrases": "noun phrases"}


def check_annotations(annotations: Sequence[str], model: str) -> tuple[Annotation, ...]:
    """Checks names of annotations, and which of them the model can find.

    If the model finds only some of the annotations, a line is printed for each of the others. In
    Chinese text, for example, spaCy finds entities but no noun phrases.

    Args:
        annotations: names of `ANNOTATIONS`; repeated names count once.
        model: name or path of a spaCy model.

    Returns:
        The names of the annotations that the model finds, in the order of `ANNOTATIONS`.

    Raises:
        ConfigurationError: a name is unknown, spaCy or the model is not installed, or the model
            finds none of the annotations.
    """
    for name in annotations:
        if name not in ANNOTATIONS:
            raise ConfigurationError(
                f"--annotate: {name!r} is not one of {', '.join(ANNOTATIONS)}; correct the list"
            )
    ordered = tuple(name for name in ANNOTATIONS if name in annotations)
    if not ordered:
        return ()
    language = load_spacy_model(model, "--annotate")
    lacks = {name: _lack(name, language) for name in ordered}
    found = tuple(name for name in ordered if not lacks[name])
    if not found:
        reasons = "; ".join(dict.fromkeys(lacks.values()))
        raise ConfigurationError(f"--spacy-model {model}: {reasons}; name another model")
    for name in ordered:
        if lacks[name]:
            print_line(
                f"--spacy-model {model}: {lacks[name]}: records get no {_TITLES[name]}, only "
                f"{_TITLES[found[0]]}"
            )
    return found


def _lack(annotation: Annotation, language: "Language") -> str:
    """Returns what a model lacks to find an annotation; an empty string if it lacks nothing."""
    missing = sorted(set(_COMPONENTS[annotation]) - set(language.pipe_names))
    if missing:
        return f"has no component {', '.join(missing)}"
    if annotation == "noun_phrases" and language.vocab.get_noun_chunks is None:
        return f"spaCy has no rule for noun phrases of language {language.lang}"
    return ""


class SpanFinder:
    """Finds annotated spans in text.

    Args:
        annotations: the result of `check_annotations`.
        model: name or path of a spaCy model.

    Raises:
        ConfigurationError: spaCy or the model is not installed.
    """

    def __init__(self, annotations: Sequence[Annotation], model: str) -> None:
        self._annotations = annotations
        self._language = load_spacy_model(model, "--annotate")
        needed = {part for name in annotations for part in _COMPONENTS[name]}
        for component in set(self._language.pipe_names) - needed - _SHARED_COMPONENTS:
            self._language.disable_pipe(component)

    def find(self, paragraphs: Sequence[str]) -> tuple[np.ndarray, ...]:
        """Finds the spans of each annotation.

        Args:
            paragraphs: the text.

        Returns:
            For each annotation an array, int64 [E, 2]: start and end (exclusive) of each span, in
            UTF-8 bytes of the concatenated paragraphs, in the order of the text.
        """
        spans: dict[Annotation, list[tuple[int, int]]] = {name: [] for name in self._annotations}
        texts = list(itertools.chain.from_iterable(map(_cut, paragraphs)))
        start = 0
        for document in self._language.pipe(texts, batch_size=_BATCH_SIZE):
            for name in self._annotations:
                for span in _spans_of(name, document):
                    spans[name].append((start + span.start_char, start + span.end_char))
            start += len(document.text)
        places = byte_positions("".join(paragraphs))
        return tuple(
            places[np.array(spans[name], np.int64).reshape(-1, 2)] for name in self._annotations
        )


def _spans_of(annotation: Annotation, document: "Doc") -> Iterator["Span"]:
    if annotation == "noun_phrases":
        yield from document.noun_chunks
        return
    for span in document.ents:
        if span.label_ not in NUMERICAL_LABELS:
            yield span


def _cut(paragraph: str) -> Iterator[str]:
    """Cuts a paragraph into texts of at most `_MAX_CHARACTERS`, between words if possible."""
    start = 0
    while len(paragraph) - start > _MAX_CHARACTERS:
        stop = paragraph.rfind(" ", start, start + _MAX_CHARACTERS) + 1
        if not stop:
            stop = start + _MAX_CHARACTERS
        yield paragraph[start:stop]
        start = stop
    yield paragraph[start:]


def spans_to_pieces(
    spans: np.ndarray, piece_starts: np.ndarray, piece_ends: np.ndarray, begins_word: np.ndarray
) -> np.ndarray:
    """Maps spans of bytes to spans of word pieces that consist of whole words.

    spaCy and BERT split text differently: "cannot" is two tokens for spaCy and one word for BERT. A
    span that ends inside a word is extended to the whole word, so that no part of a word is masked
    alone. Spans that would share a word are joined. Spans without a piece are dropped.

    Args:
        spans: int64 [E, 2], start and end (exclusive) of each span, in bytes.
        piece_starts: int64 [T], start of each piece, in bytes.
        piece_ends: int64 [T], end (exclusive) of each piece, in bytes.
        begins_word: bool [T], whether a piece begins a word.

    Returns:
        int64 [≤ E, 2], first and last piece (inclusive) of each span, in order.
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
    first = first[order]
    last = np.maximum.accumulate(last[order])
    is_apart = np.append(True, first[1:] > last[:-1])[: len(first)]
    ends = np.flatnonzero(np.append(is_apart, True))[1:] - 1
    return np.stack([first[is_apart], last[ends]], axis=1)
