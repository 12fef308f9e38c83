"""`spanbert-tf evaluate` and `predict` for question answering."""

import dataclasses
import json
import os
from collections.abc import Callable, Mapping, Sequence

import keras
import numpy as np

from spanbert_tf.data.question_answering import (
    load_contexts,
    load_questions,
    question_answering_dataset,
)
from spanbert_tf.data.question_answering_schema import QuestionAnsweringInfo
from spanbert_tf.data.schema import vocabulary_hash
from spanbert_tf.errors import BadInputError, MismatchError
from spanbert_tf.models import SpanBertQuestionAnswerer
from spanbert_tf.presets.loading import load_checked
from spanbert_tf.question_answering.answers import AnsweredQuestion, answer_questions
from spanbert_tf.question_answering.evaluation import score_answers, score_each
from spanbert_tf.question_answering.overlap_baseline import answer_by_overlap
from spanbert_tf.question_answering.report import report_page
from spanbert_tf.question_answering.settings import AnsweringSettings, load_settings
from spanbert_tf.whole_directory import write_directory


def evaluate(
    model: keras.Model, data: str, settings: AnsweringSettings, *, batch_size: int
) -> dict[str, float]:
    """Scores a model on a directory of questions; see `score_answers`."""
    answered = _answer(model, data, settings, batch_size)
    return score_answers(load_questions(data), answered, has_unanswerable=settings.has_unanswerable)


def run_evaluation(
    preset: str, data: Sequence[str], *, report: str | None = None, batch_size: int = 32
) -> list[dict[str, float]]:
    """Prints the scores of a preset on sets of questions, and their mean over the sets.

    Args:
        preset: of a `SpanBertQuestionAnswerer`.
        data: directories that `prepare squad` or `prepare mrqa` wrote.
        report: path of an HTML page that shows each question of the first set, its passage and
            the answers.
        batch_size: rows of a batch.

    Returns:
        The scores of each set, as `score_answers`.

    Raises:
        BadInputError: a file cannot be used, or the report cannot be written.
        MismatchError: the questions were written for another model.
    """
    model, settings = load_answerer(preset, data)

    def answer(directory: str) -> list[AnsweredQuestion]:
        return _answer(model, directory, settings, batch_size)

    return _print_scores(preset, answer, settings, data, report)


def run_baseline_evaluation(
    data: Sequence[str], *, report: str | None = None
) -> list[dict[str, float]]:
    """Prints the scores of `answer_by_overlap`, which was never trained.

    Args:
        data: as `run_evaluation`.
        report: as `run_evaluation`.

    Raises:
        BadInputError: a file cannot be used, or the report cannot be written.
    """
    has_unanswerable = QuestionAnsweringInfo.load(data[0]).has_unanswerable
    settings = AnsweringSettings(has_unanswerable=has_unanswerable)
    return _print_scores("the baseline", answer_by_overlap, settings, data, report)


def _print_scores(
    name: str,
    answer: Callable[[str], list[AnsweredQuestion]],
    settings: AnsweringSettings,
    data: Sequence[str],
    report: str | None,
) -> list[dict[str, float]]:
    scores = []
    for directory in data:
        questions, answered = load_questions(directory), answer(directory)
        scores.append(
            score_answers(questions, answered, has_unanswerable=settings.has_unanswerable)
        )
        print(f"{directory}: {shown_scores(scores[-1])}", flush=True)
        if report and directory == data[0]:
            title = f"{name} on {directory}"
            _write_report(report, title, directory, questions, answered, settings)
    if len(data) > 1:  # MRQA's overall score (Fisch et al., 2019; SpanBERT, table 2: "Avg.")
        means = {name: np.mean([one[name] for one in scores]) for name in ("exact_match", "f1")}
        print(f"overall, the mean of {len(data)} sets: {shown_scores(means)}", flush=True)
    return scores


def shown_scores(scores: Mapping[str, float]) -> str:
    """Scores as a line for people."""
    return ", ".join(f"{name} {value:.2f}" for name, value in scores.items())


def _write_report(
    path: str,
    title: str,
    data: str,
    questions: Sequence[dict],
    answered: Sequence[AnsweredQuestion],
    settings: AnsweringSettings,
) -> None:
    answers = [_final_text(item, settings) for item in answered]
    each = score_each(questions, answers)
    page = report_page(title, questions, load_contexts(data), answered, answers, each)
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(page)
    except OSError as error:
        raise BadInputError(f"{path}: cannot be written ({error})") from error
    print(f"{path}: all questions of {data}", flush=True)


def run_prediction(preset: str, data: str, output: str, *, batch_size: int = 32) -> None:
    """Writes `predictions.json`, `nbest_predictions.json` and, for SQuAD 2.0, `null_odds.json`.

    They are in the layout of the original code for SQuAD, which the official scripts read.

    Args:
        preset: of a `SpanBertQuestionAnswerer`.
        data: what `prepare squad` or `prepare mrqa` wrote.
        output: directory that appears whole or not at all.
        batch_size: rows of a batch.

    Raises:
        BadInputError: a file cannot be used, or the output cannot be written.
        MismatchError: the questions were written for another model.
    """
    model, settings = load_answerer(preset, [data])
    answered = _answer(model, data, settings, batch_size)
    write_directory(output, lambda directory: _write_predictions(directory, answered, settings))
    print(f"{output}: answers to {len(answered):,} questions", flush=True)


def load_answerer(
    preset: str, data: Sequence[str]
) -> tuple[SpanBertQuestionAnswerer, AnsweringSettings]:
    """Loads a preset and checks that questions were written for it.

    Args:
        preset: of a `SpanBertQuestionAnswerer`.
        data: directories of questions.

    Raises:
        BadInputError: the preset cannot be used.
        MismatchError: vocabulary, casing or the layout of the rows differ.
    """
    model = load_checked(SpanBertQuestionAnswerer, preset)
    settings = load_settings(preset)
    for directory in data:
        _check_questions(model, settings, directory, preset)
    return model, settings


def _check_questions(
    model: SpanBertQuestionAnswerer, settings: AnsweringSettings, data: str, preset: str
) -> None:
    info, preprocessor = QuestionAnsweringInfo.load(data), model.preprocessor
    tokenizer = preprocessor.tokenizer
    for name, found, wanted in (
        ("vocabulary_hash", info.vocabulary_hash, vocabulary_hash(tokenizer.get_vocabulary())),
        ("lowercase", info.lowercase, tokenizer.lowercase),
        ("question_first", info.question_first, preprocessor.question_first),
        ("segment_aware", info.segment_aware, preprocessor.segment_aware),
        ("has_unanswerable", info.has_unanswerable, settings.has_unanswerable),
    ):
        if found != wanted:
            raise MismatchError(
                f"{data}: {name} of these questions is {found}, of {preset} {wanted}; write them "
                "again for this model"
            )


def _answer(
    model: keras.Model, data: str, settings: AnsweringSettings, batch_size: int
) -> list[AnsweredQuestion]:
    return answer_questions(
        model,
        question_answering_dataset(
            data, batch_size=batch_size, training=False, sort_by_length=True
        ),
        data,
        max_answer_tokens=settings.max_answer_tokens,
        num_candidates=settings.num_candidates,
    )


def _final_text(item: AnsweredQuestion, settings: AnsweringSettings) -> str:
    """The answer that counts, empty for none."""
    is_null = settings.has_unanswerable and item.null_odds > settings.null_threshold
    return "" if is_null else item.candidates[0].text


def _write_predictions(
    directory: str, answered: Sequence[AnsweredQuestion], settings: AnsweringSettings
) -> None:
    files = {
        "predictions.json": {item.id: _final_text(item, settings) for item in answered},
        "nbest_predictions.json": {
            item.id: [dataclasses.asdict(candidate) for candidate in item.candidates]
            for item in answered
        },
    }
    if settings.has_unanswerable:
        files["null_odds.json"] = {item.id: item.null_odds for item in answered}
    for name, content in files.items():
        with open(os.path.join(directory, name), "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1, ensure_ascii=False)
