"""Reads texts of any length in windows, and joins the clusters of the windows.

The memory of a resolver grows with the square of a text. A window is a run of segments of the text,
which are encoded one by one anyway; neighbouring windows share some. Clusters of two windows that
share a mention are one. This is not in the paper, which reads documents whole.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from spanbert_tf.data.documents import TextReader
from spanbert_tf.serving.description import Description
from spanbert_tf.tasks.coreference.conll import clean_clusters
from spanbert_tf.tasks.coreference.graph import clusters_of
from spanbert_tf.tasks.graphs import string_tensor
from spanbert_tf.text.tokenization import WordPieceTokenizer

_FIRST_CHARACTER = "first_character"  # of a window in its text
_SHARED = 4  # neighbouring windows share one segment of so many


def window_bounds(num_segments: int, size: int) -> list[tuple[int, int]]:
    """Returns the first segment of each window, and the segment after its last one.

    Args:
        num_segments: number of segments of a document, at least 1.
        size: largest number of segments of a window, at least 2.
    """
    num_shared = max(size // _SHARED, 1)
    firsts = range(0, max(num_segments - num_shared, 1), size - num_shared)
    return [(first, min(first + size, num_segments)) for first in firsts]


def cut_text(description: Description, item: dict, max_tokens: int) -> list[dict]:
    """Cuts a text into windows; a text that fits into one stays as it is.

    Args:
        description: what an export says of itself.
        item: `text`; `speakers`, a name on a line for each line with words, or empty; and
            `sentence_starts`, the first character of each sentence.
        max_tokens: largest number of positions of a window.

    Returns:
        The windows, as `item`. Each has its first character, too.
    """
    text = string_tensor([item["text"]])
    length = description.sequence_length
    size = max(max_tokens // length, 2)
    tokenizer = WordPieceTokenizer.shared(description.vocabulary, description.text_rules)
    num_pieces = int(tokenizer.count(text)[0])
    if num_pieces <= size * (length - 2) // 2:  # two neighbouring segments hold more than one takes
        return [item]
    reader = TextReader(list(description.vocabulary), description.text_rules, length)
    document = reader(text, sentence_starts=np.array([item["sentence_starts"]], "int32"))
    sizes = document.segmented.segment_lengths.flat_values.numpy() - 2
    bounds = window_bounds(len(sizes), size)
    if len(bounds) == 1:
        return [item]
    piece_starts = document.piece_starts.flat_values.numpy()
    first_pieces = np.cumsum([0, *sizes])
    line_ends = [place for place, letter in enumerate(item["text"]) if letter == "\n"]
    # Of each piece, the number of its line among the lines with words.
    lines = np.unique(np.searchsorted(line_ends, piece_starts), return_inverse=True)[1]
    names = item["speakers"].split("\n") if item["speakers"] else []
    characters = [0, *piece_starts[first_pieces[1:-1]].tolist(), len(item["text"])]
    windows = []
    for first, end in bounds:
        begin, after = characters[first], characters[end]
        first_line, last_line = lines[first_pieces[first]], lines[first_pieces[end] - 1]
        starts = [start - begin for start in item["sentence_starts"] if begin < start < after]
        window = {
            "text": item["text"][begin:after],
            "speakers": "\n".join(names[first_line : last_line + 1]),
            "sentence_starts": [0, *starts],
            _FIRST_CHARACTER: begin,
        }
        windows.append(window)
    return windows


def join_windows(windows: Sequence[dict], found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Joins what was found in the windows of a text; clusters that share a mention become one.

    Args:
        windows: the windows, as `cut_text` returned them.
        found: the outputs of the graph function for each: `starts`, `ends`, `clusters`, int32 [K].

    Returns:
        The outputs for the text. Clusters are in the order of their first mentions.
    """
    clusters = []
    for window, outputs in zip(windows, found, strict=True):
        begin = window[_FIRST_CHARACTER]
        starts, ends = outputs["starts"] + begin, outputs["ends"] + begin
        clusters += clusters_of(starts, ends, outputs["clusters"])
    joined = clean_clusters(clusters)
    mentions = [(*span, number) for number, spans in enumerate(joined) for span in spans]
    starts, ends, numbers = np.array(mentions, "int32").reshape(-1, 3).T
    return {"starts": starts, "ends": ends, "clusters": numbers}
