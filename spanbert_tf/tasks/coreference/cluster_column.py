"""The last column of CoNLL's files: which mentions begin and end at each word.

`(3` begins a mention of cluster 3, `3)` ends one, `(3)` is one, and `-` or `_` is nothing; several
stand side by side, with or without `|` between them. Nothing here needs TensorFlow.
"""

import collections
import functools
import re
from collections.abc import Iterable, Sequence

from spanbert_tf.errors import BadInputError

Span = tuple[int, int]  # first and last word, inclusive
Clusters = list[list[Span]]

# No file numbers its clusters beyond 18 digits; without a bound a long number takes quadratic time.
_PART = re.compile(r"\((\d{1,18})\)|\((\d{1,18})|(\d{1,18})\)")
_BETWEEN = re.compile(r"[|\s]*")
_NOTHING = ("-", "_", "*")


class ClusterColumn:
    """Reads the column of one document, cell by cell.

    Args:
        place: place of the document, for errors.
    """

    def __init__(self, place: str) -> None:
        self._place = place
        self._clusters: dict[str, list[Span]] = {}  # in the order of their first brackets
        self._open: dict[str, list[int]] = collections.defaultdict(list)

    def read(self, cell: str, word: int, line: int) -> None:
        """Reads the cell of a word.

        Args:
            cell: cell of the column.
            word: number of the word in the document.
            line: line of the file, for errors.

        Raises:
            BadInputError: the cell is malformed, or a mention ends that has not begun.
        """
        if cell in _NOTHING:
            return
        brackets = _brackets(cell)
        if brackets is None:
            raise BadInputError(
                f"{self._place}: line {line}: {cell[:40]!r} is no cell of the coreference column, "
                "such as (3 or 3) or (3)|(4"
            )
        # As the official scorer: whole mentions, then beginnings, then ends.
        whole, begun, ended = brackets
        for cluster in whole:
            self._clusters.setdefault(cluster, []).append((word, word))
        for cluster in begun:
            self._clusters.setdefault(cluster, [])
            self._open[cluster].append(word)
        for cluster in ended:
            if not self._open[cluster]:
                raise BadInputError(
                    f"{self._place}: line {line}: a mention of cluster {cluster} ends that has not "
                    "begun in this document"
                )
            self._clusters[cluster].append((self._open[cluster].pop(), word))

    def clusters(self) -> Clusters:
        """The clusters of the document, in the order of their first brackets.

        Raises:
            BadInputError: a mention has not ended.
        """
        for cluster, starts in self._open.items():
            if starts:
                raise BadInputError(
                    f"{self._place}: a mention of cluster {cluster} begins at word {starts[0]} "
                    "(from 0) and does not end in this document"
                )
        return list(self._clusters.values())


@functools.lru_cache(maxsize=2**14)  # documents number their clusters from 0: cells come again
def _brackets(cell: str) -> tuple[tuple[str, ...], ...] | None:
    """Clusters of whole mentions, of beginnings and of ends; `None` if there is anything else."""
    parts = list(_PART.finditer(cell))
    if not parts or _BETWEEN.fullmatch(_PART.sub("", cell)) is None:
        return None
    return tuple(tuple(part[n] for part in parts if part[n] is not None) for n in (1, 2, 3))


def cluster_cells(num_words: int, clusters: Sequence[Iterable[Span]]) -> list[str]:
    """The column's cells of a document, the clusters numbered from 0.

    Args:
        num_words: number of words of the document.
        clusters: spans of words.
    """
    ends: list[list[tuple[int, str]]] = [[] for _ in range(num_words)]
    whole: list[list[str]] = [[] for _ in range(num_words)]
    starts: list[list[tuple[int, str]]] = [[] for _ in range(num_words)]
    for number, spans in enumerate(clusters):
        for start, end in spans:
            if start == end:
                whole[start].append(f"({number})")
            else:  # of those that begin together the longest stands first, and ends last
                starts[start].append((-end, f"({number}"))
                ends[end].append((-start, f"{number})"))
    return [
        "|".join(
            [text for _, text in sorted(starts[word])]
            + whole[word]
            + [text for _, text in sorted(ends[word])]
        )
        or "-"
        for word in range(num_words)
    ]
