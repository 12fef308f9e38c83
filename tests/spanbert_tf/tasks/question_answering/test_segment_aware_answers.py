"""SegaBERT's question answering: positions in records, in a preprocessor and in an export."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from nltk_sentences import tokenizer_of_nltk
from server_process import TEXT_OPERATIONS, operations_beyond_tensorflow, run

from spanbert_tf.errors import BadInputError, MismatchError
from spanbert_tf.models import (
    SpanBertBackbone,
    SpanBertQuestionAnswerer,
    SpanBertQuestionAnswererPreprocessor,
    SpanBertTokenizer,
)
from spanbert_tf.presets.writing import write_preset
from spanbert_tf.tasks.finetuning import run_finetuning
from spanbert_tf.tasks.lookup import open_records, task_dataset
from spanbert_tf.tasks.prediction import export_preset
from spanbert_tf.tasks.question_answering.files import Answer, Question, QuestionSet
from spanbert_tf.tasks.question_answering.rows import QuestionOptions, write_questions
from spanbert_tf.tasks.question_answering.task import QuestionAnswering
from spanbert_tf.tasks.table import load_task_config

WORDS = ["Ann", "Bob", "has", "the", "cat", "owl", "Who", "?", ".", "Mr", "!", "##s"]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
LENGTH, STRIDE = 24, 7
POSITIONS = ("paragraph_indices", "sentence_indices", "token_indices")
PAIRS = [
    ("Who has\nthe owl?", "Ann has the cat. Mr. Bob has the owl!"),
    ("Who has? Who?", "Ann has. Bob has the owl.\n\nAnn has the cats. " * 4),
    ("Who?", "Bob."),
    # Exports do not see that two sentences end at `J.`.
    ("J. Bob?", "J. Bob has the cat. Ann J. 5. Bob has the owl."),
]


def prepared(directory, **options):
    vocabulary = directory / "vocab.txt"
    vocabulary.write_text("".join(f"{piece}\n" for piece in VOCABULARY))
    questions = [
        Question(str(n), asked, n, (Answer(context[:3], 0),), (context[:3],))
        for n, (asked, context) in enumerate(PAIRS)
    ]
    write_questions(
        QuestionSet("x", [context for _, context in PAIRS], questions),
        str(directory / "data"),
        vocabulary=str(vocabulary),
        lowercase=False,
        options=QuestionOptions(sequence_length=LENGTH, stride=STRIDE, **options),
    )
    return str(directory / "data")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    directory = tmp_path_factory.mktemp("segment_aware")
    return prepared(directory, question_first=True, segment_aware=True)


@pytest.fixture(scope="module")
def answerer():
    backbone = SpanBertBackbone(
        len(VOCABULARY), 2, 4, 32, 37, max_sequence_length=8, position_embeddings="segment_aware"
    )
    preprocessor = SpanBertQuestionAnswererPreprocessor(
        SpanBertTokenizer(VOCABULARY),
        sequence_length=LENGTH,
        question_first=True,
        segment_aware=True,
    )
    answerer = SpanBertQuestionAnswerer(backbone, preprocessor, max_answer_tokens=5, stride=STRIDE)
    random = np.random.default_rng(1)
    answerer.is_head_trained = True
    answerer.set_weights([random.normal(0, 0.5, w.shape) for w in answerer.get_weights()])
    return answerer


@pytest.fixture(scope="module")
def preset(answerer, tmp_path_factory):
    path = str(tmp_path_factory.mktemp("presets") / "preset")
    write_preset(answerer, path)
    return path


def nltk_starts(text):
    """The sentences of a text as a client finds them with NLTK, a line at a time."""
    punkt = tokenizer_of_nltk("en")
    starts = []
    line_start = 0
    for line in text.split("\n"):
        starts += [line_start + start for start, _ in punkt.span_tokenize(line)]
        line_start += len(line) + 1
    return starts


@pytest.fixture(scope="module")
def answered(answerer, data):
    """What `predict --data` answers to each question."""
    return QuestionAnswering().predict(answerer, open_records(data), batch_size=2)


def check_best_answers(answered, starts, ends, scores):
    """The best answers, and their scores or odds, are those of `predict --data`."""
    for number, item in enumerate(answered):
        best = item.candidates[0]
        assert (starts[number], ends[number]) == (best.start, best.end)
        assert scores[number] == pytest.approx(best.probability, abs=1e-5)


def first_row(x, name):
    """Without padding."""
    return x[name][0][x["padding_mask"][0] == 1].numpy().tolist()


def test_raw_questions_are_answered_as_records_of_them(answerer, answered):
    inputs = [{"question": asked, "context": context} for asked, context in PAIRS]
    found = QuestionAnswering().predictor(answerer)(inputs)
    columns = [[item[name] for item in found] for name in ("start", "end", "score")]
    check_best_answers(answered, *columns)


def test_exports_without_sentences_have_nearly_these_answers(answerer, answered):
    """The model reads other sentences in the last pair alone."""
    function, _ = QuestionAnswering().signatures(answerer, 3)["serving_default"]
    found = function(*map(tf.constant, zip(*PAIRS, strict=True)))
    expected = np.array([item.null_odds for item in answered])
    differences = np.abs(found["null_odds"] - expected)
    assert differences[:-1].max() < 1e-4 < 1e-3 < differences[-1]


def test_positions_of_a_row(data):
    x, _ = next(iter(task_dataset(data, batch_size=100, training=False)))
    # [CLS] Who has the owl ? [SEP] Ann has the cat . Mr . Bob has the owl ! [SEP]
    assert first_row(x, "paragraph_indices") == [0] * 7 + [1] * 13
    assert first_row(x, "sentence_indices") == [0] * 7 + [0] * 5 + [1] * 8
    assert first_row(x, "token_indices") == [0, *range(6), *range(5), *range(8)]


def test_preprocessor_packs_the_first_windows_of_preparation(answerer, data):
    packed = answerer.preprocessor(x=tuple(map(list, zip(*PAIRS, strict=True))))
    rows = task_dataset(data, batch_size=100, training=False)
    expected, _ = next(iter(rows))
    owners = expected["question_index"].numpy()
    assert len(owners) > len(PAIRS)
    for number, first in enumerate(np.searchsorted(owners, range(len(PAIRS)))):
        size = expected["padding_mask"][first].numpy().sum()
        for name in ("token_ids", "segment_ids", "padding_mask", *POSITIONS):
            assert packed[name].shape == (len(PAIRS), LENGTH)
            values = packed[name][number].numpy()
            assert values[:size].tolist() == expected[name][first].numpy()[:size].tolist()
            assert not values[size:].any()


@pytest.mark.slow
def test_export_answers_as_predict_does(answerer, preset, data, answered, tmp_path):
    path = export_preset(preset, str(tmp_path / "served"), top_k=3)
    requests = {}
    for column, name in enumerate(("question", "context")):
        texts = [pair[column] for pair in PAIRS]
        requests[name] = texts
        rows = [nltk_starts(text.replace("\n", " ") if column == 0 else text) for text in texts]
        width = max(map(len, rows)) + 1
        padded = [row + [-1] * (width - len(row)) for row in rows]
        requests[f"{name}_sentence_starts"] = padded
    (tmp_path / "requests.json").write_text(json.dumps(requests))
    printed = run(
        """
import json
inputs = json.load(open(sys.argv[2]))
for name in ("question", "context"):
    inputs[name] = np.array(inputs[name], object)
    inputs[name + "_sentence_starts"] = np.array(inputs[name + "_sentence_starts"], "int32")
outputs = predict(request_of("sentences", **inputs))
found = {name: outputs[name].tolist() for name in ("starts", "ends", "probabilities", "null_odds")}
json.dump(found, open(sys.argv[3], "w"))
path = sys.argv[1] + "/assets.extra/tf_serving_warmup_requests"
for record in tf.compat.v1.io.tf_record_iterator(path):
    request = prediction_log_pb2.PredictionLog.FromString(record).predict_log.request
    predict(request)
    print(request.model_spec.signature_name)
""",
        path,
        tmp_path / "requests.json",
        tmp_path / "answers.json",
    )
    served = json.loads((tmp_path / "answers.json").read_text())
    columns = [np.array(served[name])[:, 0] for name in ("starts", "ends", "probabilities")]
    check_best_answers(answered, *columns)
    expected = [item.null_odds for item in answered]
    np.testing.assert_allclose(served["null_odds"], expected, atol=1e-4)
    assert set(printed.split()) == {"serving_default", "sentences", "token_ids"}
    assert operations_beyond_tensorflow(path) == set(TEXT_OPERATIONS)
    x, _ = next(iter(task_dataset(data, batch_size=9, training=False)))
    names = ("token_ids", "segment_ids", "padding_mask", *POSITIONS)
    logits = tf.saved_model.load(path).signatures["token_ids"](**{name: x[name] for name in names})
    for name, expected in answerer(x).items():
        np.testing.assert_allclose(logits[name], expected, atol=1e-4)


def test_positions_reach_the_model(answerer, data):
    """Without sentences its logits are others."""
    x, _ = next(iter(task_dataset(data, batch_size=3, training=False)))
    with_sentences = answerer(x)["start_logits"]
    without = answerer({**x, "sentence_indices": tf.zeros_like(x["sentence_indices"])})
    assert not np.allclose(with_sentences, without["start_logits"])


def test_segment_aware_rows_have_the_question_first(tmp_path):
    with pytest.raises(BadInputError, match="--question-first"):
        prepared(tmp_path, segment_aware=True)
    with pytest.raises(ValueError, match="question_first"):
        SpanBertQuestionAnswererPreprocessor(SpanBertTokenizer(VOCABULARY), segment_aware=True)


@pytest.mark.parametrize("kind", ["absolute", "segment_aware"])
def test_records_must_suit_the_encoder(kind, tmp_path):
    is_segment_aware = kind == "segment_aware"
    data = prepared(tmp_path, question_first=True, segment_aware=not is_segment_aware)
    backbone = SpanBertBackbone(
        len(VOCABULARY), 1, 2, 8, 8, max_sequence_length=LENGTH, position_embeddings=kind
    )
    encoder = str(tmp_path / "encoder")
    write_preset(backbone, encoder, tokenizer=SpanBertTokenizer(VOCABULARY))
    settings = [f"data.sequence_length={LENGTH}", f"data.stride={STRIDE}"]
    settings.append(f"data.segment_aware={not is_segment_aware}".lower())
    config = load_task_config("segabert_squad_v1", settings)
    word = "with --question-first" if is_segment_aware else "without"
    with pytest.raises(MismatchError, match=f"write the records {word} --segment-aware"):
        run_finetuning(config, encoder, data, str(tmp_path / "run"))


def test_segabert_is_fine_tuned(data, tmp_path):
    keras.utils.set_random_seed(1)
    backbone = SpanBertBackbone(
        len(VOCABULARY), 1, 2, 8, 8, max_sequence_length=8, position_embeddings="segment_aware"
    )
    encoder = str(tmp_path / "encoder")
    write_preset(backbone, encoder, tokenizer=SpanBertTokenizer(VOCABULARY))
    settings = {"data.sequence_length": LENGTH, "data.stride": STRIDE, "training.epochs": 1}
    config = load_task_config(
        "segabert_squad_v1",
        [f"{key}={value}" for key, value in {**settings, "training.batch_size": 2}.items()],
    )
    assert run_finetuning(config, encoder, data, str(tmp_path / "run")) == {}
    loaded = SpanBertQuestionAnswerer.from_preset(str(tmp_path / "run" / "preset"))
    assert loaded.preprocessor.segment_aware


@pytest.mark.slow
def test_predict_takes_texts(answerer, data):
    texts = tuple(np.array(column) for column in zip(*PAIRS, strict=True))
    logits = answerer.predict(texts, verbose=0)
    x, _ = next(iter(task_dataset(data, batch_size=100, training=False)))
    size = int(np.sum(x["padding_mask"][0]))
    expected = answerer(x)["start_logits"][0]
    np.testing.assert_allclose(logits["start_logits"][0, :size], expected[:size], atol=1e-5)
