"""Fine-tuning for question answering, from records to answers."""

import json
import os
import random
import signal

import keras
import numpy as np
import pytest
import torch
import transformers
from torch_models import keras_inputs, largest_difference, rows_of, torch_model, torch_outputs

from data_prep.question_answering import QuestionOptions, write_questions
from data_prep.questions import Answer, Question, QuestionSet
from spanbert_tf.conversion.parameters import encoder_parameters
from spanbert_tf.data.question_answering import load_questions
from spanbert_tf.errors import BadInputError, MismatchError
from spanbert_tf.finetuning_config import load_finetuning_config
from spanbert_tf.models import SpanBertBackbone, SpanBertQuestionAnswerer, SpanBertTokenizer
from spanbert_tf.presets.writing import write_preset
from spanbert_tf.question_answering.prediction import run_evaluation, run_prediction
from spanbert_tf.training.callbacks import MetricsLog
from spanbert_tf.training.question_answering import run_question_answering

NAMES = ["ann", "bob", "cid", "dan", "eve", "fay"]
WORDS = [*NAMES, "has", "the", "cat", "dog", "owl", "who", "?", "."]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]


def made_up_questions(count, seed):
    """`ann has the cat. bob has the owl.` with the question `who has the owl?`."""
    source, contexts, questions = random.Random(seed), [], []
    for number in range(count):
        names, animals = source.sample(NAMES, 2), source.sample(["cat", "dog", "owl"], 2)
        contexts.append(" ".join(f"{n} has the {a}." for n, a in zip(names, animals, strict=True)))
        which = source.randrange(2)
        answer = Answer(names[which], contexts[-1].index(names[which]))
        text = f"who has the {animals[which]}?"
        questions.append(Question(str(number), text, number, (answer,), (answer.text,)))
    return QuestionSet("made up", contexts, questions)


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
    return load_finetuning_config("squad_v1", [f"{key}={value}" for key, value in values.items()])


def run(directory, output, settings=None, **options):
    return run_question_answering(
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


def test_run_leaves_a_preset_that_scores_the_same(finished, directory):
    output, scores = finished
    assert set(scores) == {"exact_match", "f1"}
    assert {"config.yaml", "checkpoints", "metrics.jsonl", "preset", "scores.json"} <= set(
        os.listdir(output)
    )
    preset = str(output / "preset")
    again = run_evaluation(preset, str(directory / "dev"), batch_size=5)
    assert again == pytest.approx(scores)
    run_prediction(preset, str(directory / "dev"), str(output / "predictions"))
    predictions = json.loads((output / "predictions" / "predictions.json").read_text())
    nbest = json.loads((output / "predictions" / "nbest_predictions.json").read_text())
    golds = {line["id"]: line["gold_texts"] for line in load_questions(str(directory / "dev"))}
    right = sum(predictions[name] in golds[name] for name in golds)
    assert 100 * right / len(golds) == pytest.approx(scores["exact_match"])
    for name, candidates in nbest.items():
        assert predictions[name] == candidates[0]["text"]
        assert sum(candidate["probability"] for candidate in candidates) == pytest.approx(1)
        texts = [candidate["text"] for candidate in candidates]
        assert len(set(texts)) == len(texts)


def test_answers_are_learned(directory, tmp_path):
    settings = config(**{"training.epochs": 40, "optimizer.learning_rate": 0.002})
    scores = run(directory, tmp_path / "run", settings, validation_data=str(directory / "train"))
    assert scores["exact_match"] > 40  # of two names and more spans, one is right


def test_stopped_run_goes_on_to_the_same_weights(finished, directory, tmp_path, monkeypatch, capfd):
    log_step = MetricsLog.on_step_end

    def log_and_terminate(self, logs):
        log_step(self, logs)
        if self.step == 9:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(MetricsLog, "on_step_end", log_and_terminate)
        assert run(directory, tmp_path / "run") is None
    assert "saved step 9 of 16; run the same command again" in capfd.readouterr().out
    run(directory, tmp_path / "run")
    assert "going on after step 9 of 16" in capfd.readouterr().out
    straight, stopped = (
        SpanBertQuestionAnswerer.from_preset(str(path / "preset"))
        for path in (finished[0], tmp_path / "run")
    )
    for expected, actual in zip(straight.get_weights(), stopped.get_weights(), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_what_does_not_fit_is_refused(directory, finished, tmp_path):
    with pytest.raises(MismatchError, match=r"data.sequence_length of these questions is 32"):
        run(directory, tmp_path / "run", config(**{"data.sequence_length": 64}))
    with pytest.raises(MismatchError, match=r"training.batch_size is 8 in this run and 4 now"):
        run(directory, finished[0], config(**{"training.batch_size": 4}))
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "text").touch()
    with pytest.raises(BadInputError, match="exists and is no run"):
        run(directory, tmp_path / "thesis")
    with pytest.raises(BadInputError, match="no trained head"):
        run_evaluation(str(directory / "preset"), str(directory / "dev"))
    assert not (tmp_path / "run").exists()
