"""What `evaluate` prints, without a model."""

import contextlib
import types

from spanbert_tf.tasks.evaluation import print_scores


def test_mean_is_of_the_metrics_that_all_sets_have(capfd):
    by_set = {
        "mrpc": {"f1": 90.0, "accuracy": 86.0, "score": 88.0},
        "stsb": {"pearson": 70.0, "score": 70.0},
    }
    task = types.SimpleNamespace(
        named_damage=lambda records: contextlib.nullcontext(),
        outcome=lambda model, records, predictions: records,
        score=by_set.get,
        details=lambda outcome, console: None,
    )
    for sets in (["mrpc", "stsb"], ["stsb", "mrpc"]):
        scores = print_scores(task, "x", None, lambda records: [], sets, None)
        assert scores == [by_set[name] for name in sets]
        last = capfd.readouterr().out.splitlines()[-1]
        assert last == "overall, the mean of 2 sets: score 79.00"
