"""The official scores of TACRED and of SemEval-2010 task 8, in percent."""

import collections
from collections.abc import Mapping, Sequence

from spanbert_tf.tasks.report import ClassScore, ClassScores, average_name

OTHER = "Other"  # means no relation in SemEval-2010 task 8, and is not scored


def score_tacred(
    gold: Sequence[str], predicted: Sequence[str], negative: str = "no_relation"
) -> dict[str, float]:
    """Computes micro F1, precision and recall over all relations except the one that means none.

    The rules are those of TACRED's `scorer.py` (Zhang et al., 2017): precision is 1 if nothing is
    predicted.
    """
    # scikit-learn's micro F1 differs in the last digit. Without predictions the precision is 1, and
    # without gold relations the recall is 0, which one value of `zero_division` cannot express.
    num_gold = sum(relation != negative for relation in gold)
    num_predicted = sum(relation != negative for relation in predicted)
    pairs = zip(gold, predicted, strict=True)
    num_right = sum(right == found != negative for right, found in pairs)
    precision = num_right / num_predicted if num_predicted else 1.0
    recall = num_right / num_gold if num_gold else 0.0
    scores = {"f1": _f1(precision, recall), "precision": precision, "recall": recall}
    return {name: 100 * value for name, value in scores.items()}


def score_semeval2010(
    key: Mapping[str, str], answers: Mapping[str, str]
) -> tuple[dict[str, float], ClassScores]:
    """Computes the official scores over nine relations with directions (Hendrickx et al., 2010).

    They are those that version 1.2 of the official scorer prints under "(9+1)-way evaluation taking
    directionality into account". A prediction with the wrong direction counts as predicted but not
    as right. Recall is over the whole key. Relations that the key does not have count as `Other`.

    Args:
        key: id of an example → gold relation.
        answers: id of an example → predicted relation.
    """
    relations = sorted({_relation(label) for label in key.values()} - {OTHER})
    right: collections.Counter[str] = collections.Counter()
    guessed: collections.Counter[str] = collections.Counter()
    for identifier, answer in answers.items():
        gold = key[identifier]
        right[_relation(gold)] += answer == gold
        guessed[_relation(answer)] += 1
    support = collections.Counter(_relation(label) for label in key.values())
    scores = []
    for name in relations:
        precision = right[name] / guessed[name] if guessed[name] else 0.0
        recall = right[name] / support[name]
        scores.append(_class_score(name, precision, recall, support[name]))
    means = {}
    for name in ("f1", "precision", "recall"):
        means[name] = sum(getattr(score, name) for score in scores) / max(len(scores), 1)
    return means, ClassScores(scores, _averages(scores, right, guessed, means))


def _averages(
    scores: Sequence[ClassScore],
    right: Mapping[str, int],
    guessed: Mapping[str, int],
    means: Mapping[str, float],
) -> list[ClassScore]:
    """Computes micro, macro (the official score) and weighted averages over the relations."""
    if not scores:
        return []
    support = sum(score.support for score in scores)
    num_right = sum(right[score.name] for score in scores)
    num_guessed = sum(guessed[score.name] for score in scores)
    precision = num_right / num_guessed if num_guessed else 0.0
    recall = num_right / support
    weighted = {}
    for name in means:
        weighted[name] = sum(getattr(score, name) * score.support for score in scores) / support
    return [
        _class_score(average_name("micro", OTHER), precision, recall, support),
        ClassScore(average_name("macro", OTHER), **means, support=support),
        ClassScore(average_name("weighted", OTHER), **weighted, support=support),
    ]


def _class_score(name: str, precision: float, recall: float, support: int) -> ClassScore:
    """Returns the scores of a relation, in percent; `precision` and `recall` are fractions."""
    return ClassScore(name, 100 * precision, 100 * recall, 100 * _f1(precision, recall), support)


def _relation(label: str) -> str:
    """Returns a label without its direction."""
    return label.partition("(")[0]


def _f1(precision: float, recall: float) -> float:
    """Returns the harmonic mean of precision and recall."""
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0
