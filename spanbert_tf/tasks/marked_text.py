"""Texts with marked parts, as `inspect` shows them.

A marked part is between » and «, in colour on a terminal, and is followed by its name.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from rich.text import Text

from spanbert_tf.terminal import escape_controls
from spanbert_tf.text.vocabulary import CONTINUATION_PREFIX, is_continuation

_MARKED = "bold black on green"
_NAME = "green"
Part = tuple[int, int, str]  # index of the first character, index after the last one, name


def pieces_of_row(x: dict[str, np.ndarray], vocabulary: Sequence[str]) -> list[str]:
    """Returns the word pieces of the first row of a batch, without padding.

    Args:
        x: `token_ids` and `padding_mask`, int [B, S].
        vocabulary: entries in order of their ids.
    """
    length = int(x["padding_mask"][0].sum())
    return [vocabulary[token] for token in x["token_ids"][0, :length]]


def marked_text(text: str, parts: Iterable[Part]) -> Text:
    """Marks parts of a text and names them; a name may be empty."""
    marked = Text()
    end = 0
    for start, stop, name in sorted(parts):
        start = max(start, end)
        marked.append(escape_controls(text[end:start]))
        marked.append(f"»{escape_controls(text[start:stop])}«", _MARKED)
        if name:
            marked.append(f" {escape_controls(name)}", _NAME)
        end = stop
    return marked.append(escape_controls(text[end:]))


def marked_pieces(pieces: Sequence[str], spans: Iterable[Part]) -> Text:
    """Joins word pieces to words and marks spans of pieces, whose ends are inclusive."""
    text = ""
    places = []
    for index, piece in enumerate(pieces):
        if index and not is_continuation(piece):
            text += " "
        shown = piece.removeprefix(CONTINUATION_PREFIX)
        places.append((len(text), len(text) + len(shown)))
        text += shown
    parts = [(places[first][0], places[last][1], name) for first, last, name in spans]
    return marked_text(text, parts)
