"""The F1 of entities, by `seqeval`'s strict rule: type and both borders must be right.

It takes a second to import, and so where it counts.
"""

from collections.abc import Sequence

import numpy as np

from spanbert_tf.tasks.named_entities.records import OUTSIDE, SentenceLine
from spanbert_tf.tasks.report import ClassScore

_SHARES = {"f1": "f1-score", "precision": "precision", "recall": "recall"}


def word_labels(
    sentence: SentenceLine, labels: Sequence[str], piece_labels: np.ndarray
) -> list[str]:
    """The labels of a sentence's words: those of their first pieces."""
    return [
        OUTSIDE if first < 0 else labels[piece_labels[first]] for first in sentence["first_pieces"]
    ]


def score_labels(
    gold: Sequence[list[str]], predicted: Sequence[list[str]]
) -> tuple[dict[str, float], list[ClassScore]]:
    """F1, precision and recall of all entities, in percent; and of each type.

    Args:
        gold: labels of the words of each sentence, `B-TYPE`, `I-TYPE` or `O`.
        predicted: as `gold`.
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
    types = [name for name in report if not name.endswith(" avg")]
    of_types = [ClassScore(name=n, support=int(report[n]["support"]), **shares[n]) for n in types]
    return shares["micro avg"], of_types


def entity_spans(sentence: SentenceLine, labels: list[str]) -> list[tuple[int, int, str]]:
    """Characters, the end exclusive, and types of the entities that strict scoring sees."""
    from seqeval.scheme import IOB2, Entities

    words = sentence["words"]
    found = Entities([labels], IOB2).entities[0] if labels else []
    return [(words[one.start][0], words[one.end - 1][1], one.tag) for one in found]
