"""The F1 of entities by the strict rule of `seqeval`: type and both borders must be right.

`seqeval` takes a second to import, so the functions that need it import it.
"""

from collections.abc import Collection, Sequence

import numpy as np

from spanbert_tf.tasks.named_entities.records import OUTSIDE, SentenceLine
from spanbert_tf.tasks.report import ClassScore, ClassScores

_SHARES = {"f1": "f1-score", "precision": "precision", "recall": "recall"}
_AVERAGES = ("micro avg", "macro avg", "weighted avg")
NO_ENTITY, OTHER_BORDERS = "no entity", "other borders"


def word_labels(
    sentence: SentenceLine, labels: Sequence[str], piece_labels: np.ndarray
) -> list[str]:
    """The labels of a sentence's words, which are those of their first pieces."""
    return [
        OUTSIDE if first < 0 else labels[piece_labels[first]] for first in sentence["first_pieces"]
    ]


def score_labels(
    gold: Sequence[list[str]], predicted: Sequence[list[str]]
) -> tuple[dict[str, float], ClassScores]:
    """F1, precision and recall of all entities, and of each type with averages, in percent.

    Args:
        gold: gold labels of the words of each sentence, `B-TYPE`, `I-TYPE` or `O`.
        predicted: predicted labels, as `gold`.
    """
    from seqeval.metrics import classification_report
    from seqeval.scheme import IOB2

    report = classification_report(
        gold, predicted, mode="strict", scheme=IOB2, output_dict=True, zero_division=0
    )
    shares = {
        name: {ours: 100 * float(values[theirs]) for ours, theirs in _SHARES.items()}
        for name, values in report.items()
    }
    scores = {n: ClassScore(n, support=int(report[n]["support"]), **shares[n]) for n in report}
    averages = [scores.pop(name) for name in _AVERAGES]
    return shares["micro avg"], ClassScores(list(scores.values()), averages)


def confused_types(
    gold: Sequence[Collection[tuple]], predicted: Sequence[Collection[tuple]]
) -> tuple[list[str], list[str]]:
    """The type of each gold entity, and what was predicted in its place.

    This is a type if both borders are right, otherwise `OTHER_BORDERS` if a predicted entity
    overlaps the gold entity, otherwise `NO_ENTITY`. Predicted entities that overlap no gold entity
    are added; the first list has `NO_ENTITY` for them.

    Args:
        gold: start, end (exclusive) and type of the entities of each sentence.
        predicted: as `gold`.
    """
    pairs = []
    for expected, found in zip(gold, predicted, strict=True):
        types = {place[:2]: place[2] for place in found}
        for start, end, name in sorted(expected):
            if (start, end) in types:
                pairs.append((name, types[start, end]))
            elif _overlaps((start, end), found):
                pairs.append((name, OTHER_BORDERS))
            else:
                pairs.append((name, NO_ENTITY))
        for start, end, name in sorted(found):
            if not _overlaps((start, end), expected):
                pairs.append((NO_ENTITY, name))
    return [name for name, _ in pairs], [name for _, name in pairs]


def _overlaps(place: tuple[int, int], others: Collection[tuple]) -> bool:
    start, end = place
    return any(start < other[1] and other[0] < end for other in others)


def entity_spans(sentence: SentenceLine, labels: list[str]) -> list[tuple[int, int, str]]:
    """Start, end (exclusive) and type of the entities that strict scoring recognises."""
    from seqeval.scheme import IOB2, Entities

    words = sentence["words"]
    found = Entities([labels], IOB2).entities[0] if labels else []
    return [(words[one.start][0], words[one.end - 1][1], one.tag) for one in found]
