"""A document with clusters of mentions, as the readers of all formats hand it on."""

import dataclasses
from collections.abc import Iterable, Sequence

from spanbert_tf.errors import BadInputError
from spanbert_tf.tasks.coreference.cluster_column import Clusters

# What the words of OntoNotes stand for (original `minimize.py`).
_NORMALISED = {"/.": ".", "/?": "?"}


@dataclasses.dataclass(frozen=True)
class Document:
    """A document, or a part of one.

    Attributes:
        name: name of the document, as `#begin document` has it.
        part: its number.
        words: all words.
        sentence_starts: number of the first word of each sentence; `None` where the file does not
            tell sentences.
        speakers: speakers of each word; empty for none.
        clusters: spans of words, both ends inclusive.
        path: path of its file, for errors.
    """

    name: str
    part: int
    words: list[str]
    sentence_starts: list[int] | None
    speakers: list[str]
    clusters: Clusters
    path: str = dataclasses.field(default="", compare=False)

    @property
    def key(self) -> str:
        """Unique among documents: the original's `doc_key`."""
        return f"{self.name}_{self.part}"


def normalise_words(words: list[str]) -> list[str]:
    """The words that are meant by those of OntoNotes' files."""
    if not any(word in words for word in _NORMALISED):
        return words
    return [_NORMALISED.get(word, word) for word in words]


def clean_clusters(clusters: Iterable[Sequence[Sequence[int]]]) -> Clusters:
    """Clusters without repeats and empty ones, those that share a mention made one.

    In the order of their first mentions; so are the mentions of each.
    """
    distinct = [set(map(tuple, spans)) for spans in clusters]
    if sum(map(len, distinct)) > len(set().union(*distinct)):
        distinct = _merge(distinct)
    return sorted(sorted(mentions) for mentions in distinct if mentions)


def _merge(clusters: Iterable[set[tuple[int, int]]]) -> list[set[tuple[int, int]]]:
    """Those that share a mention as one."""
    cluster_of: dict[tuple[int, int], set[tuple[int, int]]] = {}
    for mentions in clusters:
        merged = set(mentions).union(*(cluster_of.get(mention, ()) for mention in mentions))
        for mention in merged:
            cluster_of[mention] = merged
    return list({id(mentions): mentions for mentions in cluster_of.values()}.values())


def check_documents(path: str, documents: Sequence[Document]) -> None:
    """Refuses documents that no records can be made of.

    Raises:
        BadInputError: there is no document, or two have the same key.
    """
    if not any(document.words for document in documents):
        raise BadInputError(f"{path}: holds no document with words")
    places: dict[str, str] = {}
    for document in documents:
        if document.key in places:
            first = places[document.key]
            where = "twice" if first == document.path else f"already, in {first}"
            raise BadInputError(f"{document.path}: document {document.key!r} is there {where}")
        places[document.key] = document.path
