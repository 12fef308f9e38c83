"""Extractive question answering as a `Task`."""

import dataclasses
import functools
import json
import os
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from spanbert_tf.data.records import Records
from spanbert_tf.errors import MismatchError
from spanbert_tf.files.writing import write_text
from spanbert_tf.models import (
    SpanBertBackbone,
    SpanBertQuestionAnswerer,
    SpanBertQuestionAnswererPreprocessor,
    SpanBertTokenizer,
)
from spanbert_tf.tasks.question_answering.baseline import answer_by_overlap
from spanbert_tf.tasks.question_answering.dataset import (
    load_contexts,
    load_questions,
    question_answering_dataset,
)
from spanbert_tf.tasks.question_answering.decoding import AnsweredQuestion, answer_questions
from spanbert_tf.tasks.question_answering.inspection import inspect_questions
from spanbert_tf.tasks.question_answering.metrics import (
    choose_null_threshold,
    score_answers,
    score_each,
)
from spanbert_tf.tasks.question_answering.records import (
    QuestionAnsweringConfig,
    QuestionAnsweringInfo,
)
from spanbert_tf.tasks.question_answering.report import report_page
from spanbert_tf.tasks.question_answering.serving import AnswerQuestions
from spanbert_tf.tasks.raw_inputs import in_batches_by_length, string_tensor
from spanbert_tf.tasks.report.page import predictor_of
from spanbert_tf.tasks.task import Task
from spanbert_tf.terminal import show_progress


def _check_model(
    model: SpanBertQuestionAnswerer, info: QuestionAnsweringInfo, directory: str, preset: str
) -> None:
    preprocessor = model.preprocessor
    if info.question_first != preprocessor.question_first:
        orders = ("after the passage", "before the passage")
        option = "with" if preprocessor.question_first else "without"
        raise MismatchError(
            f"{directory}: has the question {orders[info.question_first]}, and {preset} has it "
            f"{orders[preprocessor.question_first]}; write the records again {option} "
            "--question-first"
        )
    if info.has_unanswerable != model.has_unanswerable:
        kinds = ("that all have an answer", "some of which have none")
        raise MismatchError(
            f"{directory}: holds questions {kinds[info.has_unanswerable]}, and {preset} is for "
            f"questions {kinds[model.has_unanswerable]}; it and the records must be of one data set"
        )


def _build(
    backbone: SpanBertBackbone,
    tokenizer: SpanBertTokenizer,
    info: QuestionAnsweringInfo,
    config: QuestionAnsweringConfig,
) -> SpanBertQuestionAnswerer:
    preprocessor = SpanBertQuestionAnswererPreprocessor(
        tokenizer,
        sequence_length=info.sequence_length,
        question_first=info.question_first,
        segment_aware=info.segment_aware,
    )
    return SpanBertQuestionAnswerer(
        backbone,
        preprocessor,
        max_answer_tokens=config.prediction.max_answer_tokens,
        num_candidates=config.prediction.num_candidates,
        stride=info.stride,
        has_unanswerable=info.has_unanswerable,
    )


def _predict(
    model: SpanBertQuestionAnswerer,
    directory: str,
    *,
    batch_size: int,
    after_batch: Callable[[], None] = lambda: None,
) -> list[AnsweredQuestion]:
    batches = question_answering_dataset(directory, batch_size=batch_size, training=False)
    return answer_questions(
        model,
        show_progress(batches, int(batches.cardinality()), "batches", doing="answering"),
        directory,
        max_answer_tokens=model.max_answer_tokens,
        num_candidates=model.num_candidates,
        after_batch=after_batch,
    )


def _calibrate(
    model: SpanBertQuestionAnswerer, directory: str, answered: Sequence[AnsweredQuestion]
) -> None:
    if model.has_unanswerable:
        model.null_threshold = choose_null_threshold(load_questions(directory), answered)


def _score(
    model: SpanBertQuestionAnswerer | None, directory: str, answered: Sequence[AnsweredQuestion]
) -> dict[str, float]:
    if model is None:  # a baseline, which always answers
        has_unanswerable = Records.of(directory, QuestionAnsweringInfo).info.has_unanswerable
        threshold = np.inf
    else:
        has_unanswerable, threshold = model.has_unanswerable, model.null_threshold
    return score_answers(
        load_questions(directory),
        answered,
        has_unanswerable=has_unanswerable,
        null_threshold=threshold,
    )


def _final_texts(
    model: SpanBertQuestionAnswerer | None, answered: Sequence[AnsweredQuestion]
) -> list[str]:
    """The answers that count, empty for none."""
    never = model is None or not model.has_unanswerable
    return [item.text_under(np.inf if never else model.null_threshold) for item in answered]


def _write(
    model: SpanBertQuestionAnswerer,
    directory: str,
    answered: Sequence[AnsweredQuestion],
    output: str,
) -> None:
    """Writes the files of the original code for SQuAD, which the official scripts read."""
    texts = zip(answered, _final_texts(model, answered), strict=True)
    files = {
        "predictions.json": {item.id: text for item, text in texts},
        "nbest_predictions.json": {
            item.id: [dataclasses.asdict(candidate) for candidate in item.candidates]
            for item in answered
        },
    }
    if model.has_unanswerable:
        files["null_odds.json"] = {item.id: item.null_odds for item in answered}
    for name, content in files.items():
        text = json.dumps(content, indent=1, ensure_ascii=False)
        write_text(os.path.join(output, name), text)


def _report(
    title: str,
    model: SpanBertQuestionAnswerer | None,
    directory: str,
    answered: Sequence[AnsweredQuestion],
) -> str:
    questions, texts = load_questions(directory), _final_texts(model, answered)
    each = score_each(questions, texts)
    contexts, by = load_contexts(directory), predictor_of(model)
    return report_page(title, questions, contexts, answered, texts, each, by)


_FIELDS = ("question", "context")


def _served(model: SpanBertQuestionAnswerer, top_k: int) -> AnswerQuestions:
    return AnswerQuestions(model, top_k)


def _from_raw(
    model: SpanBertQuestionAnswerer, *, top_k: int = 1
) -> Callable[..., list[dict | list[dict]]]:
    """Answers dicts of `question` and `context` as the `question-answering` pipeline does.

    Where questions may have no answer, one that counts as unanswerable has an empty `answer`.
    """
    served = AnswerQuestions(model, max(top_k, 1))
    answer = tf.function(served.answer, input_signature=served.signatures()["serving_default"][1])

    def answer_batch(batch: Sequence[dict]) -> list[dict | list[dict]]:
        columns = [string_tensor(batch, name) for name in _FIELDS]
        found = {name: values.numpy() for name, values in answer(*columns).items()}
        answers = [_pipeline_answers(model, found, row) for row in range(len(batch))]
        return [best[0] for best in answers] if top_k == 1 else answers

    return functools.partial(in_batches_by_length, names=_FIELDS, work=answer_batch)


def _pipeline_answers(
    model: SpanBertQuestionAnswerer, found: dict[str, np.ndarray], row: int
) -> list[dict]:
    """The answers to one question that there are, best first."""
    if model.has_unanswerable and not found["is_answerable"][row]:
        return [{"score": 0.0, "start": 0, "end": 0, "answer": ""}]
    answers = [
        {"score": float(score), "start": int(start), "end": int(end), "answer": text.decode()}
        for score, start, end, text in zip(
            *(found[name][row] for name in ("probabilities", "starts", "ends", "answers")),
            strict=True,
        )
    ]
    return [item for item in answers if item["answer"]] or answers[:1]


TASK = Task(
    name="question_answering",
    main_metric="f1",
    model_class=SpanBertQuestionAnswerer,
    config_class=QuestionAnsweringConfig,
    info_class=QuestionAnsweringInfo,
    check_model=_check_model,
    build=_build,
    dataset=question_answering_dataset,
    predict=_predict,
    calibrate=_calibrate,
    baseline=answer_by_overlap,
    score=_score,
    answers=lambda model, directory, answered: _final_texts(model, answered),
    write=_write,
    written_files=("predictions.json", "nbest_predictions.json", "null_odds.json"),
    report=_report,
    served=_served,
    from_raw=_from_raw,
    fields=lambda model: _FIELDS,
    inspect=inspect_questions,
)
