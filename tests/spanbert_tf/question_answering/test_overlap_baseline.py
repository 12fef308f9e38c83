"""The baseline that was never trained."""

import pytest

from data_prep.question_answering import QuestionOptions, write_questions
from data_prep.questions import Question, QuestionSet
from spanbert_tf.question_answering.overlap_baseline import answer_by_overlap

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
    (answered,) = answer_by_overlap(output)
    (candidate,) = answered.candidates
    assert candidate.text == PASSAGE[candidate.start : candidate.end] == answer
    assert answered.null_odds < 0
