"""When a fine-tuning run ends and is scored, and what it says of predictions that are all alike."""

import types

import numpy as np
import pytest
from made_up_outcomes import made_up_records

from spanbert_tf.errors import ConfigurationError
from spanbert_tf.studies.grid import run_grid
from spanbert_tf.tasks import finetuning
from spanbert_tf.tasks.named_entities.task import PieceLabels
from spanbert_tf.tasks.table import load_task, load_task_config


def plan_of(num_rows, **training):
    values = {"epochs": 2, "batch_size": 32, "evaluations_per_epoch": 10, **training}
    settings = [f"training.{key}={value}" for key, value in values.items()]
    manifest = types.SimpleNamespace(num_training_rows=num_rows, num_rows=num_rows, num_tokens=1)
    return finetuning._Plan(load_task_config("classification", settings), manifest)


@pytest.mark.parametrize(
    ("num_rows", "training", "expected"),
    [
        # 1,000 texts are 32 steps an epoch, a tenth of which is 3.2: by hand, the first ends of
        # tenths that are 20 steps and more after the last scoring (and the last step).
        (1000, {}, [20, 42, 64]),
        (1000, {"min_steps_between_evaluations": 1}, None),
        (1000, {"min_steps_between_evaluations": 1, "evaluations_per_epoch": 2}, [16, 32, 48, 64]),
        (1000, {"min_steps_between_evaluations": 33}, [36, 64]),
        (1000, {"min_steps_between_evaluations": 1000}, [64]),
        (1000, {"evaluations_per_epoch": 0, "keep_best": "false"}, []),
        (1000, {"max_steps": 7}, [7]),
        (1000, {"max_steps": 50}, [20, 42, 50]),
        (64000, {}, [200 * part for part in range(1, 21)]),
        (5, {"evaluations_per_epoch": 1}, [2]),
    ],
)
def test_steps_after_which_a_run_is_scored(num_rows, training, expected):
    plan = plan_of(num_rows, **training)
    if expected is None:  # the first step that completes each tenth, as integers have it
        steps = range(1, 65)
        expected = [step for step in steps if (step * 10) // 32 > ((step - 1) * 10) // 32]
        assert len(expected) == 20
    assert sorted(plan.scored_steps) == expected
    assert plan.num_steps == (expected[-1] if expected else 64)


def test_a_number_of_steps_takes_the_place_of_epochs():
    assert plan_of(1000, epochs=0, evaluations_per_epoch=0, keep_best="false").num_steps == 0
    assert plan_of(1000, epochs=0, max_steps=500).num_steps == 500
    config = load_task_config("segabert_glue_large", ["training.max_steps=5"])
    with pytest.raises(ConfigurationError, match=r"training.max_steps: .* --set grid.epochs=\[\]"):
        run_grid(config, "preset", "data", "nowhere", "data")


@pytest.mark.parametrize(
    ("score", "answers", "words"),
    [
        (0.0, ["", "", ""], "nothing is predicted; if it stays so, raise optimizer.learning_rate"),
        (56.4, ["neutral", "neutral"], "'neutral' alone is predicted; if it stays so"),
        (3.0, ["a\nb", "a\nb"], r"'a\nb' alone"),
        (3.0, ["x" * 500] * 2, "… alone is predicted"),
        (0.0, ["", "PER"], "nothing right is predicted; if it stays so"),
        (0.1, ["", "PER"], None),
        (100.0, ["neutral", "neutral"], None),  # the records have no other class
        (0.0, ["neutral"], None),
        (0.0, [], None),
        (None, ["neutral", "neutral"], "'neutral' alone is predicted"),  # chosen by the loss
        (None, ["neutral", "good"], None),
    ],
)
def test_remark_on_answers_that_are_all_alike_or_wrong(score, answers, words):
    remark = finetuning._remark(score, answers)
    assert bool(remark) == bool(words) and (words or "") in remark
    assert "\n" not in remark and len(remark) < 200


def test_named_entities_answer_with_the_labels_of_words():
    """Of 3 words, the second of two pieces; what is outside of entities is no answer."""
    task = load_task("named_entities")
    records = made_up_records([{"first_pieces": [0, 1, 3], "labels": ["O", "B-PER", "O"]}])
    model = types.SimpleNamespace(labels=["O", "B-PER"], aggregation_strategy="first")

    def answers(labels):
        found = PieceLabels(np.array(labels), np.ones(4))
        return task.outcome(model, records, [found]).texts

    assert answers([0, 1, 0, 0]) == ["", "B-PER", ""]
    assert answers([0, 0, 1, 0]) == ["", "", ""]


def test_coreference_and_questions_answer_with_nothing_where_nothing_is_found():
    resolver, questions = load_task("coreference"), load_task("question_answering")
    records = made_up_records([])
    assert resolver.outcome(None, records, [[], []]).texts == ["", ""]
    assert len(set(resolver.outcome(None, records, [[[(0, 0), (3, 3)]], []]).texts)) == 2
    item = types.SimpleNamespace(text_under=lambda threshold: "" if threshold < 0 else "ann")
    model = types.SimpleNamespace(has_unanswerable=True, null_threshold=-1.0)
    assert questions.outcome(model, records, [item, item]).texts == ["", ""]
    model.null_threshold = 1.0
    assert questions.outcome(model, records, [item]).texts == ["ann"]
