"""What is true of every fine-tuning task; its tests derive a class from `TaskTests`."""

import dataclasses
import hashlib
import json
import os
import pathlib
import re
import shutil
from typing import ClassVar

import keras
import numpy as np
import pytest
import tensorflow as tf
from commands_on_jax import run_on_jax
from graph_operations import PYTHON, of_host, operations_of_data, unknown_shapes
from signalled_runs import terminated_after

import spanbert_tf.training.devices
from benchmarks.classification import main as benchmark
from spanbert_tf.command_line import EXIT_BAD_INPUT
from spanbert_tf.errors import MismatchError
from spanbert_tf.models import SpanBertBackbone, SpanBertTokenizer
from spanbert_tf.presets.preset import Preset
from spanbert_tf.presets.writing import write_preset
from spanbert_tf.tasks.evaluation import load_task_model, run_evaluation
from spanbert_tf.tasks.finetuning import FinetuningJob, run_finetuning
from spanbert_tf.tasks.lookup import open_records, task_of_preset
from spanbert_tf.tasks.prediction import Predictor, export_preset, run_prediction
from spanbert_tf.tasks.table import load_task, load_task_config
from spanbert_tf.training.devices import Devices
from spanbert_tf.training.metrics_log import METRICS_FILE, read_metrics

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SEQUENCE_LENGTH = 32
ODD_TEXTS = {
    "empty": "",
    "blank": " \t\n",
    "very long": "the cat has the dog . " * 200,
    "long word": "x" * 1000,
    "emoji": "the 👩‍👩‍👧 has 🐈🐈🐈",
    "NUL": "the \0 cat\0",
    "half a surrogate pair": "the \ud83d cat",
    "right to left": "\u202e\u05e9\u05dc\u05d5\u05dd the cat",
    "special tokens": "[SEP] [CLS] [PAD] [MASK] cat",
}


@dataclasses.dataclass(frozen=True)
class Material:
    """Presets and records in a directory.

    `train`, `dev` and `other` are records; `preset` and `other-preset` tiny encoders of the same
    shape, `still-preset` one without dropout.
    """

    directory: pathlib.Path

    def __getitem__(self, name):
        return str(self.directory / name)


def write_encoder(directory, vocabulary, *, seed, dropout=0.1):
    keras.utils.set_random_seed(seed)
    backbone = SpanBertBackbone(
        len(vocabulary), 2, 4, 32, 64, max_sequence_length=SEQUENCE_LENGTH, dropout=dropout
    )
    tokenizer = SpanBertTokenizer(vocabulary, lowercase=True)
    write_preset(backbone, str(directory), tokenizer=tokenizer)


class TaskTests:
    """Tests of a task; a subclass says what is below, and may have more.

    An answer is a dict of what is known of a prediction; of two answers what both know must agree,
    numbers up to rounding.
    """

    config_text: str  # YAML of a configuration
    vocabulary: list[str]
    raw_input: dict  # that the task can answer
    replica_options: ClassVar = {}  # where another configuration keeps rounding errors small

    def write_records(self, directory, vocabulary):
        """Writes `train` (64 rows), `dev` and `other` into a directory."""
        raise NotImplementedError

    def raw_inputs(self, data):
        """The raw inputs that records were made of, in their order."""
        raise NotImplementedError

    def answers_in_files(self, output):
        """What `predict --data` wrote, an answer for each raw input."""
        raise NotImplementedError

    def answers_of_export(self, outputs):
        """What `serving_default` returned, as arrays: an answer for each input."""
        raise NotImplementedError

    def answer_of_predictor(self, found):
        """What the predictor returned for one input, as an answer."""
        raise NotImplementedError

    def odd_inputs(self):
        """Raw inputs with an odd text each."""
        return [
            {**self.raw_input, field: text}
            for field in self.raw_input
            for text in ODD_TEXTS.values()
        ]

    @pytest.fixture(scope="class")
    def material(self, tmp_path_factory):
        directory = tmp_path_factory.mktemp("material")
        (directory / "vocab.txt").write_text("".join(f"{piece}\n" for piece in self.vocabulary))
        (directory / "config.yaml").write_text(self.config_text)
        self.write_records(directory, str(directory / "vocab.txt"))
        write_encoder(directory / "preset", self.vocabulary, seed=1)
        write_encoder(directory / "other-preset", self.vocabulary, seed=2)
        write_encoder(directory / "still-preset", self.vocabulary, seed=1, dropout=0.0)
        return Material(directory)

    def config(self, material, **overrides):
        values = {
            "data.sequence_length": SEQUENCE_LENGTH,
            "training.batch_size": 8,
            "training.epochs": 2,
            "training.log_every": 1,
            "training.checkpoint_every_steps": 6,
            "optimizer.learning_rate": 0.01,
            **overrides,
        }
        settings = [f"{key}={value}" for key, value in values.items()]
        return load_task_config(material["config.yaml"], settings)

    def finetune(self, material, output, preset="preset", data="train", dev="dev", **overrides):
        return run_finetuning(
            self.config(material, **overrides),
            material[preset],
            material[data],
            str(output),
            material[dev],
        )

    @pytest.fixture(scope="class")
    def finished(self, material, tmp_path_factory):
        """The preset of a run, and its scores."""
        output = tmp_path_factory.mktemp("runs") / "run"
        scores = self.finetune(material, output)
        return str(output / "preset"), scores

    def test_validation_data_of_another_vocabulary_is_refused(self, material, tmp_path):
        others = tmp_path / "vocab.txt"
        others.write_text("".join(f"{piece}\n" for piece in (*self.vocabulary, "zebra")))
        self.write_records(tmp_path, str(others))
        with pytest.raises(MismatchError, match=f"{tmp_path / 'dev'} .vocabulary_hash.;"):
            self.finetune(material, tmp_path / "run", dev=tmp_path / "dev")
        assert not (tmp_path / "run").exists()

    def test_scores_of_a_run_are_those_of_its_preset(self, finished, material):
        preset, scores = finished
        size = self.config(material).prediction.batch_size
        (again,) = run_evaluation(preset, [material["dev"]], batch_size=size)
        assert again == scores
        assert json.loads(pathlib.Path(preset, "..", "scores.json").read_text()) == scores

    @pytest.mark.parametrize("by", ["write_preset", "save_to_preset"])
    def test_saved_and_loaded_a_model_predicts_the_same(self, by, finished, material, tmp_path):
        _, model = load_task_model(finished[0], [open_records(material["dev"])])
        if by == "write_preset":
            write_preset(model, str(tmp_path / "preset"))
        else:
            model.save_to_preset(str(tmp_path / "preset"))
        run_prediction(finished[0], material["dev"], str(tmp_path / "first"))
        run_prediction(str(tmp_path / "preset"), material["dev"], str(tmp_path / "second"))
        names = sorted(os.listdir(tmp_path / "first"))
        assert names == sorted(os.listdir(tmp_path / "second"))
        for name in names:
            first, second = (tmp_path / way / name for way in ("first", "second"))
            # Evaluations tell the preset by its files, and these are others.
            digest = re.compile(r'"golden_sha256": (null|"[0-9a-f]{64}")')
            assert digest.sub("", second.read_text()) == digest.sub("", first.read_text())

    def test_export_and_predictor_say_what_predict_says(self, finished, material, tmp_path):
        preset = finished[0]
        inputs = self.raw_inputs(material["dev"])
        run_prediction(preset, material["dev"], str(tmp_path / "predictions"))
        in_files = self.answers_in_files(tmp_path / "predictions")
        path = export_preset(preset, str(tmp_path / "served"))
        serve = tf.saved_model.load(path).signatures["serving_default"]
        columns = {name: tf.constant([item[name] for item in inputs]) for name in inputs[0]}
        served = {name: values.numpy() for name, values in serve(**columns).items()}
        of_nobody = serve(**{name: values[:0] for name, values in columns.items()})
        assert all(len(values) == 0 for values in of_nobody.values())
        of_export = self.answers_of_export(served)
        of_predictor = list(map(self.answer_of_predictor, Predictor(preset)(inputs)))
        assert len(in_files) == len(inputs) > 10
        assert_same_answers(of_export, in_files)
        assert_same_answers(of_predictor, in_files)
        assert_same_answers(of_predictor, of_export)

    def test_export_in_bfloat16_answers_and_says_what_it_changes(
        self, finished, material, tmp_path, capsys
    ):
        path = export_preset(finished[0], str(tmp_path / "served"), precision="bfloat16")
        said = re.search(
            r"bfloat16: the README's example has \w+ \w+ answer(, whose numbers.* to (\S+))?\n",
            capsys.readouterr().out.replace("another", "an other"),
        )
        assert said[2] is None or 0 < float(said[2]) < 0.5
        serve = tf.saved_model.load(path).signatures["serving_default"]
        inputs = self.raw_inputs(material["dev"])
        columns = {name: tf.constant([item[name] for item in inputs]) for name in inputs[0]}
        for values in serve(**columns).values():
            assert len(values) == len(inputs)
            assert values.dtype == tf.string or np.isfinite(values).all()

    def test_the_example_that_a_server_warms_up_with_is_answered(self, finished):
        """Each signature gets it alone and in batches, short and long."""
        task = task_of_preset(finished[0])
        served = task.served(Preset(finished[0]).trained_task(task.model_class), 2)
        signatures, sizes = served.signatures, {}
        traced = {
            name: tf.function(function, input_signature=specs)
            for name, (function, specs) in signatures.items()
        }
        for name, inputs in served.warmup_requests():
            assert list(inputs) == [spec.name for spec in signatures[name][1]]
            outputs = traced[name](*map(tf.constant, inputs.values()))
            (size,) = {len(values) for values in (*inputs.values(), *outputs.values())}
            sizes.setdefault(name, set()).add(size)
        assert sizes.keys() == signatures.keys()
        assert all(1 in found and len(found) > 1 for found in sizes.values())

    def test_a_batch_of_one_row_changes_nothing(self, finished, material, tmp_path):
        for size in (1, 32):
            output = str(tmp_path / str(size))
            run_prediction(finished[0], material["dev"], output, batch_size=size)
        alone, together = (self.answers_in_files(tmp_path / name) for name in ("1", "32"))
        assert_same_answers(alone, together)

    def test_odd_texts_are_answered_as_if_alone(self, finished):
        inputs = self.odd_inputs()
        predict = Predictor(finished[0])
        found = predict([self.raw_input, *inputs])
        assert len(found) == len(inputs) + 1
        for item, answer in zip(inputs, found[1:], strict=True):
            alone = predict(item)
            json.dumps(alone, allow_nan=False, ensure_ascii=False).encode()  # nothing odd comes out
            assert_same_answers(*([self.answer_of_predictor(one)] for one in (answer, alone)))

    def test_rows_of_weight_0_change_nothing(self, finished, material):
        task, model = load_task_model(finished[0])
        records = open_records(material["train"], task)
        batch = next(iter(task.dataset(records, batch_size=8, training=True, seed=0)))
        x, y, _ = batch
        x_of_half, y_of_half = tf.nest.map_structure(lambda values: values[:4], (x, y))
        weights = tf.constant([1.0] * 4 + [0.0] * 4)
        half = _sums_and_gradients(model, x_of_half, y_of_half, None)
        weighted = _sums_and_gradients(model, x, y, weights)
        whole = _sums_and_gradients(model, x, y, None)
        for expected, actual in zip(half, weighted, strict=True):
            np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-6)
        assert abs(whole[0] - half[0]) > 1e-3  # the other rows would have changed something

    @pytest.mark.slow
    def test_bfloat16_trains_goes_on_and_predicts(self, material, tmp_path, capfd):
        """The command that goes on says `auto`, which is float32 for so narrow an encoder."""
        run, options = tmp_path / "run", {"training.epochs": 1}
        half = {**options, "training.precision": "mixed_bfloat16"}
        scores = self.finetune(material, run, **half)
        assert f"\n{material['dev']} in float32: " in capfd.readouterr().out  # not as it trained
        assert scores and np.isfinite(list(scores.values())).all()
        losses = [line["loss"] for line in read_metrics(str(run / METRICS_FILE))]
        assert len(losses) == 8 and np.isfinite(losses).all()
        assert self.finetune(material, run, **options) == scores
        with pytest.raises(MismatchError, match=r"training.precision is mixed_bfloat16"):
            self.finetune(material, run, **options, **{"training.precision": "float32"})
        preset = str(run / "preset")
        (again,) = run_evaluation(preset, [material["dev"]])
        assert again == scores
        (in_half,) = run_evaluation(preset, [material["dev"]], precision="bfloat16")
        assert in_half.keys() == scores.keys() and np.isfinite(list(in_half.values())).all()
        _, model = load_task_model(preset, precision="bfloat16")
        assert model.backbone.compute_dtype == "bfloat16"
        found = Predictor(preset, precision="bfloat16")([self.raw_input, *self.odd_inputs()])
        json.dumps(found, allow_nan=False)

    @pytest.mark.parametrize(
        ("option", "changed"),
        [
            ("--data", {"data": "other"}),
            ("--validation-data", {"dev": "other"}),
            ("--preset", {"preset": "other-preset"}),
        ],
    )
    def test_run_goes_on_with_what_it_was_begun_with_alone(
        self, option, changed, finished, material
    ):
        output = pathlib.Path(finished[0]).parent
        before = _contents(output)
        with pytest.raises(MismatchError, match=f"was begun with another {option};"):
            self.finetune(material, output, **changed)
        assert _contents(output) == before

    @pytest.mark.slow
    def test_a_tpu_gets_rows_of_one_shape_and_a_step_without_the_host(self, material):
        config = self.config(material, **{"training.precision": "float32"})
        job = FinetuningJob(config, material["preset"], material["train"], None)
        model, task = job.build(Devices(config.training)), load_task(config.task)
        options = {"batch_size": 8, "training": True, "last_batch": 4}
        data = task.dataset(open_records(material["train"], task), **options)
        assert not unknown_shapes(data.element_spec)
        assert not operations_of_data(data) & PYTHON
        assert not of_host(model.train_step, data.element_spec)

    @pytest.mark.slow
    def test_a_run_goes_on_with_jax_and_is_scored_there(self, material, tmp_path, monkeypatch):
        """By the commands; without dropout, which draws other numbers on each backend."""
        options = {"training.epochs": 1, "optimizer.epsilon": 1e-3, **self.replica_options}
        options |= {"training.checkpoint_every_steps": 1, "training.max_checkpoints": 99}
        here, there = tmp_path / "here", tmp_path / "there"
        self.finetune(material, here, preset="still-preset", **options)
        shutil.copytree(here, there)
        shutil.rmtree(there / "preset")
        for path in (there / "checkpoints").glob("step-*"):
            if path.name > "step-00000002":
                shutil.rmtree(path)
        (tmp_path / "config.yaml").write_text(self.config(material, **options).to_yaml())
        finetune = ["finetune", "--config", tmp_path / "config.yaml", "--output", there]
        finetune += ["--preset", material["still-preset"], "--data", material["train"]]
        finetune += ["--validation-data", material["dev"]]
        goes_on = [*finetune, "--backend-changed"]
        evaluate = ["evaluate", "--preset", here / "preset", "--data", material["dev"]]
        child, statuses = run_on_jax(finetune, goes_on, evaluate)
        assert statuses == [EXIT_BAD_INPUT, 0, 0], child.stderr
        assert "begun with another KERAS_BACKEND" in child.stderr
        assert "--backend-changed resumes it nevertheless" in child.stderr
        lines, others = (read_metrics(str(run / METRICS_FILE)) for run in (here, there))
        assert len(lines) == len(others) >= 8
        for expected, found in zip(lines, others, strict=True):
            # The first line after a start does not estimate the time.
            assert found.keys() - {"seconds_left"} == expected.keys() - {"seconds_left"}
            for name in ("loss", "gradient_norm", "learning_rate"):
                assert found.get(name) == pytest.approx(expected.get(name), rel=1e-3)
        (scores,) = run_evaluation(str(here / "preset"), [material["dev"]])
        said = child.stdout.split("status 0")[1]
        for name, value in scores.items():
            assert f"{name} {value:.2f}" in said


class TrainingTests(TaskTests):
    """The same loop trains every task: two that differ in objective and batches stand for all."""

    @pytest.mark.slow
    def test_two_replicas_train_as_one_device(self, material, tmp_path, two_devices, monkeypatch):
        # With its own epsilon, Adam blows rounding errors of gradients near 0 up to whole steps.
        options = {"preset": "still-preset", "training.epochs": 1, "optimizer.epsilon": 1e-3}
        options |= self.replica_options
        self.finetune(material, tmp_path / "one", **options)
        monkeypatch.setattr(spanbert_tf.training.devices, "make_strategy", lambda *_: two_devices)
        self.finetune(material, tmp_path / "two", **options)
        one, two = (read_metrics(str(tmp_path / name / METRICS_FILE)) for name in ("one", "two"))
        assert len(one) == len(two) == 8
        for expected, actual in zip(one, two, strict=True):
            assert actual["loss"] == pytest.approx(expected["loss"], abs=1e-5)
        for expected, actual in zip(
            *(_weights(tmp_path / name / "preset") for name in ("one", "two")), strict=True
        ):
            np.testing.assert_allclose(actual, expected, atol=1e-5)

    @pytest.mark.slow
    def test_stopped_run_goes_on_to_the_same_bits(self, finished, material, tmp_path, capfd):
        with terminated_after(9):
            assert self.finetune(material, tmp_path / "run") is None
        assert "saved step 9 of 16; run the same command again" in capfd.readouterr().out
        # The rest in loops of as many steps as there are between evaluations and checkpoints.
        loops = {"training.steps_per_execution": 8, "training.log_every": 16}
        loops |= {"training.checkpoint_every_steps": 8}
        assert self.finetune(material, tmp_path / "run", **loops) == finished[1]
        assert "going on after step 9 of 16" in capfd.readouterr().out
        for expected, actual in zip(
            _weights(finished[0]), _weights(tmp_path / "run" / "preset"), strict=True
        ):
            np.testing.assert_array_equal(actual, expected)


def run_benchmark(data, preset, capfd):
    """The benchmark of classifiers at a tiny size; returns what it printed."""
    arguments = ["--data", data, "--preset", preset, "--batches", "1", "--rounds", "1"]
    benchmark(arguments, standalone_mode=False)
    printed = capfd.readouterr().out
    for part in ("train here beside with dynamic", "predict here beside padded"):
        assert part in printed
    return printed


def assert_same_answers(actual, expected):
    for one, other in zip(actual, expected, strict=True):
        both = sorted(set(one) & set(other))
        assert both
        for name in both:
            if isinstance(one[name], float):
                assert one[name] == pytest.approx(other[name], abs=1e-5), (one, other)
            else:
                assert one[name] == other[name], (one, other)


def _sums_and_gradients(model, x, y, weights):
    """The loss, right answers and targets of the objectives, and the loss's gradients."""
    with tf.GradientTape() as tape:
        sums = model.objective_sums(x, model(x, training=False), y, weights)
        loss = sum(part.loss for part in sums.values())
    counts = model.target_counts(x, y, weights)
    for name, part in sums.items():
        assert float(counts[name]) == float(part.num_targets)
    numbers = [float(value) for part in sums.values() for value in part if value is not None]
    gradients = tape.gradient(loss, model.trainable_variables)
    return [*numbers, *(tf.convert_to_tensor(gradient).numpy() for gradient in gradients)]


def _weights(preset):
    return load_task_model(str(preset))[1].get_weights()


def _contents(directory):
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in directory.rglob("*")
        if path.is_file()
    }
