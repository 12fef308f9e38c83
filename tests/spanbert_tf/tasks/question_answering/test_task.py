"""Question answering as a task: what is true of all tasks, and of its exports besides."""

import json
from typing import ClassVar

import pytest
from made_up_questions import VOCABULARY, made_up_questions
from task_tests import SEQUENCE_LENGTH, TrainingTests

from spanbert_tf.tasks.lookup import open_records
from spanbert_tf.tasks.prediction import Predictor
from spanbert_tf.tasks.question_answering.graph import AnswerQuestions
from spanbert_tf.tasks.question_answering.records import CONTEXTS_FILE, QUESTIONS_FILE
from spanbert_tf.tasks.question_answering.rows import QuestionOptions, write_questions

pytestmark = pytest.mark.slow  # whole trainings, exports and predictions

_STRIDE = 8


class TestQuestionAnswering(TrainingTests):
    config_text = f"task: question_answering\ndata:\n  stride: {_STRIDE}\n"
    vocabulary = VOCABULARY
    raw_input: ClassVar = {"question": "who has the cat?", "context": "ann has the cat."}

    def write_records(self, directory, vocabulary):
        for name, count, seed in (("train", 64, 1), ("dev", 24, 2), ("other", 64, 3)):
            write_questions(
                made_up_questions(count, seed),
                str(directory / name),
                vocabulary=vocabulary,
                lowercase=True,
                options=QuestionOptions(sequence_length=SEQUENCE_LENGTH, stride=_STRIDE),
            )

    def raw_inputs(self, data):
        contexts = open_records(data).lines(CONTEXTS_FILE)
        return [
            {"question": line["question"], "context": contexts[line["context_index"]]}
            for line in open_records(data).lines(QUESTIONS_FILE)
        ]

    def answers_in_files(self, output):
        best = json.loads((output / "nbest_predictions.json").read_text())
        answers = json.loads((output / "predictions.json").read_text())
        names = {"start": "start", "end": "end", "score": "probability"}
        return [
            {"answer": text, **{name: best[id][0][key] for name, key in names.items()}}
            for id, text in answers.items()
        ]

    def answers_of_export(self, outputs):
        columns = (outputs[name][:, 0] for name in ("answers", "starts", "ends", "probabilities"))
        return [
            {"answer": text.decode(), "start": int(start), "end": int(end), "score": float(score)}
            for text, start, end, score in zip(*columns, strict=True)
        ]

    def answer_of_predictor(self, found):
        return found

    def test_predictor_is_traced_once(self, finished, monkeypatch):
        traces, answer = [], AnswerQuestions.answer

        def note_and_answer(self, question, context):
            traces.append(question)
            return answer(self, question, context)

        monkeypatch.setattr(AnswerQuestions, "answer", note_and_answer)
        predict = Predictor(finished[0])
        for text in ("who has the cat?", "who?"):
            assert predict({**self.raw_input, "question": text})["answer"]
        assert len(traces) == 1
