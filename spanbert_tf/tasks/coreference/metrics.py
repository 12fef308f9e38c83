"""MUC, B³, CEAF and mention detection, by the rules of the official scorer 8.01.

Pradhan et al., 2014, "Scoring coreference partitions of predicted mentions: a reference
implementation". Clusters are lists of spans; singletons count where they are given.
"""

import collections
import math
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

METRICS = ("mentions", "muc", "bcub", "ceafm", "ceafe")
_AVERAGED = ("muc", "bcub", "ceafe")  # CoNLL's score

Mention = Hashable
Cluster = Sequence[Mention]


class Counts(NamedTuple):
    """What recall and precision are ratios of; those of documents are added up.

    Attributes:
        recall_part: numerator of the recall.
        recall_whole: its denominator.
        precision_part: numerator of the precision.
        precision_whole: its denominator.
    """

    recall_part: float = 0.0
    recall_whole: float = 0.0
    precision_part: float = 0.0
    precision_whole: float = 0.0

    def __add__(self, other: "Counts") -> "Counts":  # type: ignore[override]
        """Those of both."""
        return Counts(*(a + b for a, b in zip(self, other, strict=True)))

    def percentages(self) -> tuple[float, float, float]:
        """Recall, precision and F1 in percent, cut (not rounded) to two decimals."""
        recall = self.recall_part / self.recall_whole if self.recall_whole else 0.0
        precision = self.precision_part / self.precision_whole if self.precision_whole else 0.0
        total = precision + recall
        f1 = 2 * precision * recall / total if total else 0.0
        return _cut(recall), _cut(precision), _cut(f1)


def score_document(
    key: Sequence[Cluster], response: Sequence[Cluster]
) -> tuple[dict[str, Counts], int]:
    """The counts of one document for each metric.

    Args:
        key: gold clusters.
        response: predicted clusters. A right mention counts at its first occurrence alone; repeats
            of wrong ones stay, as in the official scorer.

    Returns:
        Name of a metric → its counts; and how many repeats were left out.
    """
    cluster_of = {mention: n for n, cluster in enumerate(key) for mention in cluster}
    response, num_repeats = _without_repeats(response, cluster_of)
    shared = _shared_mentions(key, response, cluster_of)
    counts = {
        "mentions": _mention_detection(cluster_of, response),
        "muc": _muc(key, response, cluster_of),
        "bcub": _b_cubed(key, response, cluster_of),
        "ceafm": _ceaf(shared, sum(map(len, key)), sum(map(len, response))),
        "ceafe": _ceaf(_dice(shared, key, response), len(key), len(response)),
    }
    return counts, num_repeats


def average_f1(counts: Mapping[str, Counts]) -> float:
    """CoNLL's score: the mean of the three cut F1 of MUC, B³ and CEAF-e."""
    return sum(counts[name].percentages()[2] for name in _AVERAGED) / len(_AVERAGED)


def _cut(ratio: float) -> float:
    return math.floor(ratio * 10000) / 100


def _without_repeats(
    response: Sequence[Cluster], cluster_of: Mapping[Mention, int]
) -> tuple[list[list[Mention]], int]:
    seen: set[Mention] = set()
    kept, num_repeats = [], 0
    for cluster in response:
        mentions = []
        for mention in cluster:
            if mention in seen:
                num_repeats += 1
                continue
            if mention in cluster_of:
                seen.add(mention)
            mentions.append(mention)
        if mentions:
            kept.append(mentions)
    return kept, num_repeats


def _mention_detection(cluster_of: Mapping[Mention, int], response: Sequence[Cluster]) -> Counts:
    found = {mention for cluster in response for mention in cluster}
    num_right = len(found & cluster_of.keys())
    return Counts(num_right, len(cluster_of), num_right, len(found))


def _muc(
    key: Sequence[Cluster], response: Sequence[Cluster], cluster_of: Mapping[Mention, int]
) -> Counts:
    """Vilain et al., 1995: the links that clusters need at least."""
    num_right = 0
    for cluster in response:
        found = [cluster_of[mention] for mention in cluster if mention in cluster_of]
        num_right += len(found) - len(set(found))
    links_of_key, links_of_response = (
        sum(len(cluster) - 1 for cluster in clusters if cluster) for clusters in (key, response)
    )
    return Counts(num_right, links_of_key, num_right, links_of_response)


def _b_cubed(
    key: Sequence[Cluster], response: Sequence[Cluster], cluster_of: Mapping[Mention, int]
) -> Counts:
    """Bagga and Baldwin, 1998: of each mention's cluster, how much is right."""
    recall = precision = 0.0
    for cluster in response:
        found = collections.Counter(cluster_of[m] for m in cluster if m in cluster_of)
        for number, size in found.items():
            recall += size * size / len(key[number])
            precision += size * size / len(cluster)
    return Counts(recall, sum(map(len, key)), precision, sum(map(len, response)))


def _shared_mentions(
    key: Sequence[Cluster], response: Sequence[Cluster], cluster_of: Mapping[Mention, int]
) -> np.ndarray:
    """How many mentions each two clusters share, float [key, response]."""
    shared = np.zeros([len(key), len(response)])
    for number, cluster in enumerate(response):
        for mention in cluster:
            if mention in cluster_of:
                shared[cluster_of[mention], number] += 1
    return shared


def _dice(shared: np.ndarray, key: Sequence[Cluster], response: Sequence[Cluster]) -> np.ndarray:
    """Twice the shared mentions by the mentions of both, float [key, response]."""
    sizes = [np.array(list(map(len, clusters)), float) for clusters in (key, response)]
    both = sizes[0][:, np.newaxis] + sizes[1][np.newaxis]
    return 2 * shared / np.maximum(both, 1)


def _ceaf(similarity: np.ndarray, whole_of_key: int, whole_of_response: int) -> Counts:
    """Luo, 2005: the best one-to-one alignment of the clusters."""
    from scipy.optimize import linear_sum_assignment  # takes a while, and one metric needs it

    rows, columns = linear_sum_assignment(similarity, maximize=True)
    # Added in the order of the key, as the official scorer does: the last digit can depend on it.
    best = float(sum(similarity[rows, columns].tolist()))
    return Counts(best, whole_of_key, best, whole_of_response)
