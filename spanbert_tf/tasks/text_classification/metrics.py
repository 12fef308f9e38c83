"""GLUE's metrics, by scikit-learn and SciPy (Wang et al., 2019, section 3).

Both take a second to import, so they are imported when they are used.
"""

import warnings
from collections.abc import Mapping, Sequence

import numpy as np

from spanbert_tf.lazy import load
from spanbert_tf.tasks.text_classification.glue import GLUE_TASKS

MEAN = "score"  # name of the mean of several metrics, as in GLUE
_POSITIVE = "1"  # the class whose F1 is the metric of MRPC and QQP

Labels = Sequence[str] | Sequence[float]


# Name → function of scikit-learn or SciPy and its options.
_METRICS: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "accuracy": ("sklearn.metrics:accuracy_score", {}),
    # The F1 of that class alone, whatever other classes a model has.
    "f1": (
        "sklearn.metrics:f1_score",
        {"labels": [_POSITIVE], "average": "macro", "zero_division": 0},
    ),
    # The mean over the classes that occur in labels or predictions.
    "macro_f1": ("sklearn.metrics:f1_score", {"average": "macro", "zero_division": 0}),
    "matthews": ("sklearn.metrics:matthews_corrcoef", {}),
    "pearson": ("scipy.stats:pearsonr", {}),
    "spearman": ("scipy.stats:spearmanr", {}),
}
_CORRELATIONS = frozenset({"matthews", "pearson", "spearman"})


def score_labels(
    gold: Labels, predicted: Labels, *, dataset: str | None, is_regression: bool
) -> dict[str, float]:
    """Computes the metrics of a data set, in percent.

    Args:
        gold: the gold labels: names of classes, or numbers.
        predicted: the predicted labels, as `gold`.
        dataset: name of the GLUE task; `None` for other data, whose metrics are accuracy and macro
            F1, or both correlations for a regression.
        is_regression: whether labels are numbers.

    Returns:
        The metrics. If the data set has several, as MRPC and any regression have, their mean is
        `score`.
    """
    names = _metric_names(dataset, is_regression=is_regression)
    scores = {name: 100 * _metric(name, gold, predicted) for name in names}
    if main_metric(dataset, is_regression=is_regression) == MEAN:
        scores[MEAN] = float(np.mean([scores[name] for name in names]))
    return scores


def main_metric(dataset: str | None, *, is_regression: bool) -> str:
    """Returns the metric by which evaluations are compared; arguments as for `score_labels`."""
    names = _metric_names(dataset, is_regression=is_regression)
    deciding = [name for name in names if name != "macro_f1"]
    return deciding[0] if len(deciding) == 1 else MEAN


def _metric(name: str, gold: Labels, predicted: Labels) -> float:
    """Computes a metric. A correlation is 0 if gold or predicted labels are constant."""
    if name in _CORRELATIONS and (is_constant(gold) or is_constant(predicted)):
        return 0.0
    place, options = _METRICS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about numbers that are nearly constant
        found = load(place)(gold, predicted, **options)
    value = float(getattr(found, "statistic", found))
    return value if np.isfinite(value) else 0.0


def has_correlation(dataset: str | None, *, is_regression: bool) -> bool:
    """Whether a metric of a data set is a correlation; arguments as for `score_labels`."""
    names = _metric_names(dataset, is_regression=is_regression)
    return not _CORRELATIONS.isdisjoint(names)


def _metric_names(dataset: str | None, *, is_regression: bool) -> tuple[str, ...]:
    if dataset is not None:
        return GLUE_TASKS[dataset].metrics
    return ("pearson", "spearman") if is_regression else ("accuracy", "macro_f1")


def is_constant(values: Labels) -> bool:
    """Whether all labels are the same."""
    return all(value == values[0] for value in values)
