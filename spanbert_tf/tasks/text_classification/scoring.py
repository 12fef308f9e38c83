"""GLUE's metrics, by scikit-learn and SciPy (Wang et al., 2019, section 3).

Both take a second to import, and so where they compute.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from spanbert_tf.tasks.text_classification.glue import GLUE_TASKS

MAIN_METRIC = "score"
_POSITIVE = "1"  # the class whose F1 MRPC and QQP are scored by

Labels = Sequence[str] | Sequence[float]


def _accuracy(gold: Labels, predicted: Labels) -> float:
    """The share of right labels."""
    import sklearn.metrics

    return sklearn.metrics.accuracy_score(gold, predicted)


def _matthews(gold: Labels, predicted: Labels) -> float:
    """Matthews' correlation; 0 where all predictions are one class."""
    import sklearn.metrics

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of one class in gold and predictions
        return sklearn.metrics.matthews_corrcoef(gold, predicted)


def _f1(gold: Labels, predicted: Labels) -> float:
    """F1 of class 1."""
    import sklearn.metrics

    return sklearn.metrics.f1_score(gold, predicted, pos_label=_POSITIVE, zero_division=0)


def _macro_f1(gold: Labels, predicted: Labels) -> float:
    """The mean of the F1 of the classes that there are, in labels or predictions."""
    import sklearn.metrics

    return sklearn.metrics.f1_score(gold, predicted, average="macro", zero_division=0)


def _pearson(gold: Labels, predicted: Labels) -> float:
    import scipy.stats

    return _correlation(scipy.stats.pearsonr, gold, predicted)


def _spearman(gold: Labels, predicted: Labels) -> float:
    import scipy.stats

    return _correlation(scipy.stats.spearmanr, gold, predicted)


def _correlation(function: Callable, gold: Labels, predicted: Labels) -> float:
    """A correlation; 0 where it is undefined, for one of the two is constant."""
    if is_constant(gold) or is_constant(predicted):
        return 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of numbers that are nearly constant
        found = float(function(gold, predicted).statistic)
    return found if np.isfinite(found) else 0.0


_METRICS: Mapping[str, Callable[[Labels, Labels], float]] = {
    "accuracy": _accuracy,
    "f1": _f1,
    "macro_f1": _macro_f1,
    "matthews": _matthews,
    "pearson": _pearson,
    "spearman": _spearman,
}
_CORRELATIONS = frozenset({"matthews", "pearson", "spearman"})


def score_labels(
    gold: Labels, predicted: Labels, *, dataset: str | None, is_regression: bool
) -> dict[str, float]:
    """The metrics of a data set, in percent.

    Args:
        gold: the right labels: names of classes, or numbers.
        predicted: the model's.
        dataset: name of the GLUE task; of other data `None`, which is scored by accuracy and macro
            F1, a regression by both correlations.
        is_regression: whether labels are numbers.

    Returns:
        The metrics, and `score`, by which the best model is chosen: their mean for a GLUE task, as
        GLUE averages, and for a regression; else the accuracy.
    """
    names = _metric_names(dataset, is_regression=is_regression)
    counted = [name for name in names if name != "macro_f1"]
    scores = {name: 100 * float(_METRICS[name](gold, predicted)) for name in names}
    return {**scores, MAIN_METRIC: float(np.mean([scores[name] for name in counted]))}


def has_correlation(dataset: str | None, *, is_regression: bool) -> bool:
    """Whether a metric of a data set is a correlation; as for `score_labels`."""
    names = _metric_names(dataset, is_regression=is_regression)
    return not _CORRELATIONS.isdisjoint(names)


def _metric_names(dataset: str | None, *, is_regression: bool) -> tuple[str, ...]:
    if dataset is not None:
        return GLUE_TASKS[dataset].metrics
    return ("pearson", "spearman") if is_regression else ("accuracy", "macro_f1")


def is_constant(values: Labels) -> bool:
    """Whether all labels are the same."""
    return all(value == values[0] for value in values)
