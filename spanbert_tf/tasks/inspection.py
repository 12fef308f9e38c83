"""What `inspect` shows of a task's records in words: texts with marked parts, and counts of labels.

A part that is marked stands between » and «, in colour on a terminal, and its name after it.
"""

from collections.abc import Iterable, Mapping, Sequence

from rich.table import Table
from rich.text import Text

from spanbert_tf.console import DataConsole
from spanbert_tf.terminal import escape_controls
from spanbert_tf.text.vocabulary import CONTINUATION_PREFIX, is_continuation

_MARKED, _NAME = "bold black on green", "green"
Part = tuple[int, int, str]  # first character, the one after the last, name


def marked_text(text: str, parts: Iterable[Part]) -> Text:
    """A text with parts of it marked and named; a name may be empty."""
    marked, end = Text(), 0
    for start, stop, name in sorted(parts):
        start = max(start, end)
        marked.append(escape_controls(text[end:start]))
        marked.append(f"»{escape_controls(text[start:stop])}«", _MARKED)
        if name:
            marked.append(f" {escape_controls(name)}", _NAME)
        end = stop
    return marked.append(escape_controls(text[end:]))


def marked_pieces(pieces: Sequence[str], spans: Iterable[Part]) -> Text:
    """A row as words, as the model reads it; of spans, the last piece is inside."""
    text, places = "", []
    for number, piece in enumerate(pieces):
        if number and not is_continuation(piece):
            text += " "
        shown = piece.removeprefix(CONTINUATION_PREFIX)
        places.append((len(text), len(text) + len(shown)))
        text += shown
    return marked_text(
        text, [(places[first][0], places[last][1], name) for first, last, name in spans]
    )


def print_label_counts(
    console: DataConsole, counts: Mapping[str, int], title: str = "label"
) -> None:
    """Prints how many there are of each label of all records, and their share."""
    total = sum(counts.values())
    if not total:
        return
    table = Table(title, "number", "share")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, number in counts.items():
        table.add_row(name, f"{number:,}", f"{number / total:.1%}")
    console.print(table)
