"""Fine-tuning for question answering, from records to answers."""

import html
import json
import os
import re
import shutil

import keras
import numpy as np
import pytest
import torch
import transformers
from made_up_questions import VOCABULARY, WORDS, made_up_questions
from torch_models import keras_inputs, largest_difference, rows_of, torch_model, torch_outputs

from spanbert_tf.config import shipped_directory, shipped_names
from spanbert_tf.conversion.parameters import encoder_parameters
from spanbert_tf.errors import BadInputError, ConfigurationError, MismatchError
from spanbert_tf.models import SpanBertBackbone, SpanBertQuestionAnswerer, SpanBertTokenizer
from spanbert_tf.presets.writing import write_preset
from spanbert_tf.studies.grid import run_grid
from spanbert_tf.tasks.evaluation import load_task_model, run_evaluation
from spanbert_tf.tasks.finetuning import run_finetuning
from spanbert_tf.tasks.lookup import open_records
from spanbert_tf.tasks.prediction import export_preset, run_prediction
from spanbert_tf.tasks.question_answering.records import CONTEXTS_FILE, QUESTIONS_FILE
from spanbert_tf.tasks.question_answering.rows import QuestionOptions, write_questions
from spanbert_tf.tasks.table import load_task_config


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    directory = tmp_path_factory.mktemp("questions")
    vocabulary = directory / "vocab.txt"
    vocabulary.write_text("".join(f"{piece}\n" for piece in VOCABULARY))
    for name, count, seed in (("train", 64, 1), ("dev", 24, 2)):
        write_questions(
            made_up_questions(count, seed),
            str(directory / name),
            vocabulary=str(vocabulary),
            lowercase=True,
            options=QuestionOptions(sequence_length=32),
        )
    keras.utils.set_random_seed(1)
    backbone = SpanBertBackbone(len(VOCABULARY), 2, 4, 32, 64, max_sequence_length=32)
    tokenizer = SpanBertTokenizer(VOCABULARY, lowercase=True)
    write_preset(backbone, str(directory / "preset"), tokenizer=tokenizer)
    return directory


def config(**overrides):
    values = {
        "data.sequence_length": 32,
        "training.batch_size": 8,
        "training.epochs": 2,
        "training.log_every": 4,
        "training.checkpoint_every_steps": 6,
        "optimizer.learning_rate": 0.01,
        **overrides,
    }
    return load_task_config("squad_v1", [f"{key}={value}" for key, value in values.items()])


def run(directory, output, settings=None, **options):
    return run_finetuning(
        settings or config(),
        str(directory / "preset"),
        str(directory / "train"),
        str(output),
        **options,
    )


@pytest.fixture(scope="module")
def finished(directory, tmp_path_factory):
    output = tmp_path_factory.mktemp("runs") / "run"
    scores = run(directory, output, validation_data=str(directory / "dev"))
    return output, scores


@pytest.mark.slow
def test_questions_with_their_accents_are_no_questions_for_a_model_without(
    finished, directory, tmp_path
):
    write_questions(
        made_up_questions(2, 3),
        str(tmp_path / "kept"),
        vocabulary=str(directory / "vocab.txt"),
        lowercase=True,
        strip_accents=False,
        options=QuestionOptions(sequence_length=32),
    )
    with pytest.raises(MismatchError, match=r"write the records again with --preset "):
        load_task_model(str(finished[0] / "preset"), [open_records(tmp_path / "kept")])


def test_logits_are_those_of_pytorch():
    vocabulary = [*VOCABULARY[:5], *WORDS[:13]]
    model = torch_model(transformers.BertForQuestionAnswering)
    backbone = SpanBertBackbone(len(vocabulary), 2, 4, 32, 37, max_sequence_length=16)
    for parameter in encoder_parameters(backbone):
        tensor = model.get_parameter(parameter.name)
        parameter.assign(tensor.detach().numpy())
    answerer = SpanBertQuestionAnswerer(backbone)
    linear = model.qa_outputs
    answerer.span_classifiers.set_weights(
        [linear.weight.detach().numpy().T, linear.bias.detach().numpy()]
    )
    rows = rows_of(vocabulary, ["ann has the cat", "bob", "who"])
    actual = answerer(keras_inputs(rows), training=False)
    expected = torch_outputs(model, rows)
    for name in ("start_logits", "end_logits"):
        difference = largest_difference(actual[name], expected[name].numpy(), rows)
        assert difference < 2e-5
        assert (np.array(actual[name])[rows["attention_mask"] == 0] < -1e8).all()
    positions = {"start_positions": np.array([1, 0, 1]), "end_positions": np.array([4, 0, 1])}
    loss = answerer.compute_loss(None, positions, actual)
    # PyTorch takes the mean over both ends of a batch as well; padding has no share there either.
    logits = [torch.tensor(np.array(actual[f"{end}_logits"])) for end in ("start", "end")]
    targets = [torch.tensor(positions[f"{end}_positions"]) for end in ("start", "end")]
    losses = map(torch.nn.functional.cross_entropy, logits, targets)
    assert float(loss) == pytest.approx(sum(map(float, losses)) / 2, rel=1e-5)


def test_official_files_hold_what_is_scored(finished, directory):
    output, scores = finished
    assert set(scores) == {"exact_match", "f1"}
    assert {"config.yaml", "checkpoints", "metrics.jsonl", "preset", "scores.json"} <= set(
        os.listdir(output)
    )
    preset = str(output / "preset")
    run_prediction(preset, str(directory / "dev"), str(output / "predictions"))
    predictions = json.loads((output / "predictions" / "predictions.json").read_text())
    nbest = json.loads((output / "predictions" / "nbest_predictions.json").read_text())
    golds = {
        line["id"]: line["gold_texts"]
        for line in open_records(str(directory / "dev")).lines(QUESTIONS_FILE)
    }
    right = sum(predictions[name] in golds[name] for name in golds)
    assert 100 * right / len(golds) == pytest.approx(scores["exact_match"])
    for name, candidates in nbest.items():
        assert predictions[name] == candidates[0]["text"]
        assert sum(candidate["probability"] for candidate in candidates) == pytest.approx(1)
        texts = [candidate["text"] for candidate in candidates]
        assert len(set(texts)) == len(texts)


@pytest.mark.slow
def test_random_weights_are_none_of_the_preset(directory, tmp_path):
    settings = {"training.epochs": 1, "optimizer.learning_rate": 1e-12}
    kernels = {}
    for random_weights in (False, True):
        output = tmp_path / str(random_weights)
        run(directory, output, config(**settings, **{"training.random_weights": random_weights}))
        trained = SpanBertQuestionAnswerer.from_preset(str(output / "preset"))
        kernels[random_weights] = trained.backbone.token_embedding.embeddings.numpy()
    preset = SpanBertBackbone.from_preset(str(directory / "preset"))
    expected = preset.token_embedding.embeddings.numpy()
    np.testing.assert_allclose(kernels[False], expected, atol=1e-6)
    assert abs(np.corrcoef(kernels[True].ravel(), expected.ravel())[0, 1]) < 0.2
    assert kernels[True].std() == pytest.approx(0.02, rel=0.2)


def test_several_sets_have_a_mean(finished, directory, capfd):
    sets = [str(directory / name) for name in ("dev", "train")]
    first, second = run_evaluation(str(finished[0] / "preset"), sets)
    lines = capfd.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines if "exact_match" in line][:2] == sets
    means = [(first[name] + second[name]) / 2 for name in ("exact_match", "f1")]
    assert lines[-1] == (
        f"overall, the mean of 2 sets: exact_match {means[0]:.2f}, f1 {means[1]:.2f}"
    )


def test_changed_preset_is_noticed(finished, directory, tmp_path):
    preset = shutil.copytree(finished[0] / "preset", tmp_path / "preset")
    weights = bytearray((preset / "model.weights.h5").read_bytes())
    weights[len(weights) // 2] ^= 1
    (preset / "model.weights.h5").write_bytes(weights)
    data = str(directory / "dev")
    for use in (
        lambda: run_evaluation(str(preset), [data]),
        lambda: run_prediction(str(preset), data, str(tmp_path / "predictions")),
        lambda: export_preset(str(preset), str(tmp_path / "served")),
    ):
        with pytest.raises(BadInputError, match=r"is not the file that golden.json describes"):
            use()
    assert os.listdir(tmp_path) == ["preset"]


def test_report_shows_each_question(finished, directory, tmp_path):
    page = tmp_path / "report.html"
    preset, data = str(finished[0] / "preset"), str(directory / "dev")
    run_evaluation(preset, [data], report=str(page))
    text = page.read_text(encoding="utf-8")
    articles = re.findall(r"<article.*?</article>", text, flags=re.DOTALL)
    questions, contexts = (
        open_records(data).lines(QUESTIONS_FILE),
        open_records(data).lines(CONTEXTS_FILE),
    )
    assert len(articles) == len(questions)
    numbers = [int(re.search(r"question (\d+) of", article)[1]) for article in articles]
    assert sorted(numbers) == list(range(1, len(questions) + 1))
    for number, article in zip(numbers, articles, strict=True):
        question = questions[number - 1]
        passage = re.search(r"<p[^>]*>(.*)</p>", article, flags=re.DOTALL).group(1)
        context = contexts[question["context_index"]]
        assert html.unescape(re.sub(r"</?mark[^>]*>", "", passage)) == context
        # What is marked as gold, by itself or where the model's answer is, too, is the gold answer;
        # an exact match is marked as the model gave it.
        marked = re.findall(r'<mark class="(?:gold|both|overlap)"[^>]*>([^<]*)</mark>', passage)
        if 'class="right"' not in article:
            assert "".join(marked) == question["gold_texts"][0]
    num_right = round(len(questions) * finished[1]["exact_match"] / 100)
    kinds = [kind.split() for kind in re.findall(r'data-kinds="([^"]*)"', text)]
    assert [kind[0] for kind in kinds] == (
        ["errors"] * (len(questions) - num_right) + ["right"] * num_right
    )
    # The filters say how many questions each of them shows.
    shown = re.findall(r'value="(\w+)"[^>]*> [^<]*: ([\d,]+)</label>', text)
    counts = {name: sum(name in kind for kind in kinds) for name in ("errors", "right", "wrong")}
    assert dict(shown) == {name: f"{n:,}" for name, n in {"all": len(kinds), **counts}.items()}


@pytest.mark.slow
def test_answers_are_learned(directory, tmp_path):
    settings = config(**{"training.epochs": 40, "optimizer.learning_rate": 0.002})
    scores = run(directory, tmp_path / "run", settings, validation_data=str(directory / "train"))
    assert scores["exact_match"] > 40  # of two names and more spans, one is right


@pytest.mark.slow
def test_grid_finds_the_best_run(directory, tmp_path, capfd):
    settings = config(
        **{
            "training.epochs": 10,
            "grid.learning_rates": "[1.0e-9, 0.002]",
            "grid.batch_sizes": "[16]",
        }
    )
    data = str(directory / "train")
    best = run_grid(settings, str(directory / "preset"), data, str(tmp_path), data)
    assert best == str(tmp_path / "learning-rate-0.002-batch-16")
    assert sorted(os.listdir(tmp_path)) == [
        "learning-rate-0.002-batch-16",
        "learning-rate-1e-09-batch-16",
    ]
    printed = capfd.readouterr().out
    assert printed.count("Next:") == 1
    assert f"  spanbert-tf evaluate --preset {best}/preset --data {data}" in printed
    rows = [line.split("│") for line in printed.splitlines() if line.count("│") == 5]
    scores = {row[1].strip(): float(row[4]) for row in rows}
    assert scores["0.002"] > scores["1e-09"]
    assert f"{best}, F1 {scores['0.002']:.2f}" in printed


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("grid.batch_sizes=[16, a]", "grid.batch_sizes: 'a' must be a valid integer"),
        ("grid.batch_sizes=16", "16 must be a valid list"),
        ("training.epochs=-1", "training.epochs: -1 must be greater than or equal to 0"),
        ("optimizer.warmup_fraction=1.0", "1.0 must be less than 1"),
        ("training.epoch=1", "unknown key training.epoch; the nearest is training.epochs"),
    ],
)
def test_wrong_configurations_are_refused(override, words):
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        load_task_config("squad_v1", [override])


MRQA = ["hotpotqa", "natural_questions", "newsqa", "searchqa", "triviaqa"]


@pytest.mark.parametrize("name", ["squad_v1", "squad_v2", *MRQA])
def test_shipped_configurations_have_the_values_of_appendix_b(name):
    shipped = load_task_config(name)
    assert (shipped.data.sequence_length, shipped.data.stride) == (512, 128)
    assert shipped.training.epochs == 4
    assert list(shipped.grid.learning_rates) == [5e-6, 1e-5, 2e-5, 3e-5, 5e-5]
    assert list(shipped.grid.batch_sizes) == [16, 32]
    assert shipped.data.has_unanswerable is (name == "squad_v2")
    path = os.path.join(shipped_directory("finetune"), f"{name}.yaml")
    with open(path, encoding="utf-8") as file:
        assert f"--config {name} " in file.read()


def test_segabert_has_its_own_values():
    shipped = load_task_config("segabert_squad_v1")
    assert (shipped.training.epochs, shipped.training.batch_size) == (4, 128)
    assert shipped.optimizer.learning_rate == 3e-5
    assert shipped.data.question_first and shipped.data.segment_aware
    names = {"squad_v1", "squad_v2", "segabert_squad_v1", *MRQA}
    assert names <= set(shipped_names("finetune"))


def test_what_does_not_fit_is_refused(directory, finished, tmp_path):
    with pytest.raises(MismatchError, match=r"data.sequence_length of these records is 32"):
        run(directory, tmp_path / "run", config(**{"data.sequence_length": 64}))
    with pytest.raises(MismatchError, match=r"training.batch_size is 8 in this run and 4 now"):
        run(directory, finished[0], config(**{"training.batch_size": 4}))
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "text").touch()
    with pytest.raises(BadInputError, match="exists and is no training run"):
        run(directory, tmp_path / "thesis")
    with pytest.raises(BadInputError, match="no fine-tuned model with a trained head"):
        run_evaluation(str(directory / "preset"), [str(directory / "dev")])
    assert not (tmp_path / "run").exists()
