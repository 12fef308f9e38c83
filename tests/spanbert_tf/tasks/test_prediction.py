"""Strings, dicts and files of raw inputs, for each task."""

import functools
import json
import math
import types

import click.testing
import numpy as np
import pytest
from tiny_models import ALL_INPUTS, SENTENCE, tiny_model

from spanbert_tf.errors import BadInputError
from spanbert_tf.models import SpanBertTextClassifier, SpanBertTextClassifierPreprocessor
from spanbert_tf.presets.writing import write_preset
from spanbert_tf.task_cli import predict as predict_command
from spanbert_tf.tasks.coreference.task import Coreference
from spanbert_tf.tasks.prediction import Predictor, predict_lines

pytestmark = pytest.mark.usefixtures("presets_opened_once")

# A resolver takes many seconds to trace: its words and fields are tested without a predictor.
PREDICTORS = [name for name in ALL_INPUTS if name != "coreference"]
OF_ONE_TEXT = [name for name in PREDICTORS if ALL_INPUTS[name].keys() == {"text"}]
ACCENTS = "Ann HAS the C\u00e2T . Bo\u0301B ha\u1e61 the Cat ?"  # accents of their own, too


@pytest.fixture(scope="module")
def predictor_of(tmp_path_factory):
    """Task → predictor of a tiny model, made once."""
    directory = tmp_path_factory.mktemp("presets")

    @functools.cache
    def make(name):
        model = tiny_model(name)
        model.is_head_trained = True
        write_preset(model, str(directory / name))
        return Predictor(str(directory / name))

    return make


def rounded(found):
    """An answer without the last digits of its scores, which another batch may round."""
    return json.loads(json.dumps(found), parse_float=lambda text: round(float(text), 4))


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("name", OF_ONE_TEXT)
def test_a_string_is_a_dict_of_a_text(name, predictor_of):
    predict = predictor_of(name)
    item = ALL_INPUTS[name]
    other = {"text": item["text"] + " bob has"}
    of_dict = predict(item)
    assert rounded(predict(item["text"])) == rounded(of_dict)
    for inputs in ([item["text"], other], (item, other["text"]), iter([item["text"], other])):
        found = predict(inputs)
        assert rounded(found) == rounded([of_dict, predict(other)])
    assert predict([item["text"]]) == [of_dict]
    assert predict([]) == []


@pytest.mark.parametrize("max_tokens", [1, 24, 10_000])
def test_batches_of_tokens_change_no_answer_and_no_order(max_tokens, predictor_of):
    predict = predictor_of("named_entities")
    texts = [SENTENCE * 3, "", SENTENCE, "bob", "who has the cat ?"]
    found = predict(texts, max_tokens_in_batch=max_tokens)
    assert rounded(found) == rounded([predict(text) for text in texts])
    with pytest.raises(BadInputError, match="max_tokens_in_batch=0: give at least 1"):
        predict(texts, max_tokens_in_batch=0)


def test_one_input_is_batched_as_a_list_of_one(predictor_of, monkeypatch):
    """It may have many windows."""
    predict = predictor_of("named_entities")
    predict(SENTENCE)
    seen = []

    def answer(*arguments):
        seen.append(arguments)
        return [None]

    monkeypatch.setitem(predict._functions, None, answer)
    for inputs in (SENTENCE, [SENTENCE]):
        predict(inputs, batch_size=3, max_tokens_in_batch=7)
    assert seen == [([SENTENCE], 3, 7)] * 2


@pytest.mark.parametrize("name", sorted({*PREDICTORS} - {*OF_ONE_TEXT}))
def test_a_string_is_refused_where_more_is_read_and_the_fields_are_named(name, predictor_of):
    predict = predictor_of(name)
    wanted = " and ".join(ALL_INPUTS[name])
    for inputs, number in ((SENTENCE, 1), ([ALL_INPUTS[name], SENTENCE], 2)):
        with pytest.raises(
            BadInputError, match=f"^input {number}: is of type str; {name} reads dicts of {wanted}$"
        ):
            predict(inputs)


@pytest.mark.parametrize("bad", [None, 7, math.nan, b"the cat", ["the cat"]])
def test_what_is_neither_string_nor_dict_is_named_by_its_place(bad, predictor_of):
    predict = predictor_of("text_classification")
    message = f"is of type {type(bad).__name__}; text_classification reads strings, or dicts of tex"
    with pytest.raises(BadInputError, match=f"^input 3: {message}"):
        predict([SENTENCE, SENTENCE, bad])
    if not isinstance(bad, list):
        with pytest.raises(BadInputError, match=f"^input 1: {message}"):
            predict(bad)


def test_mappings_are_inputs_and_tables_are_none(predictor_of):
    """Whose items are their keys, which look like texts."""
    pandas = pytest.importorskip("pandas")
    predict = predictor_of("text_classification")
    item = types.MappingProxyType({"text": SENTENCE, "id": 3})
    assert rounded(predict(item)) == rounded(predict(SENTENCE))
    with pytest.raises(BadInputError, match=r"a DataFrame is no list .* df\.to_dict\('records'\)"):
        predict(pandas.DataFrame({"text": [SENTENCE]}))
    assert rounded(predict(pandas.Series([SENTENCE]))) == rounded(predict([SENTENCE]))


def test_entities_may_be_tuples_and_numbers_of_numpy(predictor_of):
    predict, item = predictor_of("relation_extraction"), ALL_INPUTS["relation_extraction"]
    expected = rounded(predict(item))
    for kind in (tuple, np.array):
        changed = {role: kind(item[role]) for role in ("subject", "object")}
        assert rounded(predict(item | changed)) == expected
    numbers = [np.int64(number) for number in item["subject"]]
    assert rounded(predict(item | {"subject": numbers})) == expected


def test_a_dict_that_lacks_a_field_is_told_all_fields(predictor_of):
    with pytest.raises(
        BadInputError, match=r"^input 1: has no text 'context'; an input has question and context$"
    ):
        predictor_of("question_answering")({"question": "who ?"})


def test_predictors_say_what_they_are(predictor_of):
    shown = {name: repr(predictor_of(name)) for name in PREDICTORS}
    for name, text in shown.items():
        preset = predictor_of(name).preset
        fields = tuple(ALL_INPUTS[name])
        assert text.startswith(f"Predictor({preset!r}, task={name!r}, fields={fields!r}")
    assert shown["named_entities"].endswith(", labels=('O', 'B-X', 'I-X'))")
    assert predictor_of("relation_extraction").labels == ("no", "yes")
    assert "labels" not in shown["question_answering"]
    assert "labels" not in shown["fill_mask"]
    assert Coreference().fields_of(None) == ("text",)


def test_a_classifier_of_pairs_reads_two_texts(tmp_path):
    single = tiny_model("text_classification")
    tokenizer = single.preprocessor.tokenizer
    preprocessor = SpanBertTextClassifierPreprocessor(tokenizer, 16, is_pair=True)
    labels = [f"class {number}" for number in range(25)]
    model = SpanBertTextClassifier(single.backbone, 25, preprocessor, labels=labels)
    model.is_head_trained = True
    write_preset(model, str(tmp_path / "pairs"))
    predict = Predictor(str(tmp_path / "pairs"))
    assert predict.fields == ("text", "text_pair")
    assert repr(predict).endswith("'class 19', … 5 more))")
    with pytest.raises(BadInputError, match=r"^input 1: is of type str; .* text and text_pair$"):
        predict(SENTENCE)
    assert predict({"text": SENTENCE, "text_pair": SENTENCE})["label"] in labels


def write_and_predict(predict, path, content, **options):
    path.write_bytes(content)
    output = path.with_suffix(".answers")
    predict_lines(predict.preset, str(path), str(output), overwrite=True, **options)
    return [json.loads(line) for line in output.read_text("utf-8").splitlines()]


def test_plain_lines_are_texts_and_keep_their_places(predictor_of, tmp_path):
    predict = predictor_of("text_classification")
    texts = ["ann has the cat .", "", " who has bob ? ", "[1, 2]"]
    expected = rounded(predict(texts))
    texts.insert(1, "ann\rhas")  # which is one line to `wc -l`
    expected.insert(1, rounded(predict(texts[1])))
    for end, before in (("\n", ""), ("\r\n", "\ufeff")):
        for last in ("", end):
            content = (before + end.join(texts) + last).encode()
            found = write_and_predict(predict, tmp_path / "texts", content, source_format="text")
            assert rounded(found) == expected


def test_plain_lines_without_the_option_are_told_of_it(predictor_of, tmp_path):
    preset = predictor_of("text_classification").preset
    for text, problem in (
        ("Maria flew to Berlin", "not JSON (Expecting value: line 1 column 1 (char 0))"),
        ("1984", "is no JSON object"),
        ('"Quoted," she said.', "not JSON (Extra data: line 1 column 11 (char 10))"),
        ('"Quoted."', "is no JSON object"),
    ):
        (tmp_path / "in.txt").write_text(f"\n{text}\n")
        with pytest.raises(BadInputError) as caught:
            predict_lines(preset, str(tmp_path / "in.txt"), "-")
        assert str(caught.value) == (
            f"{tmp_path / 'in.txt'}: line 2: {problem}; a line is an object of the task's fields; "
            "for plain texts, a line each, give --format text"
        )


def test_plain_lines_of_a_task_that_reads_more_are_refused(predictor_of, tmp_path):
    path = tmp_path / "texts"
    with pytest.raises(
        BadInputError,
        match=r"texts: holds texts \(--format text\), and question_answering reads question and "
        "context; write JSON lines of these fields",
    ):
        write_and_predict(
            predictor_of("question_answering"), path, b"who ?\n", source_format="text"
        )


def test_errors_of_plain_lines_name_the_line(predictor_of, tmp_path):
    content = b"ann has the [MASK]\n\nbob has the [MASK]\n"
    with pytest.raises(BadInputError, match=r"texts: line 2: its text has no \[MASK\]"):
        write_and_predict(
            predictor_of("fill_mask"), tmp_path / "texts", content, source_format="text"
        )


def test_the_format_is_refused_where_records_are_read(tmp_path):
    arguments = ["--preset", "p", "--data", str(tmp_path), "--output", "out", "--format", "text"]
    result = click.testing.CliRunner().invoke(predict_command, arguments)
    assert result.exit_code == 2 and "--format is for --input alone" in result.output


def test_standard_output_is_refused_where_records_are_read(tmp_path):
    arguments = ["--preset", "p", "--data", str(tmp_path), "--output", "-"]
    result = click.testing.CliRunner().invoke(predict_command, arguments)
    assert result.exit_code == 2 and "--output - is for --input alone; name a" in result.output


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("name", PREDICTORS)
def test_predictions_of_each_task_are_known_as_such(name, predictor_of, tmp_path):
    predict, item = predictor_of(name), ALL_INPUTS[name]
    for top_k in (None, 2):
        for _ in range(2):  # the second time over those of the first
            content = f"{json.dumps(item)}\n".encode()
            write_and_predict(predict, tmp_path / "in", content, top_k=top_k)


@pytest.mark.parametrize(
    "line",
    [
        {"text": "Fine.", "score": 4.2},
        {"doc_key": "a_0", "sentences": [["Ann"]], "clusters": []},
        {"text": "Fine.", "embedding": [1.0]},
        {"text": "Fine.", "label": "good", "score": 0.9},
    ],
)
def test_data_with_a_key_of_predictions_is_not_replaced(line, tmp_path):
    source, kept = tmp_path / "in.jsonl", tmp_path / "data.jsonl"
    source.write_text('{"text": "Fine."}\n')
    kept.write_text(f"{json.dumps(line)}\n")
    with pytest.raises(BadInputError, match="holds other things than predictions"):
        predict_lines("p", str(source), str(kept), overwrite=True)
    assert kept.read_text() == f"{json.dumps(line)}\n"


def test_predictions_of_nothing_are_replaced(predictor_of, tmp_path):
    preset, output = predictor_of("text_classification").preset, tmp_path / "out.jsonl"
    (tmp_path / "in.jsonl").write_text("")
    for _ in range(2):
        predict_lines(preset, str(tmp_path / "in.jsonl"), str(output), overwrite=True)
        assert output.read_bytes() == b""


def test_the_input_is_never_the_output(tmp_path):
    """Though its lines look like predictions."""
    source = tmp_path / "answers.jsonl"
    source.write_text('{"label": "good", "score": 0.9}\n')
    (tmp_path / "link").symlink_to(source)
    for output in (source, tmp_path / "link"):
        with pytest.raises(BadInputError, match=f"^{output}: is also --input; name another"):
            predict_lines("p", str(source), str(output), overwrite=True)


def test_words_in_answers_are_slices_of_the_text_that_was_given(predictor_of):
    """The vocabularies are uncased, and the tokenizers strip accents."""
    item = {"question": "wh\u00d6 ?", "context": ACCENTS}
    answers = predictor_of("question_answering")(item, top_k=5)
    assert len(answers) == 5
    for answer in answers:
        assert answer["answer"] == ACCENTS[answer["start"] : answer["end"]]
    filled = predictor_of("fill_mask")(f"{ACCENTS} [MASK] {ACCENTS}")
    for filling in filled:
        word = filling["token_str"].removeprefix("##")
        assert filling["sequence"] == f"{ACCENTS} {word} {ACCENTS}"
