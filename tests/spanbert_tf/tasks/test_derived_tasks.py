"""Tasks of another package that derive from a shipped one, as docs/adding_a_task.md shows it.

`by_loss`, the page's, shares the shipped task's models and records; `own_answers` has models of its
own; `twin_a` and `twin_b` share theirs with each other.
"""

import json
import pathlib

import by_loss
import keras
import pytest
from made_up_texts import made_up_pairs, write_texts
from task_tests import SPECIAL, write_encoder

from spanbert_tf.errors import BadInputError, ConfigurationError
from spanbert_tf.models import SpanBertTextClassifier
from spanbert_tf.presets.writing import write_preset
from spanbert_tf.tasks.evaluation import load_task_model, run_evaluation
from spanbert_tf.tasks.finetuning import run_finetuning
from spanbert_tf.tasks.lookup import open_records, task_of_preset
from spanbert_tf.tasks.prediction import Predictor, run_prediction
from spanbert_tf.tasks.table import load_task, load_task_config
from spanbert_tf.tasks.text_classification.task import TextClassification
from spanbert_tf.training.checkpoint_files import saved_steps
from spanbert_tf.training.checkpoints import Best
from spanbert_tf.training.metrics_log import METRICS_FILE, read_metrics

VOCABULARY = [*SPECIAL, "the", "has", ".", "?", "a", "ann", "bob", "cat", "dog", "owl", "fox"]
TASKS = {
    "by_loss": "by_loss:ByLoss",
    "own_answers": "test_derived_tasks:OwnAnswers",
    "twin_a": "test_derived_tasks:TwinA",
    "twin_b": "test_derived_tasks:TwinB",
}


@keras.saving.register_keras_serializable(package="derived")
class OwnClassifier(SpanBertTextClassifier):
    pass


@keras.saving.register_keras_serializable(package="derived")
class TwinClassifier(SpanBertTextClassifier):
    pass


class OwnAnswers(TextClassification):
    name, model_class = "own_answers", OwnClassifier

    def answer(self, description, item, found, top_k):
        return "mine"

    def score(self, outcome):
        return {**super().score(outcome), "mine": 1.0}


class TwinA(TextClassification):
    name, model_class = "twin_a", TwinClassifier


class TwinB(TwinA):
    name = "twin_b"


@pytest.fixture(scope="module", autouse=True)
def installed(tmp_path_factory):
    directory = tmp_path_factory.mktemp("site") / "derived-1.0.dist-info"
    directory.mkdir()
    (directory / "METADATA").write_text("Metadata-Version: 2.1\nName: derived\nVersion: 1.0\n")
    lines = "".join(f"{name} = {place}\n" for name, place in TASKS.items())
    (directory / "entry_points.txt").write_text(f"[spanbert_tf.tasks]\n{lines}")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(directory.parent))
        patch.syspath_prepend(str(pathlib.Path(__file__).parent))  # the entry points name this file
        yield


@pytest.fixture(scope="module")
def material(tmp_path_factory):
    directory = tmp_path_factory.mktemp("material")
    (directory / "vocab.txt").write_text("".join(f"{piece}\n" for piece in VOCABULARY))
    for name, count, seed in (("train", 48, 1), ("dev", 16, 2)):
        write_texts(made_up_pairs(count, seed), directory / name, directory / "vocab.txt")
    write_encoder(directory / "encoder", VOCABULARY, seed=1)
    return directory


@pytest.fixture(scope="module")
def preset_of(material):
    """A preset of a task's model, untrained but for the mark that it was trained."""

    def preset(name):
        path = material / name
        if not path.exists():
            task, records = load_task(name), open_records(material / "dev")
            encoder = keras_hub_encoder(material)
            model = task.build(*encoder, records.manifest, TextClassification.config_class())
            model.is_head_trained = True
            write_preset(model, str(path))
        return str(path)

    return preset


def keras_hub_encoder(material):
    from spanbert_tf.models import SpanBertBackbone, SpanBertTokenizer

    preset = str(material / "encoder")
    return SpanBertBackbone.from_preset(preset), SpanBertTokenizer.from_preset(preset)


def test_a_shipped_preset_stays_with_its_task(material, preset_of, tmp_path):
    """Whatever derived task sorts before it and has models of its class."""
    preset, data = preset_of("text_classification"), str(material / "dev")
    assert task_of_preset(preset).name == "text_classification"
    assert load_task_model(preset, [open_records(data)])[0].name == "text_classification"
    (scores,) = run_evaluation(preset, [data])
    run_prediction(preset, data, str(tmp_path / "predictions"))
    assert scores.keys() == {"accuracy", "macro_f1"}
    assert Predictor(preset).task == "text_classification"


def test_a_task_with_models_of_its_own_answers_and_scores_by_itself(material, preset_of):
    preset, data = preset_of("own_answers"), str(material / "dev")
    assert Predictor(preset)({"text": "the dog", "text_pair": "a dog"}) == "mine"
    (scores,) = run_evaluation(preset, [data])
    assert scores["mine"] == 1.0


def test_a_preset_that_may_be_of_two_tasks_is_refused_by_their_names(preset_of):
    preset = preset_of("twin_b")
    with pytest.raises(BadInputError, match="class that the tasks twin_a and twin_b share; give"):
        Predictor(preset)
    assert task_of_preset(preset, "twin_b").name == "twin_b"


@pytest.mark.slow
def test_the_best_checkpoint_by_the_loss_after_a_wrong_name(material, tmp_path, monkeypatch):
    """A name that no evaluation has is said in a line, and the run goes on when it is mended."""
    (tmp_path / "config.yaml").write_text("task: by_loss\n")
    settings = ["training.batch_size=8", "training.epochs=4", "training.keep_best=true"]
    settings += ["training.evaluations_per_epoch=1"]
    settings += ["training.min_steps_between_evaluations=1"]
    settings += ["data.sequence_length=32", "optimizer.learning_rate=0.01"]
    config = load_task_config(str(tmp_path / "config.yaml"), settings)
    output = tmp_path / "run"
    data = (material / "encoder", material / "train", output, material / "dev")

    monkeypatch.setattr(by_loss.ByLoss, "best", Best("los", "min"))
    expected = r": its best evaluation is to be chosen by 'los', and they have accuracy, macro_f1, "
    expected += r"loss; --set training.best_metric to one of these, and give the same command again"
    with pytest.raises(ConfigurationError, match="^task by_loss" + expected):
        run_finetuning(config, *map(str, data))
    assert not output.exists()  # the baseline's scores have told the names
    monkeypatch.setattr(by_loss.ByLoss, "baseline", None)
    with pytest.raises(ConfigurationError, match=f"^{output}{expected}"):
        run_finetuning(config, *map(str, data))
    assert saved_steps(output / "checkpoints") == [6]
    monkeypatch.undo()

    scores = run_finetuning(config, *map(str, data))
    lines = [line for line in read_metrics(output / METRICS_FILE) if "validation_loss" in line]
    best = min(lines, key=lambda line: line["validation_loss"])
    assert [line["step"] for line in lines] == [6, 12, 18, 24]
    assert scores["loss"] == pytest.approx(best["validation_loss"], rel=1e-4)
    assert json.loads((output / "scores.json").read_text()) == scores
    (again,) = run_evaluation(output / "preset", [material / "dev"])
    assert again == {name: value for name, value in scores.items() if name != "loss"}
