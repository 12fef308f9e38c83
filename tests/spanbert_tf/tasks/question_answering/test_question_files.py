"""The layouts of question files: MRQA's spans, rows of `datasets`, parts of another type."""

import json
import pathlib

import pandas
import pytest

from spanbert_tf.errors import BadInputError
from spanbert_tf.tasks.question_answering.files import (
    Answer,
    Outcome,
    describe_unanswered,
    is_alike,
    locate_answer,
    read_mrqa,
    read_squad,
)

CONTEXT = "Zoë paid. In 1876 the Cat  sat on Zoë's mat."


def mrqa_file(tmp_path, *detected, context=CONTEXT):
    """One question; `detected`: (text, spans) of each answer."""
    entry = {
        "qid": "q",
        "question": "who?",
        "answers": ["zoë"],
        "detected_answers": [{"text": text, "char_spans": spans} for text, spans in detected],
    }
    path = tmp_path / "mrqa.jsonl"
    lines = [{"header": {}}, {"context": context, "qas": [entry]}]
    path.write_text("\n".join(map(json.dumps, lines)))
    return str(path)


def located(path):
    questions = read_mrqa(path)
    (question,) = questions.questions
    return [
        (outcome, place and CONTEXT[place.start : place.end])
        for outcome, place in (locate_answer(CONTEXT, answer) for answer in question.answers)
    ]


def test_the_earliest_of_all_spans_comes_first(tmp_path):
    path = mrqa_file(tmp_path, ("mat", [[40, 42]]), ("Zoë", [[34, 36], [0, 2]]))
    answers = read_mrqa(path).questions[0].answers
    assert [(answer.text, answer.start) for answer in answers] == [
        ("Zoë", 0),
        ("Zoë", 34),
        ("mat", 40),
    ]


@pytest.mark.parametrize(
    ("text", "span", "expected", "is_reported"),
    [
        ("Zoë", [0, 2], (Outcome.FOUND, "Zoë"), False),
        ("zoë PAID", [0, 7], (Outcome.FOUND, "Zoë paid"), False),  # SearchQA is lower-cased
        ("the cat sat", [18, 29], (Outcome.FOUND, "the Cat  sat"), False),
        ("in 1876", [9, 17], (Outcome.REPAIRED, "In 1876"), False),  # with white space around
        ("Bob", [0, 2], (Outcome.FOUND, "Zoë"), True),  # the place is trusted
        ("mat", [40, 43], (Outcome.FOUND, "mat."), True),
        ("mat", [40, 44], (Outcome.LOST, None), True),  # behind the end
        ("mat", [42, 40], (Outcome.LOST, None), False),
        ("mat", [-1, 2], (Outcome.LOST, None), True),
        (" ", [8, 8], (Outcome.FOUND, "."), True),
    ],
)
def test_spans_are_trusted_and_other_text_is_reported(
    text, span, expected, is_reported, tmp_path, capsys
):
    assert located(mrqa_file(tmp_path, (text, [span]))) == [expected]
    printed = capsys.readouterr().out
    assert ("1 answers differ from the text at their position" in printed) == is_reported
    if is_reported:
        assert f"  question 'q': {text!r}, where the text is " in printed


def test_alike_is_but_for_case_and_white_space():
    assert is_alike("The  CAT\n", "the cat")
    assert not is_alike("the cats", "the cat")


ROWS = [
    {"id": "1", "title": "t", "context": CONTEXT, "question": "Who paid?",
     "answers": {"text": ["Zoë", "Zoë paid"], "answer_start": [0, 0]}},
    {"id": "2", "title": "t", "context": "No one.", "question": "Who?",
     "answers": {"text": [], "answer_start": []}},
    {"id": 3, "title": "t", "context": CONTEXT, "question": "When?",
     "answers": {"text": ["1876"], "answer_start": [13]}},
]  # fmt: skip
LAYOUTS = {
    "lines": lambda rows: "\n".join(map(json.dumps, rows)) + "\n",
    "list": json.dumps,
    "indented list": lambda rows: json.dumps(rows, indent=1),
    "under data": lambda rows: json.dumps({"version": "1", "data": rows}),
    "one line": lambda rows: json.dumps(rows[0]),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_of_datasets_are_the_questions_of_squads_own_layout(layout, tmp_path):
    rows = ROWS[:1] if layout == "one line" else ROWS
    flat, nested = tmp_path / "flat.json", tmp_path / "nested.json"
    flat.write_text(LAYOUTS[layout](rows))
    by_context = {}
    for row in rows:
        answers = zip(row["answers"]["text"], row["answers"]["answer_start"], strict=True)
        by_context.setdefault(row["context"], []).append({
            "id": row["id"], "question": row["question"],
            "is_impossible": not row["answers"]["text"],
            "answers": [{"text": text, "answer_start": start} for text, start in answers],
        })  # fmt: skip
    paragraphs = [{"context": context, "qas": qas} for context, qas in by_context.items()]
    nested.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    found, expected = read_squad(str(flat)), read_squad(str(nested))
    assert found.contexts == expected.contexts
    assert sorted(found.questions, key=lambda question: question.id) == sorted(
        expected.questions, key=lambda question: question.id
    )


def test_an_answer_of_a_row_without_its_place_is_not_forgotten(tmp_path):
    row = ROWS[0] | {"answers": {"text": ["Zoë", "Cat"], "answer_start": [0]}}
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([row]))
    (question,) = read_squad(str(path)).questions
    assert question.answers == (Answer("Zoë", 0), Answer("Cat", -1))


def test_questions_without_answers_are_pointed_out(tmp_path):
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(ROWS))
    line = describe_unanswered(read_squad(str(path)))
    assert line.startswith(f"{path}: 1 of 3 questions have no answer, as in SQuAD 2.0; ")
    for rows in (ROWS[:1], ROWS[1:2]):
        path.write_text(json.dumps(rows))
        assert describe_unanswered(read_squad(str(path))) is None


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ({"data": [3]}, "data[0]: "),
        ({"data": [{"paragraphs": [{"context": 3, "qas": []}]}]}, "data[0].paragraphs[0].context"),
        (
            {"data": [{"paragraphs": [{"context": "x", "qas": [[]]}]}]},
            "data[0].paragraphs[0].qas[0]: ",
        ),
        (
            {"data": [{"paragraphs": [{"context": "x", "qas": [
                {"id": "1", "question": "?", "answers": [{"text": [], "answer_start": 1}]}
            ]}]}]},
            "qas[0].answers[0].text: should be a valid string",
        ),
        (
            {"data": [{"paragraphs": [{"context": "x", "qas": [
                {"id": "1", "question": "?", "answers": [{"text": "x", "answer_start": True}]}
            ]}]}]},
            "answers[0].answer_start: should be a valid integer",
        ),
        ([ROWS[0], {"id": "1", "context": "x", "question": None}], "data[1].question"),
        ([ROWS[0] | {"answers": []}], "data[0].answers: "),
    ],
)  # fmt: skip
def test_squad_of_another_shape_is_one_line_with_the_place(content, place, tmp_path):
    path = tmp_path / "squad.json"
    path.write_text(json.dumps(content))
    with pytest.raises(BadInputError) as caught:
        read_squad(str(path))
    assert str(caught.value).startswith(f"{path}: ")
    assert place in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "place"),
    [
        ("qas", 3, "line 2: qas: "),
        ("context", ["x"], "line 2: context: should be a valid string"),
        ("detected_answers", {}, "line 2: qas[0].detected_answers: "),
        ("char_spans", [3], "qas[0].detected_answers[0].char_spans[0]: "),
        ("char_spans", [["0", 1]], "char_spans[0][0]: should be a valid integer"),
        ("char_spans", [[0, 1, 2]], "question 'q': an item of char_spans has 3 numbers"),
        ("answers", [None], "line 2: qas[0].answers[0]: should be a valid string"),
        ("qid", {}, "line 2: qas[0].qid"),
    ],
)
def test_mrqa_of_another_shape_is_one_line_with_the_place(key, value, place, tmp_path):
    path = mrqa_file(tmp_path, ("Zoë", [[0, 2]]))
    header, line = pathlib.Path(path).read_text().split("\n")
    passage = json.loads(line)
    for owner in (passage, passage["qas"][0], passage["qas"][0]["detected_answers"][0]):
        if key in owner:
            owner[key] = value
    with open(path, "w") as file:
        file.write(f"{header}\n{json.dumps(passage)}")
    with pytest.raises(BadInputError) as caught:
        read_mrqa(path)
    assert place in str(caught.value)
    assert "\n" not in str(caught.value)


def test_halves_of_surrogate_pairs_are_text(tmp_path):
    """Web text has them; the tokenizer takes them for U+FFFD."""
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([ROWS[0] | {"context": "a \ud83d b"}]))
    assert read_squad(str(path)).contexts == ["a \ud83d b"]


def test_rows_of_parquet_and_arrow_are_those_of_json_lines(tmp_path):
    """As `datasets` has SQuAD: the answers are an object of lists."""
    rows = [
        {
            "id": str(number),
            "title": "Zoë",
            "context": CONTEXT,
            "question": f"who {number}?",
            "answers": {"text": ["Zoë"] * number, "answer_start": [0] * number},
        }
        for number in range(3)
    ]
    frame = pandas.DataFrame(rows)
    frame.to_json(tmp_path / "lines", orient="records", lines=True)
    frame.to_parquet(tmp_path / "parquet", row_group_size=2)
    frame.to_feather(tmp_path / "feather")
    expected = read_squad(str(tmp_path / "lines"))
    assert [len(question.answers) for question in expected.questions] == [0, 1, 2]
    for name in ("parquet", "feather"):
        found = read_squad(str(tmp_path / name))
        assert (found.contexts, found.questions) == (expected.contexts, expected.questions)
    pandas.DataFrame([{**rows[0], "id": 1.5}]).to_parquet(tmp_path / "bad")
    with pytest.raises(BadInputError, match=r"bad: row 1: id.*: should be a valid"):
        read_squad(str(tmp_path / "bad"))
