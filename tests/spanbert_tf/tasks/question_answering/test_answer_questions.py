"""The exported question answerer, against preparation and prediction."""

import json
import os

import keras
import numpy as np
import pytest
import tensorflow as tf
from server_process import TEXT_OPERATIONS, operations_beyond_tensorflow, run

from spanbert_tf.errors import BadInputError
from spanbert_tf.models import (
    SpanBertBackbone,
    SpanBertQuestionAnswerer,
    SpanBertQuestionAnswererPreprocessor,
    SpanBertTokenizer,
)
from spanbert_tf.presets.writing import write_preset
from spanbert_tf.tasks.lookup import open_records
from spanbert_tf.tasks.prediction import export_preset
from spanbert_tf.tasks.question_answering.files import Question, QuestionSet
from spanbert_tf.tasks.question_answering.graph import AnswerQuestions
from spanbert_tf.tasks.question_answering.rows import QuestionOptions, write_questions
from spanbert_tf.tasks.question_answering.task import QuestionAnswering

WORDS = ["ann", "bob", "zoe", "has", "the", "cat", "owl", "who", "?", ".", "##s", "中"]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
LENGTH, STRIDE, TOP_K = 24, 7, 4


CONTEXTS = [
    "Ann has the cat. Bob has the owl.",
    " Zoë  has 中 the owls. " * 7 + "BOB",
    "the cat",
    "",
    "unknown words only",
    "Ann has the \ud83d\ude00 cat. ".encode("utf-16", "surrogatepass").decode("utf-16") * 5,
]


@pytest.fixture(scope="module")
def preset(tmp_path_factory):
    keras.utils.set_random_seed(3)
    backbone = SpanBertBackbone(len(VOCABULARY), 1, 2, 16, 17, max_sequence_length=LENGTH)
    tokenizer = SpanBertTokenizer(VOCABULARY, lowercase=True)
    preprocessor = SpanBertQuestionAnswererPreprocessor(tokenizer, sequence_length=LENGTH)
    settings = {"max_answer_tokens": 5, "stride": STRIDE, "has_unanswerable": True}
    answerer = SpanBertQuestionAnswerer(backbone, preprocessor, null_threshold=-1.0, **settings)
    random = np.random.default_rng(1)
    answerer.is_head_trained = True
    answerer.set_weights([random.normal(0, 0.5, w.shape) for w in answerer.get_weights()])
    path = str(tmp_path_factory.mktemp("presets") / "preset")
    write_preset(answerer, path)
    return path


@pytest.fixture(scope="module")
def export(preset, tmp_path_factory):
    return export_preset(preset, str(tmp_path_factory.mktemp("served") / "answers"), top_k=TOP_K)


@pytest.fixture(scope="module")
def served(export, tmp_path_factory):
    """What a server answers: to all at once, and to each alone."""
    directory = tmp_path_factory.mktemp("outputs")
    (directory / "contexts.json").write_text(json.dumps(CONTEXTS))
    run(
        """
import json
contexts = json.load(open(sys.argv[2]))
answers = []
for some in (contexts, *[[context] for context in contexts], []):
    questions = np.array(["Who has the owl?"] * len(some), object)
    outputs = predict(request_of(question=questions, context=np.array(some, object)))
    answers.append({name: value.tolist() for name, value in outputs.items()})
for output in answers:
    output["answers"] = [[text.decode() for text in row] for row in output["answers"]]
json.dump(answers, open(sys.argv[3], "w"))
""",
        export,
        directory / "contexts.json",
        directory / "answers.json",
    )
    return json.loads((directory / "answers.json").read_text())


KEPT = [number for number, context in enumerate(CONTEXTS) if context]


def answers_of(numbers, preset, directory):
    """What `predict --data` answers to a question on each of these contexts."""
    vocabulary = directory / "vocab.txt"
    vocabulary.write_text("".join(f"{piece}\n" for piece in VOCABULARY))
    questions = [
        Question(str(place), "Who has the owl?", place, (), ()) for place in range(len(numbers))
    ]
    contexts = [CONTEXTS[number] for number in numbers]
    data = str(directory / "data")
    write_questions(
        QuestionSet("x", contexts, questions),
        data,
        vocabulary=str(vocabulary),
        lowercase=True,
        options=QuestionOptions(sequence_length=LENGTH, stride=STRIDE),
    )
    model = SpanBertQuestionAnswerer.from_preset(preset)
    model.max_answer_tokens = 5
    return QuestionAnswering().predict(model, open_records(data), batch_size=3)


@pytest.fixture(scope="module")
def predicted(preset, tmp_path_factory):
    """Number of a context → what is answered, for those that are not empty."""
    answered = answers_of(KEPT, preset, tmp_path_factory.mktemp("records"))
    return dict(zip(KEPT, answered, strict=True))


def check_same_answers(outputs, predicted, top_k):
    """Each answer of an export is that of `predict --data`, and so are the odds."""
    for number, item in predicted.items():
        expected = item.candidates[:top_k]
        found = {name: list(outputs[name][number]) for name in ("answers", "starts", "ends")}
        for name, attribute in (("answers", "text"), ("starts", "start"), ("ends", "end")):
            wanted = [getattr(candidate, attribute) for candidate in expected]
            padding = ["" if name == "answers" else 0] * (top_k - len(wanted))
            assert found[name] == wanted + padding
        probabilities = [candidate.probability for candidate in expected]
        np.testing.assert_allclose(
            outputs["probabilities"][number],
            probabilities + [0] * (top_k - len(probabilities)),
            atol=1e-5,
        )
        assert outputs["null_odds"][number] == pytest.approx(item.null_odds, abs=1e-4)
        assert outputs["is_answerable"][number] == (item.null_odds <= -1.0)


def test_answers_are_those_of_predict(served, predicted):
    check_same_answers(served[0], predicted, TOP_K)


def test_answers_do_not_depend_on_how_many_are_asked(preset, predicted, tmp_path):
    """They are found for 64 questions at once."""
    numbers = [KEPT[0]] * 30 + KEPT[1:] + [KEPT[0]] * 30 + KEPT[1:]
    answered = answers_of(numbers, preset, tmp_path)
    assert len(answered) == 68 and [item.id for item in answered] == list(map(str, range(68)))
    for number, item in zip(numbers, answered, strict=True):
        texts = [candidate.text for candidate in item.candidates]
        assert texts == [candidate.text for candidate in predicted[number].candidates]
        assert item.null_odds == pytest.approx(predicted[number].null_odds, abs=1e-4)


def test_odds_at_the_threshold_are_answered(preset):
    """As `AnsweredQuestion.text_under` has it, and SQuAD's script."""
    model = SpanBertQuestionAnswerer.from_preset(preset)
    module, texts = AnswerQuestions(model, 1), (["Who has the owl?"], CONTEXTS[:1])
    odds = module.answer(*texts)["null_odds"].numpy()[0]
    for threshold, expected in ((odds, True), (np.nextafter(odds, np.float32(-np.inf)), False)):
        model.null_threshold = float(threshold)
        assert module.answer(*texts)["is_answerable"].numpy().tolist() == [expected]


@pytest.mark.parametrize("top_k", [1, 20, 23])
def test_top_k_only_cuts_the_list(preset, predicted, top_k):
    long = predicted[1].candidates  # seven times the same sentence, in several windows
    assert len(long) == len({candidate.text for candidate in long}) == 20
    module = AnswerQuestions(SpanBertQuestionAnswerer.from_preset(preset), top_k)
    outputs = module.answer(tf.constant(["Who has the owl?"] * len(CONTEXTS)), CONTEXTS)
    outputs = {name: values.numpy().tolist() for name, values in outputs.items()}
    outputs["answers"] = [[text.decode() for text in row] for row in outputs["answers"]]
    check_same_answers(outputs, predicted, top_k)


def test_pieces_are_where_the_export_says(served):
    everything = served[0]
    for number, context in enumerate(CONTEXTS):
        probabilities = everything["probabilities"][number]
        assert sum(probabilities) <= 1 + 1e-5
        assert probabilities == sorted(probabilities, reverse=True)
        for text, start, end, probability in zip(
            *(everything[name][number] for name in ("answers", "starts", "ends")),
            probabilities,
            strict=True,
        ):
            assert context[start:end] == text
            assert bool(text) == (probability > 0)


def test_answers_do_not_depend_on_the_batch(served):
    everything, *alone, nothing = served
    for number, output in enumerate(alone):
        assert output["answers"][0] == everything["answers"][number]
        assert output["starts"][0] == everything["starts"][number]
        np.testing.assert_allclose(
            output["probabilities"][0], everything["probabilities"][number], atol=1e-5
        )
    assert nothing["answers"] == []


@pytest.mark.slow
def test_warm_up_and_operations(export):
    printed = run(
        """
path = sys.argv[1] + "/assets.extra/tf_serving_warmup_requests"
for record in tf.compat.v1.io.tf_record_iterator(path):
    request = prediction_log_pb2.PredictionLog.FromString(record).predict_log.request
    predict(request)
    print(request.model_spec.signature_name)
""",
        export,
    )
    assert set(printed.split()) == {"serving_default", "token_ids"}
    assert operations_beyond_tensorflow(export) == set(TEXT_OPERATIONS)


def test_readme_has_a_request_for_this_model(export):
    with open(os.path.join(os.path.dirname(export), "README.md"), encoding="utf-8") as file:
        lines = file.read().splitlines()
    assert not [line for line in lines if "\\n" in line]
    (request,) = (line for line in lines if line.startswith("curl -d '"))
    inputs = json.loads(request.removeprefix("curl -d '").removesuffix("' \\"))["inputs"]
    signature = tf.saved_model.load(export).signatures["serving_default"]
    outputs = signature(**{name: tf.constant(texts) for name, texts in inputs.items()})
    (read,) = (line for line in lines if line.startswith("tf.make_ndarray("))
    assert outputs[read.split('"')[1]].shape == (1, TOP_K)


def test_each_weight_is_written_once(export, preset):
    """Keras 3.15 writes the variables of a model twice if it is tracked as well as used."""
    answerer = SpanBertQuestionAnswerer.from_preset(preset)
    expected = [tuple(weight.shape) for weight in answerer.weights]
    written = tf.train.list_variables(os.path.join(export, "variables", "variables"))
    # States of random numbers are of shape [2], as the classifiers' bias is.
    shapes = [tuple(shape) for _, shape in written if shape not in ([], [2])]
    assert sorted(shapes) == sorted(shape for shape in expected if shape != (2,))


def test_what_cannot_be_exported_is_refused(tmp_path):
    with pytest.raises(BadInputError, match="nothing: "):
        export_preset(str(tmp_path / "nothing"), str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_export_in_half_precision(preset, export, tmp_path, capsys):
    path = export_preset(preset, str(tmp_path / "served"), top_k=TOP_K, precision="bfloat16")
    assert "bfloat16: the README's example has " in capsys.readouterr().out
    texts = {
        "question": tf.constant(["Who has the owl?"] * len(CONTEXTS)),
        "context": tf.constant(CONTEXTS),
    }
    expected, actual = (
        tf.saved_model.load(place).signatures["serving_default"](**texts)
        for place in (export, path)
    )
    # The weights are drawn with a deviation of 0.5, far more than trained ones: odds are large.
    spread = np.ptp(expected["null_odds"].numpy())
    difference = actual["null_odds"] - expected["null_odds"]
    assert 0 < np.abs(difference).max() < 0.2 * spread
