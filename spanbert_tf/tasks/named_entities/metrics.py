"""The F1 of entities by the strict rule of `seqeval`: type and both borders must be right.

`seqeval` takes a second to import, so the functions that need it import it.
"""

from collections.abc import Collection, Sequence

import numpy as np

from spanbert_tf.tasks.named_entities.records import OUTSIDE, SentenceLine
from spanbert_tf.tasks.report import ClassScore, ClassScores

_AVERAGES = ("micro avg", "macro avg", "weighted avg")
NO_ENTITY = "no entity"
OTHER_BORDERS = "other borders"


def word_labels(
    sentence: SentenceLine, labels: Sequence[str], piece_labels: np.ndarray
) -> list[str]:
    """Returns the labels of a sentence's words, which are those of their first pieces."""
    return [
        OUTSIDE if first < 0 else labels[piece_labels[first]] for first in sentence["first_pieces"]
    ]


def score_labels(
    gold: Sequence[list[str]], predicted: Sequence[list[str]]
) -> tuple[dict[str, float], ClassScores]:
    """Computes F1, precision and recall of all entities and of each type, in percent.

    Args:
        gold: gold labels of the words of each sentence, `B-TYPE`, `I-TYPE` or `O`.
        predicted: predicted labels, as `gold`.

    Returns:
        The scores of all entities; and those of each type, with averages.
    """
    from seqeval.metrics import classification_report
    from seqeval.scheme import IOB2

    report = classification_report(
        gold, predicted, mode="strict", scheme=IOB2, output_dict=True, zero_division=0
    )
    scores: dict[str, ClassScore] = {}
    for name, values in report.items():
        scores[name] = ClassScore(
            name,
            precision=100 * float(values["precision"]),
            recall=100 * float(values["recall"]),
            f1=100 * float(values["f1-score"]),
            support=int(values["support"]),
        )
    averages = [scores.pop(name) for name in _AVERAGES]
    micro = averages[0]
    overall = {"f1": micro.f1, "precision": micro.precision, "recall": micro.recall}
    return overall, ClassScores(list(scores.values()), averages)


def confused_types(
    gold: Sequence[Collection[tuple]], predicted: Sequence[Collection[tuple]]
) -> tuple[list[str], list[str]]:
    """Pairs the type of each gold entity with what was predicted in its place.

    What was predicted is a type if both borders are right, otherwise `OTHER_BORDERS` if a predicted
    entity overlaps the gold entity, otherwise `NO_ENTITY`. Predicted entities that overlap no gold
    entity are added; the first list has `NO_ENTITY` for them.

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
    """Whether a place has a character in common with one of several others."""
    start, end = place
    return any(start < other[1] and other[0] < end for other in others)


def entity_spans(sentence: SentenceLine, labels: list[str]) -> list[tuple[int, int, str]]:
    """Returns start, end (exclusive) and type of the entities that strict scoring recognizes."""
    from seqeval.scheme import IOB2, Entities

    words = sentence["words"]
    found = Entities([labels], IOB2).entities[0] if labels else []
    return [(words[entity.start][0], words[entity.end - 1][1], entity.tag) for entity in found]
