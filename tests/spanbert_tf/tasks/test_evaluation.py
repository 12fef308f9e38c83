"""What `evaluate` prints, without a model."""

import contextlib
import types

from made_up_outcomes import made_up_outcome

from spanbert_tf.tasks.evaluation import score_sets


def test_mean_is_of_the_metrics_that_all_sets_have(capfd):
    by_set = {
        "mrpc": {"f1": 90.0, "accuracy": 86.0, "score": 88.0},
        "stsb": {"pearson": 70.0, "score": 70.0},
    }
    task = types.SimpleNamespace(
        outcome=lambda model, records, predictions: made_up_outcome(records.name, [], []),
        score=lambda outcome: by_set[outcome.records.lines("")],
        tables=lambda outcome: (),
    )
    for names in (["mrpc", "stsb"], ["stsb", "mrpc"]):
        sets = [
            types.SimpleNamespace(name=name, named_damage=contextlib.nullcontext) for name in names
        ]
        scores = score_sets(task, "x", None, lambda records: [], sets, None)
        assert scores == [by_set[name] for name in names]
        last = capfd.readouterr().out.splitlines()[-1]
        assert last == "overall, the mean of 2 sets: score 79.00"
