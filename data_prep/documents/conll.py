"""CoNLL-2012 files, and the three columns of GUM's: a word a line, clusters in the last column."""

import os
import re
from collections.abc import Iterator

from data_prep.documents.conll_columns import Columns, equal_columns
from data_prep.documents.document import Document, clean_clusters, normalise_words
from spanbert_tf.errors import BadInputError
from spanbert_tf.tasks.coreference.cluster_column import ClusterColumn
from spanbert_tf.tasks.coreference.document_header import read_header

_END = re.compile(r"#\s*end document")
_WORD, _SPEAKER, _MIN_COLUMNS = 3, 9, 12
_GUM_COLUMNS, _GUM_WORD = 3, 1
_NO_SPEAKER = ("-", "*", "_")
_NO_CLUSTER = "-"
_FIRST_LINE = re.compile(r"\s*([^\n]*)")


def is_conll(text: str) -> bool:
    """Whether a text begins as such files do."""
    return read_header(_FIRST_LINE.match(text)[1]) is not None


def read_conll(path: str, text: str) -> list[Document]:
    """The documents of a file.

    Args:
        path: path of the file, for errors; it names a document that has no name (GUM's).
        text: rows of at least 12 columns, split at tabs or else at white space (CoNLL-2012: word
            4th, speaker 10th, clusters last), or of 3, split at tabs (GUM: number, word, clusters);
            a blank line ends a sentence. Documents of 3 columns without any blank line tell no
            sentences.

    Raises:
        BadInputError: a line is wrong; the message names it.
    """
    return list(_Reader(path).documents(text))


def _columns(line: str) -> list[str]:
    """At tabs where they make up the columns, whose cells may hold white space; else there."""
    columns = line.split("\t")
    if len(columns) == _GUM_COLUMNS:
        return columns
    columns = [cell.strip(" ") or cell for cell in line.strip().split("\t")]
    # Several tabs between two columns are white space, too.
    return columns if len(columns) >= _MIN_COLUMNS and all(columns) else line.split()


def _parts(text: str) -> Iterator[tuple[int, str, str | None]]:
    """The first line and each that begins with `#`, with its number and the lines after it."""
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
    def __init__(self, path: str) -> None:
        self._path = path
        self._begin: tuple[str | None, ...] | None = None

    def documents(self, text: str) -> Iterator[Document]:
        for number, line, rows in _parts(text):
            if line.startswith("#") and (begin := read_header(line)):
                self._check_ended(number)
                self._start(begin, number)
            elif line.startswith("#") and _END.match(line):
                if self._begin is None:
                    problem = "a document ends that has not begun"
                    raise BadInputError(f"{self._place(number)}: {problem}")
                yield self._finished()
            elif self._begin is not None or not line.startswith("#"):
                self._read_line(line, number)
            if rows is not None:
                self._read_rows(rows, number + 1)
        if self._begin is not None:  # the last `#end document` may be missing
            yield self._finished()

    def _read_rows(self, text: str, first: int) -> None:
        """Reads lines none of which begins with `#`."""
        columns = None
        if self._begin is not None and self._ends_sentence:
            columns = equal_columns(text, _MIN_COLUMNS)
        if columns is None:
            for number, line in enumerate(text.split("\n"), start=first):
                self._read_line(line, number)
            return
        self._read_columns(columns, first)
        self._ends_sentence = not text.rpartition("\n")[2].strip()

    def _read_columns(self, columns: Columns, first: int) -> None:
        num_words = len(self._words)
        for row, cell in columns.cells_other_than(_NO_CLUSTER, -1):
            self._column.read(cell, num_words + row, first + columns.lines[row])
        words = columns.cells(_WORD)
        speakers = [""] * len(words)
        for row, name in columns.cells_other_than("-", _SPEAKER):
            speakers[row] = "" if name in _NO_SPEAKER else name
        self._words += normalise_words(words)
        self._speakers += speakers
        self._starts += [num_words + start for start in columns.sentence_starts]
        self._tells_sentences = True

    def _read_line(self, line: str, number: int) -> None:
        if not line.strip():
            self._ends_sentence = True
        elif self._begin is not None:
            self._read_row(_columns(line), number)
        else:
            raise BadInputError(
                f"{self._place(number)}: stands before any `#begin document (NAME); part 000`"
            )

    def _place(self, number: int) -> str:
        return f"{self._path}: line {number}"

    def _check_ended(self, number: int) -> None:
        if self._begin is not None:
            raise BadInputError(
                f"{self._place(number)}: a document begins before `#end document` of the one before"
            )

    def _start(self, begin: tuple[str | None, ...], number: int) -> None:
        self._begin = begin
        self._words: list[str] = []
        self._speakers: list[str] = []
        self._starts: list[int] = []
        self._ends_sentence = True
        self._tells_sentences = False
        self._column = ClusterColumn(f"{self._path}: the document of line {number}")

    def _read_row(self, columns: list[str], number: int) -> None:
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
        # GUM's files mostly do not; with blank lines they do.
        self._tells_sentences = len(columns) != _GUM_COLUMNS or len(self._starts) > 1
        self._column.read(columns[-1].strip(), len(self._words), number)
        self._words += normalise_words([word])
        self._speakers.append("" if speaker in _NO_SPEAKER else speaker)

    def _finished(self) -> Document:
        name, part, bare_name = self._begin
        self._begin = None
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
