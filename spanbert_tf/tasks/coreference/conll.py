"""Reads documents from the formats of CoNLL-2012 and GUM, which have a word on each line.

In nearly all files the rows of a document have the same number of columns, with spaces between
them. For such a text the places of all cells are computed at once, and only the cells that are
needed become strings. Parsing row by row takes more than twice as long.
"""

import collections
import dataclasses
import functools
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from spanbert_tf.errors import BadInputError
from spanbert_tf.tasks.coreference.records import Clusters, Span
from spanbert_tf.terminal import escape_controls

# What the words of OntoNotes stand for (original `minimize.py`).
_NORMALISED = {"/.": ".", "/?": "?"}
MOST_DIGITS = 18  # of a part: Python reads no number of thousands of them
# A line with a longer number is a bare name. White space is taken once and for all (`++`): giving
# it back bit by bit would take quadratic time.
_BEGIN = re.compile(
    r"#\s*+begin document(?:\s++\((.*?)\);\s*+part\s++"
    rf"0*(\d{{1,{MOST_DIGITS}}})\s*$|(.*))"
)
_END = re.compile(r"#\s*end document")
_WORD, _SPEAKER, _MIN_COLUMNS = 3, 9, 12
_GUM_COLUMNS, _GUM_WORD = 3, 1
_NO_SPEAKER = ("-", "*", "_")
_NO_CLUSTER = "-"
# No file numbers its clusters beyond 18 digits; without a bound a long number takes quadratic time.
_MENTION = re.compile(r"\((\d{1,18})\)|\((\d{1,18})|(\d{1,18})\)")
_BETWEEN = re.compile(r"[|\s]*")
_NOTHING = ("-", "_", "*")
_FIRST_LINE = re.compile(r"\s*([^\n]*)")
_LINE_END, _SPACE, _LAST_ASCII = ord("\n"), ord(" "), 0x7F
_HIGHEST = 0xFFFF  # no space is beyond
_IS_FURTHER_SPACE = np.array(
    [code > _LAST_ASCII and chr(code).isspace() for code in range(_HIGHEST + 1)]
)


Borders = Mapping[int, list[tuple[int, int]]]  # word → other end and cluster of each mention


@dataclasses.dataclass(frozen=True)
class Document:
    """A document, or a part of one."""

    name: str  # as `#begin document` has it
    part: int
    words: list[str]
    sentence_starts: list[int] | None  # their first words; `None`: the file does not tell
    speakers: list[str]  # of each word; empty for none
    clusters: Clusters
    path: str = dataclasses.field(default="", compare=False)  # of its file, for errors
    conllu: str = dataclasses.field(default="", compare=False)  # its lines in a file of CorefUD
    # Name of a count → how many mentions or clusters of the file are not in `clusters`.
    left_out: Mapping[str, int] = dataclasses.field(default_factory=dict, compare=False)

    @property
    def key(self) -> str:
        """Unique among documents: the original's `doc_key`."""
        return f"{self.name}_{self.part}"


def _normalise(words: list[str]) -> list[str]:
    """Returns words without the slash that OntoNotes' files have before a full stop or a `?`."""
    if not any(word in words for word in _NORMALISED):
        return words
    return [_NORMALISED.get(word, word) for word in words]


def clean_clusters(clusters: Iterable[Sequence[Sequence[int]]]) -> Clusters:
    """Removes repeats and empty clusters, and merges clusters that share a mention.

    The clusters, and the mentions of each, are in the order of the text.
    """
    distinct: list[set[Span]] = [{(start, end) for start, end in spans} for spans in clusters]
    if sum(map(len, distinct)) > len(set().union(*distinct)):
        distinct = _merge(distinct)
    return sorted(sorted(mentions) for mentions in distinct if mentions)


def _merge(clusters: Iterable[set[Span]]) -> list[set[Span]]:
    """Merges clusters that share a mention.

    The largest of these clusters takes up the others, so that a cluster that goes through a whole
    book is not copied for each window.
    """
    cluster_of: dict[Span, set[Span]] = {}
    for mentions in clusters:
        parts = {id(mentions): mentions}
        for mention in mentions:
            earlier = cluster_of.get(mention, mentions)
            parts[id(earlier)] = earlier
        *smaller, merged = sorted(parts.values(), key=len)
        moved = mentions.union(*smaller)
        merged |= moved
        for mention in moved:
            cluster_of[mention] = merged
    return list({id(mentions): mentions for mentions in cluster_of.values()}.values())


def mention_borders(clusters: Sequence[Iterable[Span]]) -> tuple[Borders, Borders]:
    """Returns the mentions that begin at each word, and those that end at each word.

    Of mentions that begin at the same word, the longest comes first. Of mentions that end at the
    same word, it comes last.
    """
    begun, ended = collections.defaultdict(list), collections.defaultdict(list)
    for number, spans in enumerate(clusters):
        for start, end in spans:
            begun[start].append((end, number))
            ended[end].append((start, number))
    for mentions in (*begun.values(), *ended.values()):
        mentions.sort(key=lambda mention: (-mention[0], mention[1]))
    return begun, ended


class Header(NamedTuple):
    """What a line that begins a document says: name and part, or anything else.

    Attributes:
        name: the name, if there is a part.
        part: digits of the part.
        bare_name: all that stands there, if it is no name with a part, as in GUM's files.
    """

    name: str | None
    part: str | None
    bare_name: str | None


def read_header(line: str) -> Header | None:
    """Reads a line that begins a document; returns `None` if it begins none."""
    begin = _BEGIN.match(line)
    if begin is None:
        return None
    name, part, rest = begin.groups()
    return Header(name, part, None if rest is None else rest.strip())


def document_title(name: str, part: int) -> str:
    """Returns name and part as CoNLL-2012's files spell them; control characters are escaped."""
    return f"({escape_controls(name)}); part {part:03}"


class ClusterColumn:
    """Reads the last column of one document, cell by cell: mentions that begin and end.

    `(3` begins a mention of cluster 3, `3)` ends one, `(3)` is one, and `-` or `_` is nothing;
    several stand side by side, with or without `|` between them.
    """

    def __init__(self, place: str) -> None:
        self._place = place
        self._clusters: dict[str, list[Span]] = {}  # in the order of their first brackets
        self._open: dict[str, list[int]] = collections.defaultdict(list)

    def read(self, cell: str, word: int, line: int) -> None:
        """Reads the cell of a word, by its number in the document; the line is for errors.

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
        """Returns the clusters of the document, in the order of their first brackets.

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
    """Returns the clusters of whole mentions, of beginnings and of ends in a cell.

    Returns:
        The names of the clusters, in the order of the cell; `None` if the cell holds anything else.
    """
    parts = list(_MENTION.finditer(cell))
    if not parts or _BETWEEN.fullmatch(_MENTION.sub("", cell)) is None:
        return None
    found = []
    for group in (1, 2, 3):  # of `_MENTION`
        found.append(tuple(part[group] for part in parts if part[group] is not None))
    return tuple(found)


@dataclasses.dataclass(frozen=True)
class _Columns:
    """Rows of one width."""

    text: str
    codes: np.ndarray  # its characters
    starts: np.ndarray  # first character of each cell, [rows, columns]
    ends: np.ndarray  # the character after each
    lines: list[int]  # line of each row in the text, from 0
    sentence_starts: list[int]  # first row of each

    def cells(self, column: int) -> list[str]:
        """Returns the cells of a column."""
        return self._strings(self.starts[:, column], self.ends[:, column])

    def cells_other_than(self, character: str, column: int) -> Iterator[tuple[int, str]]:
        """Yields the row and the cell of each cell of a column that is not this character alone."""
        starts, ends = self.starts[:, column], self.ends[:, column]
        rows = np.flatnonzero((ends - starts != 1) | (self.codes[starts] != ord(character)))
        return zip(rows.tolist(), self._strings(starts[rows], ends[rows]), strict=True)

    def _strings(self, starts: np.ndarray, ends: np.ndarray) -> list[str]:
        text = self.text
        places = zip(starts.tolist(), ends.tolist(), strict=True)
        return [text[start:end] for start, end in places]


def equal_columns(text: str, min_width: int) -> _Columns | None:
    """Splits rows at white space, all at once.

    Args:
        text: the rows.
        min_width: smallest number of columns.

    Returns:
        The columns; `None` if the rows have different numbers of columns or fewer, or characters
        that need a closer look, and have to be read one by one.
    """
    codes = _codes(text)
    is_line_end = codes == _LINE_END
    is_space = np.ones(len(codes) + 2, bool)  # there is some before the text and after it
    is_space[1:-1] = is_line_end | (codes == _SPACE)
    # Tabs, at which cells may be split alone, control characters, and spaces beyond ASCII.
    if np.count_nonzero(codes <= _SPACE) != np.count_nonzero(is_space) - 2:
        return None
    beyond = codes[codes > _LAST_ASCII].astype(np.uint32)
    if _IS_FURTHER_SPACE[np.minimum(beyond, _HIGHEST)].any():
        return None
    borders = np.flatnonzero(is_space[1:] != is_space[:-1])
    starts, ends = borders[::2], borders[1::2]
    before = np.searchsorted(starts, np.flatnonzero(is_line_end))  # cells before each line's end
    widths = np.diff(np.concatenate([[0], before, [len(starts)]]))
    lines = np.flatnonzero(widths)
    if not len(lines) or widths[lines[0]] < min_width or np.ptp(widths[lines]):
        return None
    follows_blank = np.concatenate([[True], lines[1:] - lines[:-1] > 1])
    shape = (len(lines), widths[lines[0]])
    return _Columns(
        text=text,
        codes=codes,
        starts=starts.reshape(shape),
        ends=ends.reshape(shape),
        lines=lines.tolist(),
        sentence_starts=np.flatnonzero(follows_blank).tolist(),
    )


def _codes(text: str) -> np.ndarray:
    """Returns the characters of a text as unsigned integers of as few bytes as fit."""
    if text.isascii():
        return np.frombuffer(text.encode("ascii"), np.uint8)
    codes = np.frombuffer(text.encode("utf-16-le", "surrogatepass"), "<u2")
    if len(codes) == len(text):
        return codes
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")


def is_conll(text: str) -> bool:
    """Whether a text begins as such files do."""
    first_line = _FIRST_LINE.match(text)
    return first_line is not None and read_header(first_line[1]) is not None


def read_conll(path: str, text: str) -> list[Document]:
    """Reads the documents of a file, whose path names one that has no name (GUM's).

    Rows have at least 12 columns, split at tabs or else at white space (CoNLL-2012: word 4th,
    speaker 10th, clusters last), or 3, split at tabs (GUM: number, word, clusters); a blank line
    ends a sentence. Documents of 3 columns without any blank line tell no sentences.
    """
    return list(_Reader(path).documents(text))


def _columns(line: str) -> list[str]:
    """Splits a line at tabs, if that gives the columns of a format, and otherwise at white space.

    Cells between tabs may contain white space.
    """
    columns = line.split("\t")
    if len(columns) == _GUM_COLUMNS:
        return columns
    columns = [cell.strip(" ") or cell for cell in line.strip().split("\t")]
    # Several tabs between two columns are white space, too.
    return columns if len(columns) >= _MIN_COLUMNS and all(columns) else line.split()


def _parts(text: str) -> Iterator[tuple[int, str, str | None]]:
    """Splits a text before each line that begins with `#`.

    Yields:
        The number of the first line of a part, this line, and the lines after it as one text, or
        `None` if there are none.
    """
    number, start = 1, 0
    while start <= len(text):
        end = text.find("\n#", start)
        end = len(text) if end < 0 else end
        line_end = text.find("\n", start, end)
        if line_end < 0:
            yield number, text[start:end], None
        else:
            yield number, text[start:line_end], text[line_end + 1 : end]
        number += text.count("\n", start, end) + 1
        start = end + 1


class _Reader:
    """Reads the documents of a file.

    Args:
        path: path of the file, for errors and for the names of documents without one.
    """

    _ends_sentence: bool  # whether the next word begins a sentence
    _column: ClusterColumn

    def __init__(self, path: str) -> None:
        self._path = path
        self._header: Header | None = None  # of the document that is being read

    def documents(self, text: str) -> Iterator[Document]:
        """Yields the documents of the text of the file."""
        for number, line, rows in _parts(text):
            if line.startswith("#") and (header := read_header(line)):
                self._check_ended(number)
                self._start(header, number)
            elif line.startswith("#") and _END.match(line):
                if self._header is None:
                    problem = "a document ends that has not begun"
                    raise BadInputError(f"{self._place(number)}: {problem}")
                yield self._finished()
            elif self._header is not None or not line.startswith("#"):
                self._read_line(line, number)
            if rows is not None:
                self._read_rows(rows, number + 1)
        if self._header is not None:  # the last `#end document` may be missing
            yield self._finished()

    def _read_rows(self, text: str, first: int) -> None:
        """Reads lines, none of which begins with `#`; `first` is the number of the first one."""
        columns = None
        if self._header is not None and self._ends_sentence:
            columns = equal_columns(text, _MIN_COLUMNS)
        if columns is None:
            for number, line in enumerate(text.split("\n"), start=first):
                self._read_line(line, number)
            return
        self._read_columns(columns, first)
        self._ends_sentence = not text.rpartition("\n")[2].strip()

    def _read_columns(self, columns: _Columns, first: int) -> None:
        """Adds rows that were split at once."""
        num_words = len(self._words)
        for row, cell in columns.cells_other_than(_NO_CLUSTER, -1):
            self._column.read(cell, num_words + row, first + columns.lines[row])
        words = columns.cells(_WORD)
        speakers = [""] * len(words)
        for row, name in columns.cells_other_than("-", _SPEAKER):
            speakers[row] = "" if name in _NO_SPEAKER else name
        self._words += _normalise(words)
        self._speakers += speakers
        self._starts += [num_words + start for start in columns.sentence_starts]
        self._tells_sentences = True

    def _read_line(self, line: str, number: int) -> None:
        """Reads a row or a blank line."""
        if not line.strip():
            self._ends_sentence = True
        elif self._header is not None:
            self._read_row(_columns(line), number)
        else:
            raise BadInputError(
                f"{self._place(number)}: stands before any `#begin document (NAME); part 000`"
            )

    def _place(self, number: int) -> str:
        return f"{self._path}: line {number}"

    def _check_ended(self, number: int) -> None:
        """Refuses a line that begins a document inside of another one."""
        if self._header is not None:
            raise BadInputError(
                f"{self._place(number)}: a document begins before `#end document` of the one before"
            )

    def _start(self, header: Header, number: int) -> None:
        """Begins a document at its first line."""
        self._header = header
        self._words: list[str] = []
        self._speakers: list[str] = []
        self._starts: list[int] = []
        self._ends_sentence = True
        self._tells_sentences = False
        self._column = ClusterColumn(f"{self._path}: the document of line {number}")

    def _read_row(self, columns: list[str], number: int) -> None:
        """Adds the word of a row, with its speaker and its brackets."""
        if len(columns) == _GUM_COLUMNS:
            word, speaker = columns[_GUM_WORD], ""
        elif len(columns) >= _MIN_COLUMNS:
            word, speaker = columns[_WORD], columns[_SPEAKER]
        else:
            raise BadInputError(
                f"{self._place(number)}: has {len(columns)} columns; CoNLL-2012 has at least "
                f"{_MIN_COLUMNS}, GUM {_GUM_COLUMNS}"
            )
        if self._ends_sentence:
            self._starts.append(len(self._words))
            self._ends_sentence = False
        # Rows of GUM tell sentences only if there are blank lines between them.
        self._tells_sentences = len(columns) != _GUM_COLUMNS or len(self._starts) > 1
        self._column.read(columns[-1].strip(), len(self._words), number)
        self._words += _normalise([word])
        self._speakers.append("" if speaker in _NO_SPEAKER else speaker)

    def _finished(self) -> Document:
        """Returns the document that ends here."""
        assert self._header is not None  # the callers check that a document has begun
        name, part, bare_name = self._header
        self._header = None
        file_name = os.path.basename(self._path).removesuffix(".gz").rsplit(".", 1)[0]
        return Document(
            name=(name or bare_name or file_name),
            part=int(part or 0),
            words=self._words,
            sentence_starts=self._starts if self._tells_sentences else None,
            speakers=self._speakers,
            clusters=clean_clusters(self._column.clusters()),
            path=self._path,
        )
