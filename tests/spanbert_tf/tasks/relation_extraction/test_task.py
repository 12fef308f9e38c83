"""Relation extraction as a task: what is true of all tasks."""

import json
import pathlib
import random
from typing import ClassVar

import numpy as np
import pytest
import tensorflow as tf
from task_tests import (
    ODD_TEXTS,
    SEQUENCE_LENGTH,
    SPECIAL,
    TaskTests,
    assert_same_answers,
    run_benchmark,
)

from spanbert_tf.errors import BadInputError, MismatchError
from spanbert_tf.tasks.evaluation import run_evaluation
from spanbert_tf.tasks.prediction import Predictor, export_preset
from spanbert_tf.tasks.relation_extraction.rows import marked_text_of, read_tacred, write_relations

pytestmark = pytest.mark.slow  # whole trainings, exports and predictions

NAMES = {"PERSON": ["ann", "bob", "eve"], "CITY": ["rome", "oslo", "bern"]}
WORDS = ["the", "lives", "in", "sees", "and", ".", "(", *NAMES["PERSON"], *NAMES["CITY"]]
UNUSED = [f"[unused{number}]" for number in range(1, 12)]


def made_up_examples(count, seed):
    """A person and a city: `lives` where the sentence has that word, and none otherwise."""
    source = random.Random(seed)
    for number in range(count):
        words = [source.choice(["the", "and", ".", "-LRB-"]) for _ in range(8)]
        person, city, verb = source.sample(range(8), 3)
        words[verb] = source.choice(["lives", "sees"])
        words[person], words[city] = source.choice(NAMES["PERSON"]), source.choice(NAMES["CITY"])
        yield {
            "id": f"x{number}",
            "token": words,
            "subj_start": person,
            "subj_end": person,
            "subj_type": "PERSON",
            "obj_start": city,
            "obj_end": city,
            "obj_type": "CITY",
            "relation": "lives" if "lives" in words else "no_relation",
        }


# Of a text of 19 characters: empty, the wrong way round, outside of it, overlapping.
BAD_PLACES = [
    *({"subject": [3, 3]}, {"object": [13, 12]}, {"subject": [-1, 3]}, {"object": [13, 20]}),
    *({"object": [2, 6]}, {"object": [0, 3]}, {"subject": [2**31 - 2, 2**31 - 1]}, {"text": ""}),
]


class TestRelationExtraction(TaskTests):
    config_text = "task: relation_extraction\n"
    vocabulary = SPECIAL + UNUSED + WORDS
    raw_input: ClassVar = {
        "text": "ann lives in rome .",
        "subject": [0, 3],
        "object": [13, 17],
        "subject_type": "PERSON",
        "object_type": "CITY",
    }

    def write_records(self, directory, vocabulary):
        for name, count, seed in (("train", 64, 1), ("dev", 24, 2), ("other", 64, 3)):
            source = directory / f"{name}.json"
            source.write_text(json.dumps(list(made_up_examples(count, seed))))
            write_relations(
                read_tacred(str(source)),
                str(directory / name),
                training=read_tacred(str(directory / "train.json")),
                vocabulary=vocabulary,
                lowercase=True,
                sequence_length=SEQUENCE_LENGTH,
            )

    def raw_inputs(self, data):
        examples = json.loads(pathlib.Path(f"{data}.json").read_text())
        return [marked_text_of(example, "input") for example in examples]

    def odd_inputs(self):
        text = self.raw_input["text"]
        texts = [{**self.raw_input, "text": f"{text} {odd}"} for odd in ODD_TEXTS.values()]
        fields = ("subject_type", "object_type")
        types = [{**self.raw_input, name: odd} for name in fields for odd in ODD_TEXTS.values()]
        return [*texts, *types]

    def answers_in_files(self, output):
        labels = (output / "answers.txt").read_text().splitlines()
        lines = map(json.loads, (output / "probabilities.jsonl").read_text().splitlines())
        return [
            {"label": label, "score": row[label]} for label, row in zip(labels, lines, strict=True)
        ]

    def answers_of_export(self, outputs):
        rows = zip(outputs["labels"], outputs["probabilities"], strict=True)
        return [{"label": row[0].decode(), "score": float(scores[0])} for row, scores in rows]

    def answer_of_predictor(self, found):
        return found

    @pytest.mark.slow
    def test_it_is_learned(self, material, tmp_path):
        scores = self.finetune(material, tmp_path / "run", **{"training.epochs": 15})
        assert scores["f1"] > 80

    def test_tables_and_report_show_each_example(self, finished, material, tmp_path, capsys):
        report = tmp_path / "report.html"
        run_evaluation(finished[0], [material["dev"]], report=str(report))
        assert "confusion matrix" in capsys.readouterr().out
        assert report.read_text().count("<article") == 24

    def test_tokens_and_characters_are_one_input(self, finished, material):
        examples = json.loads(pathlib.Path(f"{material['dev']}.json").read_text())
        predict = Predictor(finished[0])
        assert_same_answers(predict(examples), predict(self.raw_inputs(material["dev"])))
        ranked = predict(examples[0], top_k=5)
        assert [answer["label"] for answer in ranked] in (
            ["lives", "no_relation"],
            ["no_relation", "lives"],
        )

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"subject": [0, 0]}, "subject is from 0 to before 0"),
            ({"subject": [3, 0]}, "subject is from 3 to before 0"),
            ({"object": [13, 99]}, "not in its text of 19 characters"),
            ({"object": [2, 6]}, "subject and object overlap"),
            ({"object": "rome"}, "object: should be a valid list"),
            ({"text": None}, "text: should be a valid string"),
            ({"token": ["a"]}, "subj_start: is missing"),
        ],
    )
    def test_bad_raw_inputs_are_named(self, changes, message, finished):
        with pytest.raises(BadInputError, match=f"^input 2: .*{message}"):
            Predictor(finished[0])([self.raw_input, {**self.raw_input, **changes}])

    def test_a_bad_request_leaves_the_others_of_its_batch_alone(self, finished, tmp_path):
        """A server puts requests of several clients together."""
        serve = tf.saved_model.load(export_preset(finished[0], str(tmp_path / "served")))
        good = self.raw_input
        bad = [{**good, **change} for change in BAD_PLACES]

        def answers(requests):
            columns = {name: tf.constant([one[name] for one in requests]) for name in good}
            found = serve.signatures["serving_default"](**columns)
            return found["labels"].numpy(), found["probabilities"].numpy()

        (label,), (row,) = answers([good])
        labels, rows = answers([bad[0], good, *bad[1:], good])
        for place in (1, -1):
            assert labels[place].tolist() == label.tolist() and b"" not in label
            np.testing.assert_allclose(rows[place], row, atol=1e-6)
        is_bad = np.array([True, False, *[True] * (len(bad) - 1), False])
        assert set(labels[is_bad].ravel()) == {b""} and not rows[is_bad].any()
        labels, rows = answers(bad)
        assert set(labels.ravel()) == {b""} and not rows.any()

    def test_records_of_other_types_are_refused(self, finished, material, tmp_path):
        examples = json.loads(pathlib.Path(f"{material['dev']}.json").read_text())
        for example in examples:
            example["obj_type"] = "RIVER"
        (tmp_path / "rivers.json").write_text(json.dumps(examples))
        write_relations(
            read_tacred(str(tmp_path / "rivers.json")),
            str(tmp_path / "rivers"),
            vocabulary=material["vocab.txt"],
            lowercase=True,
            sequence_length=SEQUENCE_LENGTH,
        )
        with pytest.raises(MismatchError, match="markers of these examples are not those of"):
            run_evaluation(finished[0], [str(tmp_path / "rivers")])

    @pytest.mark.usefixtures("shipped_classes_alone")
    def test_benchmark_runs_at_a_tiny_size(self, material, capfd):
        run_benchmark(material["train"], material["preset"], capfd)
