"""The rows between two `#` lines of a CoNLL file, found all at once.

In nearly all files the rows of a document have the same number of columns, with spaces between
them. Where the cells stand is computed for such a text as a whole, and only those that are wanted
become strings; calling functions for each row takes more than twice as long.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np

_LINE_END, _SPACE, _LAST_ASCII = ord("\n"), ord(" "), 0x7F
_HIGHEST = 0xFFFF  # no space is beyond
_IS_FURTHER_SPACE = np.array(
    [code > _LAST_ASCII and chr(code).isspace() for code in range(_HIGHEST + 1)]
)


@dataclasses.dataclass(frozen=True)
class Columns:
    """Rows of one width.

    Attributes:
        text: the text.
        codes: its characters.
        starts: first character of each cell, [rows, columns].
        ends: the character after each.
        lines: line of each row in the text, from 0.
        sentence_starts: first row of each sentence.
    """

    text: str
    codes: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    lines: list[int]
    sentence_starts: list[int]

    def cells(self, column: int) -> list[str]:
        """The cells of a column."""
        return self._strings(self.starts[:, column], self.ends[:, column])

    def cells_other_than(self, character: str, column: int) -> Iterator[tuple[int, str]]:
        """Rows and cells of a column without those that are one certain character."""
        starts, ends = self.starts[:, column], self.ends[:, column]
        rows = np.flatnonzero((ends - starts != 1) | (self.codes[starts] != ord(character)))
        return zip(rows.tolist(), self._strings(starts[rows], ends[rows]), strict=True)

    def _strings(self, starts: np.ndarray, ends: np.ndarray) -> list[str]:
        text = self.text
        return [text[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]


def equal_columns(text: str, min_width: int) -> Columns | None:
    """The columns of rows split at white space; `None` if they have to be read one by one.

    Args:
        text: rows, and blank lines between sentences.
        min_width: columns of a row at least.
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
    return Columns(
        text=text,
        codes=codes,
        starts=starts.reshape(shape),
        ends=ends.reshape(shape),
        lines=lines.tolist(),
        sentence_starts=np.flatnonzero(follows_blank).tolist(),
    )


def _codes(text: str) -> np.ndarray:
    """The characters of a text as unsigned integers, of as few bytes as fit: less to go through."""
    if text.isascii():
        return np.frombuffer(text.encode("ascii"), np.uint8)
    codes = np.frombuffer(text.encode("utf-16-le", "surrogatepass"), "<u2")
    if len(codes) == len(text):
        return codes
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
