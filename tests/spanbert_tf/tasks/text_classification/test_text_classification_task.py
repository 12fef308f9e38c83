"""Text classification as a task: what is true of all tasks, for pairs with three labels."""

import hashlib
import html
import itertools
import json
import os
import pathlib
import re
import subprocess
import sys
from typing import ClassVar

import keras
import numpy as np
import pytest
from made_up_texts import LABELS, VOCABULARY, made_up_pairs, made_up_scores, write_texts
from task_tests import TaskTests

from spanbert_tf.errors import BadInputError, ConfigurationError, MismatchError
from spanbert_tf.lazy import UNUSED
from spanbert_tf.models import SpanBertBackbone
from spanbert_tf.presets.preset import Preset
from spanbert_tf.studies.grid import run_grid
from spanbert_tf.tasks.evaluation import load_task_model, run_evaluation
from spanbert_tf.tasks.finetuning import run_finetuning
from spanbert_tf.tasks.lookup import open_records, task_dataset
from spanbert_tf.tasks.prediction import Predictor, run_prediction
from spanbert_tf.tasks.text_classification.records import EXAMPLES_FILE
from spanbert_tf.training.metrics_log import METRICS_FILE, read_metrics


class TestTextClassification(TaskTests):
    config_text = "task: text_classification\n"
    vocabulary = VOCABULARY
    raw_input: ClassVar = {"text": "the cat has the dog .", "text_pair": "a dog"}

    def write_records(self, directory, vocabulary):
        for name, count, seed in (("train", 64, 1), ("dev", 24, 2), ("other", 64, 3)):
            write_texts(made_up_pairs(count, seed), directory / name, vocabulary)
        write_texts(made_up_pairs(12, 4, labelled=False), directory / "test", vocabulary)

    def raw_inputs(self, data):
        return [
            {"text": line["text"], "text_pair": line["text_pair"]}
            for line in open_records(data).lines(EXAMPLES_FILE)
        ]

    def answers_in_files(self, output):
        lines = (output / "predictions.jsonl").read_text().splitlines()
        return [answer(item["label"], item["probabilities"]) for item in map(json.loads, lines)]

    def answers_of_export(self, outputs):
        return [
            answer(label.decode(), dict(zip(LABELS, row.tolist(), strict=True)))
            for label, row in zip(outputs["labels"], outputs["probabilities"], strict=True)
        ]

    def answer_of_predictor(self, found):
        return {"label": found["label"], found["label"]: found["score"]}

    @pytest.mark.slow
    def test_evaluation_imports_no_other_keras(self, finished, material):
        """In a process of its own, as a shell starts it; each of these costs up to seconds."""
        others = {"tf_keras", "official", "torch", "transformers", "apache_beam", *UNUSED}
        others -= {"sklearn", "scipy", "pandas"}  # scikit-learn scores, and looks for data frames
        program = (
            "import sys, spanbert_tf.cli\n"
            f"try:\n    spanbert_tf.cli.main({['evaluate', '--preset', finished[0]]!r}"
            f" + {['--data', material['dev']]!r})\n"
            "except SystemExit as stop:\n    assert stop.code == 0\n"
            f"print(sorted({others!r} & set(sys.modules)), file=sys.stderr)"
        )
        result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert "accuracy" in result.stdout
        assert result.stderr.splitlines()[-1] == "[]"

    def test_labels_travel_by_name(self, finished):
        _, model = load_task_model(finished[0])
        assert model.labels == list(LABELS)
        best = Predictor(finished[0])(self.raw_input)
        found = Predictor(finished[0])(self.raw_input, top_k=3)
        assert {item["label"] for item in found} == set(LABELS)
        assert found[0]["label"] == best["label"]
        assert found[0]["score"] == pytest.approx(best["score"], abs=1e-6)
        assert sum(item["score"] for item in found) == pytest.approx(1, abs=1e-5)

    def test_records_with_labels_in_another_order_score_the_same(
        self, finished, material, tmp_path
    ):
        texts = made_up_pairs(24, 2)
        shuffled = type(texts)(texts.path, texts.examples, LABELS[::-1], is_pair=True)
        write_texts(shuffled, tmp_path / "dev", material["vocab.txt"])
        (again,) = run_evaluation(finished[0], [str(tmp_path / "dev")])
        (expected,) = run_evaluation(finished[0], [material["dev"]])
        assert again == expected

    def test_evaluate_prints_a_table_of_the_classes(self, finished, material, capfd):
        run_evaluation(finished[0], [material["dev"]])
        printed = capfd.readouterr().out
        assert "confusion matrix" in printed
        for label in LABELS:
            assert label in printed

    def test_report_shows_each_text_and_counts_the_errors(self, finished, material, tmp_path):
        page = tmp_path / "report.html"
        (scores,) = run_evaluation(finished[0], [material["dev"]], report=str(page))
        text = page.read_text()
        articles = re.findall(r"<article.*?</article>", text, flags=re.DOTALL)
        shown = [html.unescape(article) for article in articles]
        examples = open_records(material["dev"]).lines(EXAMPLES_FILE)
        assert len(shown) == len(examples)
        for line in examples:
            label = line["label"]
            labels = (f'data-note="gold">{label}</mark>', f'<mark class="both">{label}</mark>')
            assert any(line["text"] in one and any(x in one for x in labels) for one in shown)
        errors = round(len(examples) * (1 - scores["accuracy"] / 100))
        assert text.count('data-kinds="errors') == errors
        assert f"with errors: {errors}" in text

    def test_evaluations_tell_of_which_model_and_how_many_texts(self, finished, material, tmp_path):
        run_prediction(finished[0], material["dev"], str(tmp_path / "dev"))
        content = json.loads((tmp_path / "dev" / "evaluation.json").read_text())
        assert content["scores"] == finished[1]
        assert (content["rows"], content["preset"]) == (24, os.path.basename(finished[0]))
        golden = pathlib.Path(finished[0], "golden.json").read_bytes()
        assert content["golden_sha256"] == hashlib.sha256(golden).hexdigest()
        inputs = json.loads(pathlib.Path(finished[0], "..", "inputs.json").read_text())
        assert inputs["validation_rows"] == 24

    @pytest.mark.slow
    def test_paths_may_be_pathlibs(self, finished, material, tmp_path):
        preset, data = pathlib.Path(finished[0]), pathlib.Path(material["dev"])
        run_prediction(preset, data, tmp_path / "dev")
        assert run_evaluation(preset, [data], report=tmp_path / "page.html") == [finished[1]]
        assert Predictor(preset)(self.raw_input) == Predictor(finished[0])(self.raw_input)

    def test_a_table_of_the_users_is_not_replaced_with_predictions(
        self, finished, material, tmp_path
    ):
        output = tmp_path / "predictions"
        run_prediction(finished[0], material["test"], str(output))
        (output / "RTE.tsv").write_text("index\tprediction\n")
        run_prediction(finished[0], material["test"], str(output), overwrite=True)
        (output / "notes.tsv").write_text("mine")
        with pytest.raises(BadInputError, match="holds other things than predictions"):
            run_prediction(finished[0], material["test"], str(output), overwrite=True)
        assert (output / "notes.tsv").read_text() == "mine"

    def test_texts_without_labels_are_predicted_and_nothing_else(
        self, finished, material, tmp_path
    ):
        run_prediction(finished[0], material["test"], str(tmp_path / "test"))
        assert os.listdir(tmp_path / "test") == ["predictions.jsonl"]
        with pytest.raises(BadInputError, match="test: has no labels to score by"):
            run_evaluation(finished[0], [material["test"]])
        with pytest.raises(BadInputError, match="test: has no labels to score by"):
            self.finetune(material, tmp_path / "run", dev="test")
        with pytest.raises(BadInputError, match="test: holds no rows to train on"):
            self.finetune(material, tmp_path / "run", data="test")

    def test_baseline_is_the_majority_class(self, material, capsys):
        labels = [line["label"] for line in open_records(material["dev"]).lines(EXAMPLES_FILE)]
        (scores,) = run_evaluation(None, [material["dev"]])
        share = max(labels.count(label) for label in LABELS) / len(labels)
        assert scores["accuracy"] == pytest.approx(100 * share)
        assert "correlation" not in capsys.readouterr().out  # accuracy and F1 are none

    def test_records_of_another_kind_are_refused(self, finished, material, tmp_path):
        texts = made_up_pairs(8, 1, labels=(*LABELS, "other"))
        write_texts(texts, tmp_path / "labels", material["vocab.txt"])
        write_texts(made_up_scores(8, 1), tmp_path / "scores", material["vocab.txt"])
        for name, message in (
            ("labels", "label 'other' is none that .* knows: contradiction, entailment, neutral"),
            ("scores", "holds single texts, and .* is for pairs of texts; .*--text-pair-column"),
        ):
            with pytest.raises(MismatchError, match=message):
                run_evaluation(finished[0], [str(tmp_path / name)])
        with pytest.raises(MismatchError, match="label 'other'"):
            self.finetune(material, tmp_path / "run", dev=str(tmp_path / "labels"))
        assert not (tmp_path / "run").exists()
        with pytest.raises(
            MismatchError, match=r"data.dataset of these records is null, of .* rte;"
        ):
            self.finetune(material, tmp_path / "run", **{"data.dataset": "rte"})

    def test_texts_that_the_model_does_not_read_are_refused(self, finished):
        with pytest.raises(BadInputError, match="input 2: has no text 'text_pair'"):
            Predictor(finished[0])([self.raw_input, {"text": "the dog"}])

    @pytest.mark.slow
    def test_untrained_pooler_is_named_once(self, material, tmp_path, capfd):
        options = {"training.epochs": 1, "training.batch_size": 64}
        self.finetune(material, tmp_path / "run", **options)
        said = capfd.readouterr().out.replace("\n", " ")
        assert "its pooler was never trained" in said and "classifier.pooling=mean" in said
        assert "never trained" in (material.directory / "preset" / "README.md").read_text()
        assert "never trained" not in (tmp_path / "run" / "preset" / "README.md").read_text()
        self.finetune(
            material, tmp_path / "again", preset=str(tmp_path / "run" / "preset"), **options
        )
        assert "its pooler was never trained" not in capfd.readouterr().out
        self.finetune(material, tmp_path / "mean", **options, **{"classifier.pooling": "mean"})
        assert "its pooler" not in capfd.readouterr().out
        preset = str(tmp_path / "mean" / "preset")
        assert Preset(preset).arguments("task.json")["pooling"] == "mean"
        Predictor(preset)([self.raw_input])

    @pytest.mark.slow
    def test_adapters_leave_a_pooler_as_it_is_unless_nothing_trained_it(
        self, material, tmp_path, capfd
    ):
        options = {"training.epochs": 1, "training.batch_size": 64, "optimizer.lora_rank": 2}
        first, second = (str(tmp_path / name / "preset") for name in ("first", "second"))
        self.finetune(material, tmp_path / "first", **options)
        assert "it is trained now" in capfd.readouterr().out
        assert "never trained" not in (tmp_path / "first" / "preset" / "README.md").read_text()
        self.finetune(material, tmp_path / "second", preset=first, **options)
        assert "it is trained now" not in capfd.readouterr().out
        before, after, later = (
            SpanBertBackbone.from_preset(preset).pooled_dense.get_weights()
            for preset in (material["preset"], first, second)
        )
        for was, became, stayed in zip(before, after, later, strict=True):
            assert np.any(was != became)
            np.testing.assert_array_equal(became, stayed)

    @pytest.mark.slow
    def test_an_adapter_keeps_the_pooler_that_was_trained_beside_it(
        self, material, tmp_path, monkeypatch
    ):
        """Also of a run that goes on from one, whose encoder's own pooler nothing has trained."""
        monkeypatch.setenv("SPANBERT_TF_ENCODER", material["preset"])
        options = {"training.epochs": 1, "training.batch_size": 64, "optimizer.lora_rank": 2}
        first, second = (tmp_path / name for name in ("first", "second"))
        self.finetune(material, first, **options)
        self.finetune(material, second, preset=str(first / "adapter"), **options)
        poolers = [SpanBertBackbone.from_preset(material["preset"]).pooled_dense.get_weights()]
        for run in (first, second):
            whole, adapted = (
                SpanBertBackbone.from_preset(str(run / name)) for name in ("preset", "adapter")
            )
            for ours, theirs in zip(adapted.weights, whole.weights, strict=True):
                np.testing.assert_allclose(ours, theirs, atol=1e-6, err_msg=ours.path)
            poolers.append(adapted.pooled_dense.get_weights())
        for before, after in itertools.pairwise(poolers):
            assert all(np.any(was != became) for was, became in zip(before, after, strict=True))

    @pytest.mark.slow
    def test_patience_ends_a_run_that_keeps_no_best_checkpoint(self, material, tmp_path, capfd):
        """The first of three evaluations is the best one: nothing is learned."""
        options = {"training.epochs": 9, "training.batch_size": 64, "training.keep_best": "false"}
        options |= {"training.evaluations_per_epoch": 1, "training.early_stopping_patience": 2}
        options |= {"training.min_steps_between_evaluations": 1}
        self.finetune(material, tmp_path / "run", **options, **{"optimizer.learning_rate": 1e-30})
        assert "no better for 2 evaluations: stopped" in capfd.readouterr().out
        lines = read_metrics(str(tmp_path / "run" / METRICS_FILE))
        assert max(line["step"] for line in lines) == 3

    @pytest.mark.slow
    def test_the_best_one_can_be_chosen_by_the_loss(self, material, tmp_path):
        """One key says so, of checkpoints and of a grid; Keras computes the same loss."""
        options = {"training.epochs": 2, "training.batch_size": 16, "training.keep_best": "true"}
        options |= {"training.evaluations_per_epoch": 2, "training.best_metric": "loss"}
        options |= {"training.min_steps_between_evaluations": 1}
        rates = {"grid.learning_rates": "[0.5]", "grid.batch_sizes": "[16]"}  # too fast
        paths = material["preset"], material["train"], str(tmp_path), material["dev"]
        config = self.config(material, **options, **rates)
        run = pathlib.Path(run_grid(config, *paths, keep_checkpoints=True))
        losses = {
            line["step"]: line["validation_loss"]
            for line in read_metrics(str(run / METRICS_FILE))
            if "validation_loss" in line
        }
        (place,) = (run / "checkpoints").glob("best-*/checkpoint.json")
        best = json.loads(place.read_text())
        assert best.pop("sha256")
        step = min(losses, key=losses.get)
        assert best == {"step": step, "value": losses[step], "metric": "loss"}
        assert len(set(losses.values())) == 4
        scores = json.loads((run / "scores.json").read_text())
        assert scores["loss"] == pytest.approx(best["value"], abs=1e-6)
        _, model = load_task_model(str(run / "preset"))
        model.compile()
        batches = task_dataset(material["dev"], batch_size=7, training=False)
        found = keras.Model.evaluate(model, batches, return_dict=True, verbose=0)
        assert found["loss"] == pytest.approx(best["value"], abs=1e-5)

    def test_a_best_metric_that_no_evaluation_has_is_refused_before_a_step(
        self, material, tmp_path
    ):
        options = {"training.best_metric": "f2", "training.keep_best": "true"}
        options |= {"training.evaluations_per_epoch": 1}
        expected = "by 'f2', and they have accuracy, macro_f1, loss; --set training.best_metric"
        with pytest.raises(ConfigurationError, match=expected):
            self.finetune(material, tmp_path / "run", **options)
        assert not (tmp_path / "run").exists()

    @pytest.mark.slow
    def test_a_grid_that_gets_further_values_trains_those_alone(self, material, tmp_path):
        paths = material["preset"], material["train"], str(tmp_path), material["dev"]
        options = {"training.epochs": 1, "grid.batch_sizes": "[64]"}
        options |= {"training.evaluations_per_epoch": 1}
        logs = [tmp_path / f"learning-rate-{r}-batch-64" / METRICS_FILE for r in ("0.001", "0.002")]
        run_grid(self.config(material, **options, **{"grid.learning_rates": "[0.001]"}), *paths)
        before = logs[0].read_text()  # times, too
        run_grid(
            self.config(material, **options, **{"grid.learning_rates": "[0.001, 0.002]"}), *paths
        )
        assert logs[0].read_text() == before
        assert len(logs[1].read_text().splitlines()) == len(before.splitlines()) > 0
        rates = {"grid.learning_rates": "[0.001]"}
        (tmp_path / "learning-rate-0.001-batch-64" / "scores.json").unlink()
        for changed, error, said in (
            ({"training.keep_best": "true"}, MismatchError, "keep_best False and kept no check"),
            (
                {"training.accumulation_steps": 8, "grid.batch_sizes": "[64, 12]"},
                ConfigurationError,
                "12 rows cannot be cut into",
            ),
            ({}, BadInputError, "scores.json: cannot be read"),
        ):
            with pytest.raises(error, match=said):
                run_grid(self.config(material, **{**options, **rates, **changed}), *paths)

    @pytest.mark.slow
    def test_a_run_of_some_steps_says_what_it_learned_before_it_scores(
        self, material, tmp_path, capfd
    ):
        """64 rows in batches of 8: an epoch of 8 steps, scored in its middle, and the end at 6.

        A rate of next to nothing leaves the untrained head as it was, which knows one class.
        """
        options = {"training.max_steps": 6, "training.log_every": 1000}
        options |= {"training.evaluations_per_epoch": 2, "training.keep_best": "true"}
        options |= {"training.min_steps_between_evaluations": 1, "optimizer.learning_rate": 1e-30}
        run = tmp_path / "run"
        self.finetune(material, run, **options)
        printed = capfd.readouterr().out
        assert "6 steps of 8 rows, 0.75 epochs of 64 rows" in printed
        assert " in float32: accuracy" not in printed  # it is what all scores are in
        *_, size, title, evaluate, predict, export = printed.splitlines()
        names = "preset/, checkpoints/, metrics.jsonl, config.yaml"
        assert re.fullmatch(rf"{run}: {names}, [\d.]+ [kM]B", size)
        assert title == "Next:"
        for line, name in ((evaluate, "evaluate"), (predict, "predict"), (export, "export")):
            assert line.startswith(f"  spanbert-tf {name} --preset {run}/preset ")
        said = re.findall(r"^(step \d of 6: loss|evaluated after step \d: accuracy)", printed, re.M)
        assert said == [
            *("step 4 of 6: loss", "evaluated after step 4: accuracy"),
            *("step 6 of 6: loss", "evaluated after step 6: accuracy"),
        ]
        lines = read_metrics(str(run / METRICS_FILE))
        assert [(line["step"], "loss" in line) for line in lines] == [
            *((4, True), (4, False)),
            *((6, True), (6, False)),
        ]
        hints = re.findall(
            r"; '(\w+)' alone is predicted; if it stays so, raise optimizer.learning_rate or "
            r"training.epochs, or lower training.batch_size$",
            printed,
            re.M,
        )
        assert len(hints) == 3  # the score of the preset, too
        lines = run_prediction_labels(str(run / "preset"), material["dev"], tmp_path / "found")
        assert set(hints) == set(lines)
        with pytest.raises(
            MismatchError, match=r"training.max_steps is 6 .*begin another --output"
        ):
            self.finetune(material, run, **{**options, "training.max_steps": 7})

    @pytest.mark.slow
    @pytest.mark.parametrize("why", ["it has no --validation-data", "it has no steps"])
    def test_without_an_evaluation_the_last_step_is_the_one_kept(
        self, why, material, tmp_path, capfd
    ):
        has_steps = "steps" not in why
        options = {"training.epochs": int(has_steps), "training.batch_size": 64}
        options |= {"training.keep_best": "true", "training.evaluations_per_epoch": 1}
        dev = None if has_steps else material["dev"]
        run_finetuning(
            self.config(material, **options),
            material["preset"],
            material["train"],
            str(tmp_path / "run"),
            dev,
        )
        printed = capfd.readouterr().out
        assert (
            f"training.keep_best: no evaluation of this run chose a checkpoint ({why});" in printed
        )

    def test_majority_class_without_training(self, material, tmp_path):
        options = {"training.epochs": 0, "classifier.initial": "majority"}
        scores = self.finetune(material, tmp_path / "run", **options)
        preset = str(tmp_path / "run" / "preset")
        train = [line["label"] for line in open_records(material["train"]).lines(EXAMPLES_FILE)]
        dev = [line["label"] for line in open_records(material["dev"]).lines(EXAMPLES_FILE)]
        majority = max(LABELS, key=train.count)
        assert scores["accuracy"] == pytest.approx(100 * dev.count(majority) / len(dev))
        records = open_records(material["dev"])
        task, model = load_task_model(preset, [records])
        rows = task.predict(model, records, batch_size=8)
        shares = [train.count(label) / len(train) for label in LABELS]
        np.testing.assert_allclose(rows, [shares] * len(dev), atol=1e-5)

    def test_random_head_without_training_is_no_trained_one(self, material, tmp_path):
        config, output = self.config(material, **{"training.epochs": 0}), str(tmp_path / "run")
        run_finetuning(config, material["preset"], material["train"], output)
        with pytest.raises(BadInputError, match="was never trained"):
            load_task_model(f"{output}/preset", [open_records(material["dev"])])


def run_prediction_labels(preset, data, output):
    run_prediction(preset, data, str(output))
    lines = (output / "predictions.jsonl").read_text().splitlines()
    return [json.loads(line)["label"] for line in lines]


def answer(label, probabilities):
    return {"label": label, **{name: float(value) for name, value in probabilities.items()}}
