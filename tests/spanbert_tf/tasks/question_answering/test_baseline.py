"""The baseline that was never trained."""

import json

import pytest

from spanbert_tf.cli import main
from spanbert_tf.tasks.lookup import open_records
from spanbert_tf.tasks.question_answering.answers import answer_by_overlap
from spanbert_tf.tasks.question_answering.files import Question, QuestionSet
from spanbert_tf.tasks.question_answering.records import QUESTIONS_FILE, QuestionAnsweringManifest
from spanbert_tf.tasks.question_answering.rows import QuestionOptions, write_questions

PASSAGE = "Ann sold the red cat in May. Bob sold the red owl, to Zoë (his aunt) for one euro only!"


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("Who got THE RED OWL?", "to Zoë (his aunt) for one euro only"),
        ("Who sold the red?", "cat in May. Bob sold the red owl"),  # the first of two
        ("For one euro only?", "sold the red owl, to Zoë (his aunt"),  # nothing behind
        ("Why?", "Ann sold the red cat in May. Bob"),  # nothing shared
    ],
)
def test_words_beside_the_longest_shared_ones(question, answer, tmp_path):
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    questions = QuestionSet("x", [PASSAGE], [Question("1", question, 0, (), ())])
    output = str(tmp_path / "data")
    write_questions(
        questions,
        output,
        vocabulary=str(vocabulary),
        lowercase=True,
        options=QuestionOptions(sequence_length=64),
    )
    (answered,) = answer_by_overlap(open_records(output))
    (candidate,) = answered.candidates
    assert candidate.text == PASSAGE[candidate.start : candidate.end] == answer
    assert answered.null_odds < 0


def test_commands_from_a_file_to_the_baselines_scores(tmp_path, capfd):
    """Two passages, of which each half has one (their hashes begin with 5f and f2)."""
    lines = [{"header": {}}]
    for passage, word in (("passage 0", "0"), ("passage 5", "5")):
        answer = {"text": word, "char_spans": [[8, 8]]}
        qas = [
            {"qid": word, "question": "Passage?", "answers": [word], "detected_answers": [answer]}
        ]
        lines.append({"context": passage, "qas": qas})
    (tmp_path / "mrqa.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    shared = ["--vocabulary", str(tmp_path / "vocab.txt"), "--input", str(tmp_path / "mrqa.jsonl")]
    data = []
    for half, identifier in (("test", "0"), ("development", "5")):
        output = str(tmp_path / half)
        options = ["--output", output, "--half", half, "--lowercase"]
        options += ["--question-first", "--segment-aware"]
        assert _status("prepare", "mrqa", *shared, *options) == 0
        assert [line["id"] for line in open_records(output).lines(QUESTIONS_FILE)] == [identifier]
        assert QuestionAnsweringManifest.load(output).segment_aware
        data += ["--data", output]
    report = str(tmp_path / "report.html")
    assert _status("evaluate", "--baseline", *data[:2], "--report", report) == 0
    assert "Passage?" in (tmp_path / "report.html").read_text()
    assert _status("evaluate", "--baseline", *data) == 0
    printed = capfd.readouterr().out.splitlines()
    assert printed[-1] == "overall, the mean of 2 sets: exact_match 100.00, f1 100.00"


def _status(*arguments):
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    return stop.value.code
