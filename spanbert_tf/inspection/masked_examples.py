"""Shows a masked row as coloured text."""

from collections.abc import Sequence

import numpy as np
from rich.text import Text

from spanbert_tf.terminal import escape_controls
from spanbert_tf.text.vocabulary import MASK_TOKEN, is_continuation

_MASKED, _RANDOM, _KEPT = "bold white on blue", "bold white on red", "bold black on green"
_PLACE = "dim"
STYLED_KINDS = (
    ("original→[MASK]", _MASKED),
    " ",
    ("original→random", _RANDOM),
    " ",
    ("original→original", _KEPT),
)


def masked_example(row: dict[str, np.ndarray], vocabulary: Sequence[str]) -> Text:
    """One row as coloured text: `original→replacement` where a token is masked.

    Where the row has SegaBERT's indices, `¶p.s` stands before the first token of sentence s of
    paragraph p, and `¶p.s+t` where the row begins at token t of a sentence. A pair ends with its
    label: whether the second segment follows or is random.

    Args:
        row: features of one row of a batch.
        vocabulary: entries in order of their ids.
    """
    used = row["mask_weights"] == 1
    originals = dict(zip(row["mask_positions"][used], row["mask_ids"][used], strict=True))
    text = Text()
    for position in range(int(row["padding_mask"].sum())):
        shown = escape_controls(vocabulary[row["token_ids"][position]])
        style = ""
        if position in originals:
            original = escape_controls(vocabulary[originals[position]])
            style = _KEPT if shown == original else _MASKED if shown == MASK_TOKEN else _RANDOM
            shown = f"{original}→{shown}"
        place = _sentence_begin(row, position)
        joined = is_continuation(shown) and position > 0 and not place
        if not joined and position:
            text.append(" ")
        if place:
            text.append(place, _PLACE).append(" ")
        text.append(shown.removeprefix("##") if joined else shown, style)
    if "next_sentence_labels" in row:
        kind = "random" if row["next_sentence_labels"] else "the next"
        text.append(f" ({kind} segment)", _PLACE)
    return text


def _sentence_begin(row: dict[str, np.ndarray], position: int) -> str:
    """`¶paragraph.sentence` at the first token of a sentence and of the row, else nothing."""
    if "token_indices" not in row or position in (0, int(row["padding_mask"].sum()) - 1):
        return ""
    token = row["token_indices"][position]
    if token and position > 1:
        return ""
    place = f"¶{row['paragraph_indices'][position]}.{row['sentence_indices'][position]}"
    return f"{place}+{token}" if token else place
