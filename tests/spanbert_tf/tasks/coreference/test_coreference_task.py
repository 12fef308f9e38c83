"""Coreference resolution by the shipped commands, on documents that can be learned."""

import functools
import html.parser
import json
import pathlib
from typing import ClassVar

import made_up_documents
import numpy as np
import pytest
from task_tests import SEQUENCE_LENGTH, SPECIAL, TrainingTests

from spanbert_tf.errors import BadInputError
from spanbert_tf.tasks.coreference.metrics import score_files
from spanbert_tf.tasks.coreference.prepare import prepare_coreference
from spanbert_tf.tasks.coreference.records import DOCUMENTS_FILE
from spanbert_tf.tasks.coreference.task import Coreference
from spanbert_tf.tasks.evaluation import run_evaluation
from spanbert_tf.tasks.lookup import open_records, task_dataset
from spanbert_tf.tasks.prediction import Predictor, run_prediction

pytestmark = pytest.mark.slow  # whole trainings, exports and predictions

CONFIG = """
task: coreference
resolver:
  {word_boundaries: true, max_span_width: 3, top_span_ratio: 0.9, feature_dim: 4, ffnn_dim: 12,
   dropout: 0.0}
prediction: {batch_size: 8}
"""


def prepare(source, output, vocabulary, *options):
    arguments = ["--input", source, "--output", output, "--vocabulary", vocabulary, "--lowercase"]
    arguments += ["--sequence-length", SEQUENCE_LENGTH, *options]
    prepare_coreference.main(list(map(str, arguments)), standalone_mode=False)


def word_spans(words):
    """First character and character behind the last of words with a space between each two."""
    ends = np.cumsum([len(word) + 1 for word in words]) - 1
    return [(int(end) - len(word), int(end)) for word, end in zip(words, ends, strict=True)]


class TestCoreference(TrainingTests):
    config_text = CONFIG
    vocabulary = SPECIAL + made_up_documents.VOCABULARY
    raw_input: ClassVar = {"text": "Ann has the cat . She likes the cat ."}
    # At the rate at which it learns to link, it leaves the same path after a few steps.
    replica_options: ClassVar = {"optimizer.learning_rate": 0.0005}

    def config(self, material, **overrides):
        return super().config(material, **{"optimizer.learning_rate": 0.003, **overrides})

    def write_records(self, directory, vocabulary):
        for name, count, seed in (("train", 64, 1), ("dev", 16, 2), ("other", 64, 3)):
            made = made_up_documents.documents(count, seed)
            made_up_documents.write_conll(directory / f"{name}.v4_gold_conll", made)
            source = directory / f"{name}.v4_gold_conll"
            prepare(source, directory / name, vocabulary, "--max-training-segments", 1)

    def raw_inputs(self, data):
        return [
            {"text": " ".join(line["words"])} for line in open_records(data).lines(DOCUMENTS_FILE)
        ]

    def answers_in_files(self, output):
        answers = []
        for text in (output / "predictions.jsonlines").read_text().splitlines():
            line = json.loads(text)
            places = word_spans([word for words in line["sentences"] for word in words])
            clusters = [
                [[places[start][0], places[end][1]] for start, end in spans]
                for spans in line["predicted_clusters"]
            ]
            answers.append({"clusters": clusters})
        return answers

    def answers_of_export(self, outputs):
        answers = []
        for starts, ends, numbers in zip(
            *(outputs[name] for name in ("starts", "ends", "clusters")), strict=True
        ):
            clusters = [[] for _ in range(max(numbers, default=-1) + 1)]
            for start, end, number in zip(starts, ends, numbers, strict=True):
                if number >= 0:
                    clusters[number].append([int(start), int(end)])
            answers.append({"clusters": clusters})
        return answers

    def answer_of_predictor(self, found):
        return {"clusters": found["clusters"]}

    def test_predictions_have_clusters_and_strings_of_them(self, finished, material):
        inputs = self.raw_inputs(material["dev"])
        found = Predictor(finished[0])(inputs)
        assert sum(len(item["clusters"]) for item in found) > 10
        for item in found:
            expected = [[item["text"][a:b] for a, b in spans] for spans in item["clusters"]]
            assert item["strings"] == expected

    def test_scores_are_those_of_the_written_conll_file(self, finished, material, tmp_path):
        run_prediction(finished[0], material["dev"], str(tmp_path / "out"))
        score = score_files(
            f"{material['dev']}.v4_gold_conll", str(tmp_path / "out/predictions.conll")
        )
        assert score.as_dict() == finished[1]

    def test_documents_without_clusters_are_predicted_and_nothing_else(
        self, finished, material, tmp_path
    ):
        path, data = tmp_path / "test.v4_auto_conll", str(tmp_path / "test")
        made = [(*rest, []) for *rest, _ in made_up_documents.documents(3, 4)]
        made_up_documents.write_conll(path, made)
        prepare(path, data, material["vocab.txt"])
        for evaluate in (
            functools.partial(run_evaluation, None),
            lambda sets: run_evaluation(finished[0], sets),
        ):
            with pytest.raises(BadInputError, match=f"{data}: has no labels to score by"):
                evaluate([data])
        with pytest.raises(BadInputError, match=f"{data}: has no labels to score by"):
            self.finetune(material, tmp_path / "run", dev=data)
        with pytest.raises(
            BadInputError, match=f"{data}: holds no rows to train on; write .* labels"
        ):
            self.finetune(material, tmp_path / "run", data=data)
        assert not (tmp_path / "run").exists()
        run_prediction(finished[0], data, str(tmp_path / "predictions"))
        assert len((tmp_path / "predictions/predictions.jsonlines").read_text().splitlines()) == 3

    def test_report_shows_all_documents(self, finished, material, tmp_path):
        report = tmp_path / "page.html"
        run_evaluation(finished[0], [material["dev"]], report=str(report))
        page = report.read_text()
        html.parser.HTMLParser().feed(page)
        assert page.count("<article") == 16
        assert page.count('<span class="mark') == page.count("</span>") - 16  # and 16 places
        (scores,) = run_evaluation(None, [material["dev"]])
        assert scores["average_f1"] > 50  # names are capitalised, and things have determiners

    def test_training_draws_runs_anew_and_prediction_takes_all(self, material):
        epochs = task_dataset(material["train"], batch_size=64, training=True, seed=5)
        batches = list(epochs.take(3))
        positions = [(x["sentence_indices"].numpy() >= 0).sum() for x, _, _ in batches]
        assert len(set(positions)) > 1
        for x, y, _ in batches:
            assert x["segment_indices"].numpy().max() == 0
            length = (x["sentence_indices"].numpy() >= 0).sum(axis=1)
            is_gold = y["mention_clusters"].numpy() > 0
            assert (y["mention_ends"].numpy() < length[:, None])[is_gold].all()
            starts = np.maximum(y["mention_starts"].numpy(), 0)
            begins = np.take_along_axis(x["begins_word"].numpy(), starts, axis=1)
            assert begins[is_gold].all()
        resumed = task_dataset(
            material["train"], batch_size=64, training=True, seed=5, first_batch=2
        )
        first = next(iter(resumed))[0]
        for name, values in batches[2][0].items():
            np.testing.assert_array_equal(first[name], values)
        whole = task_dataset(material["train"], batch_size=64, training=False)
        total = sum(int((x["sentence_indices"].numpy() >= 0).sum()) for x, _ in whole)
        manifest = json.loads(pathlib.Path(material["train"], "coreference_info.json").read_text())
        assert total == manifest["counts"]["tokens"] > max(positions)

    def test_documents_do_not_retrace(self, material):
        # The shapes of the batches are many, and their traces one.
        traces = []

        class Counting(Coreference):
            def predict_batch(self, model, x, outputs):
                traces.append(x["token_ids"].shape)
                return x["piece_positions"]

            def collect(self, model, records, rows):
                return rows

        records = open_records(material["dev"])
        Counting().predict(lambda x, training: {}, records, batch_size=2)
        assert len(traces) == 1
