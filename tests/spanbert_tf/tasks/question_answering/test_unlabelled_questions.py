"""Questions whose answers nobody tells, as in a test set: they are not unanswerable ones."""

import json

import pytest
from made_up_questions import VOCABULARY

from spanbert_tf.errors import BadInputError
from spanbert_tf.tasks.evaluation import run_evaluation
from spanbert_tf.tasks.finetuning import run_finetuning
from spanbert_tf.tasks.question_answering.files import read_squad
from spanbert_tf.tasks.question_answering.records import QuestionAnsweringManifest
from spanbert_tf.tasks.question_answering.rows import QuestionOptions, write_questions
from spanbert_tf.tasks.table import load_task_config

CONTEXT = "ann has the cat. bob has the owl."
GOLD = {"answers": [{"text": "ann", "answer_start": 0}]}
ROW_GOLD = {"answers": {"text": ["ann"], "answer_start": [0]}}
NO_ANSWER = {"answers": [], "is_impossible": True}
NO_ROW_ANSWER = {"answers": {"text": [], "answer_start": []}}
NOTHING = {}


def prepared(tmp_path, entries, *, in_rows=False, has_unanswerable=True):
    """Records of questions with what `entries` say of their answers."""
    asked = [{"id": str(n), "question": "who has the cat?", **e} for n, e in enumerate(entries)]
    if in_rows:
        data = [{"context": CONTEXT, **row} for row in asked]
    else:
        data = [{"paragraphs": [{"context": CONTEXT, "qas": asked}]}]
    (tmp_path / "questions.json").write_text(json.dumps({"data": data}))
    (tmp_path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in VOCABULARY))
    write_questions(
        read_squad(str(tmp_path / "questions.json")),
        str(tmp_path / "data"),
        vocabulary=str(tmp_path / "vocab.txt"),
        lowercase=True,
        options=QuestionOptions(sequence_length=32, has_unanswerable=has_unanswerable),
        overwrite=True,
    )
    return str(tmp_path / "data")


UNLABELLED = [
    ([NOTHING, NOTHING], {}, "has no labels to score by, as a test set"),
    ([{"answers": None}] * 2, {}, "has no labels to score by, as a test set"),
    ([{"answers": [], "is_impossible": False}], {}, "has no labels to score by, as a test set"),
    ([NOTHING, {"answers": None}], {"in_rows": True}, "has no labels to score by, as a test set"),
    ([NOTHING], {"has_unanswerable": False}, "has no labels to score by, as a test set"),
    (
        [GOLD, NO_ANSWER],
        {"has_unanswerable": False},
        "1 of 2 questions have no answer to score by, as in SQuAD 2.0; .* --version-2",
    ),
]


@pytest.mark.parametrize(("entries", "options", "words"), UNLABELLED)
def test_they_are_refused_before_anything_is_predicted(entries, options, words, tmp_path):
    data = prepared(tmp_path, entries, **options)
    with pytest.raises(BadInputError, match=f"{data}: {words}"):
        run_evaluation(None, [data])


@pytest.mark.parametrize(
    ("entries", "options"),
    [
        ([NO_ANSWER, NO_ANSWER], {}),
        ([GOLD, NOTHING], {}),
        ([GOLD, NO_ANSWER], {}),
        ([NO_ROW_ANSWER, NO_ROW_ANSWER], {"in_rows": True}),
        ([ROW_GOLD, NO_ROW_ANSWER], {"in_rows": True}),
        ([GOLD, GOLD], {"has_unanswerable": False}),
    ],
)
def test_questions_that_are_known_to_have_no_answer_are_scored(entries, options, tmp_path):
    (scores,) = run_evaluation(None, [prepared(tmp_path, entries, **options)])
    assert 0 <= scores["f1"] <= 100


def test_finetuning_neither_trains_nor_scores_on_them(tmp_path):
    train, dev = tmp_path / "train", tmp_path / "dev"
    for directory in (train, dev):
        directory.mkdir()
    train, dev = prepared(train, [GOLD, NO_ANSWER]), prepared(dev, [NOTHING, NOTHING])
    assert QuestionAnsweringManifest.load(dev).num_training_rows == 0
    config = load_task_config("squad_v2", ["data.sequence_length=32"])
    output = str(tmp_path / "run")
    with pytest.raises(BadInputError, match=f"{dev}: has no labels to score by"):
        run_finetuning(config, "no preset", train, output, dev)
    with pytest.raises(BadInputError, match=f"{dev}: holds no rows to train on"):
        run_finetuning(config, "no preset", dev, output, train)
