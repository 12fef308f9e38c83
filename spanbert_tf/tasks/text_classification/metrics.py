"""GLUE's metrics, by scikit-learn and SciPy (Wang et al., 2019, section 3).

Both take a second to import, and so where they compute.
"""

import warnings
from collections.abc import Mapping, Sequence

import numpy as np

from spanbert_tf.lazy import load
from spanbert_tf.tasks.text_classification.glue import GLUE_TASKS

MEAN = "score"  # of several metrics, as GLUE averages them
_POSITIVE = "1"  # the class whose F1 MRPC and QQP are scored by

Labels = Sequence[str] | Sequence[float]


# Name → function of scikit-learn or SciPy, and its options.
_METRICS: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "accuracy": ("sklearn.metrics:accuracy_score", {}),
    # Of that class alone, whatever others a model knows.
    "f1": (
        "sklearn.metrics:f1_score",
        {"labels": [_POSITIVE], "average": "macro", "zero_division": 0},
    ),
    # The mean over the classes that there are, in labels or predictions.
    "macro_f1": ("sklearn.metrics:f1_score", {"average": "macro", "zero_division": 0}),
    "matthews": ("sklearn.metrics:matthews_corrcoef", {}),
    "pearson": ("scipy.stats:pearsonr", {}),
    "spearman": ("scipy.stats:spearmanr", {}),
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
        The metrics; and where the data set is scored by several, as GLUE's MRPC and any regression
        are, their mean as `score`.
    """
    names = _metric_names(dataset, is_regression=is_regression)
    scores = {name: 100 * _metric(name, gold, predicted) for name in names}
    if main_metric(dataset, is_regression=is_regression) == MEAN:
        scores[MEAN] = float(np.mean([scores[name] for name in names]))
    return scores


def main_metric(dataset: str | None, *, is_regression: bool) -> str:
    """The metric by which the best model is chosen; arguments as for `score_labels`."""
    names = _metric_names(dataset, is_regression=is_regression)
    deciding = [name for name in names if name != "macro_f1"]
    return deciding[0] if len(deciding) == 1 else MEAN


def _metric(name: str, gold: Labels, predicted: Labels) -> float:
    """A metric; a correlation is 0 where it is undefined, for one of the two is constant."""
    if name in _CORRELATIONS and (is_constant(gold) or is_constant(predicted)):
        return 0.0
    place, options = _METRICS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of numbers that are nearly constant
        found = load(place)(gold, predicted, **options)
    value = float(getattr(found, "statistic", found))
    return value if np.isfinite(value) else 0.0


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
