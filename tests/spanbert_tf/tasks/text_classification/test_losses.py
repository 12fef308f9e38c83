"""Fine-tuning step by step beside `transformers`, and other kinds of data than pairs of texts."""

import json

import numpy as np
import pytest
import tensorflow as tf
from made_up_texts import LABELS, VOCABULARY, made_up_pairs, made_up_scores, write_texts
from task_tests import run_benchmark, write_encoder

from benchmarks.classification_losses import compare
from spanbert_tf.errors import MismatchError
from spanbert_tf.models import SpanBertBackbone, SpanBertTokenizer
from spanbert_tf.presets.writing import write_preset
from spanbert_tf.tasks.evaluation import run_evaluation
from spanbert_tf.tasks.finetuning import run_finetuning
from spanbert_tf.tasks.lookup import open_records, task_dataset
from spanbert_tf.tasks.prediction import Predictor, export_preset, run_prediction
from spanbert_tf.tasks.table import load_task_config
from spanbert_tf.tasks.text_classification.files import LabelledText, LabelledTexts
from spanbert_tf.tasks.text_classification.records import EXAMPLES_FILE
from spanbert_tf.training.metrics_log import METRICS_FILE, read_metrics

SETTINGS = [
    "data.sequence_length=32",
    "training.epochs=1",
    "training.batch_size=8",
    "training.log_every=1",
    "training.evaluations_per_epoch=0",
    "training.keep_best=false",
    "optimizer.learning_rate=0.01",
]


@pytest.fixture(scope="module")
def material(tmp_path_factory):
    """Records of pairs, of single texts and of a regression, and a tiny encoder."""
    directory = tmp_path_factory.mktemp("material")
    vocabulary = directory / "vocab.txt"
    vocabulary.write_text("".join(f"{piece}\n" for piece in VOCABULARY))
    write_encoder(directory / "preset", VOCABULARY, seed=1)
    for name, count, seed in (("train", 60, 1), ("dev", 24, 2)):
        pairs = made_up_pairs(count, seed)
        singles = LabelledTexts(
            "made up",
            [LabelledText(e.line, e.texts[1:], e.label) for e in pairs.examples],
            LABELS,
            is_pair=False,
        )
        for kind, texts in (
            ("pairs", pairs),
            ("singles", singles),
            ("scores", made_up_scores(count, seed)),
        ):
            write_texts(texts, directory / kind / name, vocabulary)
        write_texts(pairs, directory / "aware" / name, vocabulary, segment_aware=True)
    backbone = SpanBertBackbone(
        len(VOCABULARY), 1, 2, 16, 16, max_sequence_length=32, position_embeddings="segment_aware"
    )
    tokenizer = SpanBertTokenizer(VOCABULARY, lowercase=True)
    write_preset(backbone, str(directory / "segabert"), tokenizer=tokenizer)
    return directory


def finetuned(material, kind, output, *settings, preset="preset"):
    config = load_task_config("classification", [*SETTINGS, *settings])
    data = [str(material / kind / name) for name in ("train", "dev")]
    scores = run_finetuning(config, str(material / preset), data[0], str(output), data[1])
    return str(output / "preset"), scores


@pytest.mark.slow
@pytest.mark.usefixtures("shipped_classes_alone")
@pytest.mark.parametrize("kind", ["pairs", "singles", "scores"])
def test_losses_and_predictions_are_those_of_transformers(kind, material):
    found = compare(
        str(material / "preset"),
        str(material / kind / "train"),
        str(material / kind / "dev"),
        epochs=7,
        batch_size=8,  # of 60 rows: the last batch of an epoch is filled up
        learning_rate=1e-3,
    )
    losses = found.losses[:50]
    np.testing.assert_allclose(losses[:, 0], losses[:, 1], atol=1e-4)
    assert losses[-8:, 0].mean() < losses[:8, 0].mean()  # something was learned
    np.testing.assert_allclose(found.predictions[:, 0], found.predictions[:, 1], atol=1e-2)


@pytest.mark.slow
def test_regression_from_training_to_export(material, tmp_path, capfd):
    preset, scores = finetuned(material, "scores", tmp_path / "run")
    assert set(scores) == {"pearson", "spearman", "score"}
    lines = read_metrics(str(tmp_path / "run" / METRICS_FILE))
    assert len(lines) == 8 and all("loss" in line for line in lines)
    assert not any(name.endswith("accuracy") for line in lines for name in line)
    data = str(material / "scores" / "dev")
    run_prediction(preset, data, str(tmp_path / "predictions"))
    in_files = [json.loads(x) for x in (tmp_path / "predictions/predictions.jsonl").open()]
    assert {item["label"] for item in in_files} == {"animals"}
    texts = [line["text"] for line in open_records(data).lines(EXAMPLES_FILE)]
    of_predictor = Predictor(preset)([{"text": text} for text in texts])
    serve = tf.saved_model.load(export_preset(preset, str(tmp_path / "served")))
    served = serve.signatures["serving_default"](text=tf.constant(texts))["scores"]
    for found in ([item["score"] for item in of_predictor], served):
        np.testing.assert_allclose(found, [item["score"] for item in in_files], atol=1e-5)
    capfd.readouterr()
    page = tmp_path / "report.html"
    (again,) = run_evaluation(preset, [data], report=str(page))
    assert again == scores
    golds = [line["label"] for line in open_records(data).lines(EXAMPLES_FILE)]
    far = sum(abs(g - item["score"]) >= 1 for g, item in zip(golds, in_files, strict=True))
    assert f"off by 1 or more: {far}" in page.read_text()
    (constant,) = run_evaluation(None, [data])
    assert constant == {"pearson": 0.0, "spearman": 0.0, "score": 0.0}
    assert "a correlation is undefined then, and counts as 0" in capfd.readouterr().out
    with pytest.raises(MismatchError, match=r"classifier.initial: is majority"):
        finetuned(material, "scores", tmp_path / "other", "classifier.initial=majority")


@pytest.mark.slow
def test_segabert_is_fine_tuned_on_pairs(material, tmp_path):
    preset, _ = finetuned(
        material, "aware", tmp_path / "run", "data.segment_aware=true", preset="segabert"
    )
    data = str(material / "aware" / "dev")
    x, _ = next(iter(task_dataset(data, batch_size=24, training=False)))
    np.testing.assert_array_equal(x["paragraph_indices"], x["segment_ids"])
    run_prediction(preset, data, str(tmp_path / "predictions"))
    in_files = [json.loads(x) for x in (tmp_path / "predictions/predictions.jsonl").open()]
    pairs = [
        {name: line[name] for name in ("text", "text_pair")}
        for line in open_records(data).lines(EXAMPLES_FILE)
    ]
    serve = tf.saved_model.load(export_preset(preset, str(tmp_path / "served")))
    columns = {name: tf.constant([pair[name] for pair in pairs]) for name in pairs[0]}
    served = serve.signatures["serving_default"](**columns)["probabilities"]
    for item, found, row in zip(in_files, Predictor(preset)(pairs), served, strict=True):
        assert found["label"] == item["label"]
        expected = [item["probabilities"][label] for label in LABELS]
        np.testing.assert_allclose(row, expected, atol=1e-5)
        assert found["score"] == pytest.approx(item["score"], abs=1e-5)
    with pytest.raises(MismatchError, match="write the records without --segment-aware"):
        finetuned(material, "aware", tmp_path / "other", "data.segment_aware=true")


@pytest.mark.slow
@pytest.mark.usefixtures("shipped_classes_alone")
def test_benchmark_runs_at_a_tiny_size(material, capfd):
    data, preset = str(material / "pairs" / "train"), str(material / "preset")
    assert "featurising: " in run_benchmark(data, preset, capfd)
