"""`spanbert-tf evaluate` and `predict` for question answering."""

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence

import keras
from keras_hub.src.utils import preset_utils

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
from spanbert_tf.question_answering.report import report_page
from spanbert_tf.whole_directory import write_directory

SETTINGS_FILE = "question_answering.json"


@dataclasses.dataclass(frozen=True)
class AnsweringSettings:
    """What a preset says of how its answers are chosen.

    Attributes:
        max_answer_tokens: longest answer.
        num_candidates: possible answers that are kept for each question.
        stride: tokens from one window of a passage to the next.
        has_unanswerable: whether questions may have no answer.
        null_threshold: null odds above which a question counts as unanswerable.
    """

    max_answer_tokens: int = 30
    num_candidates: int = 20
    stride: int = 128
    has_unanswerable: bool = False
    null_threshold: float = 0.0

    def with_threshold(self, scores: Mapping[str, float]) -> "AnsweringSettings":
        """The same with the threshold that `score_answers` found, if it looked for one."""
        threshold = scores.get("null_threshold", self.null_threshold)
        return dataclasses.replace(self, null_threshold=threshold)

    def to_json(self) -> str:
        """The text of `question_answering.json` in a preset."""
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"


def evaluate(
    model: keras.Model, data: str, settings: AnsweringSettings, *, batch_size: int
) -> dict[str, float]:
    """Scores a model on a directory of questions; see `score_answers`."""
    answered = _answer(model, data, settings, batch_size)
    return score_answers(load_questions(data), answered, has_unanswerable=settings.has_unanswerable)


def run_evaluation(
    preset: str, data: str, *, report: str | None = None, batch_size: int = 32
) -> dict[str, float]:
    """Prints the scores of a preset on a directory of questions.

    Args:
        preset: of a `SpanBertQuestionAnswerer`.
        data: what `prepare squad` or `prepare mrqa` wrote.
        report: path of an HTML page that shows each question, its passage and the answers.
        batch_size: rows of a batch.

    Raises:
        BadInputError: a file cannot be used, or the report cannot be written.
        MismatchError: the questions were written for another model.
    """
    model, settings = load_answerer(preset, data)
    questions, answered = load_questions(data), _answer(model, data, settings, batch_size)
    scores = score_answers(questions, answered, has_unanswerable=settings.has_unanswerable)
    for name, value in scores.items():
        print(f"{name}: {value:.2f}")
    if report:
        answers = [_final_text(item, settings) for item in answered]
        each = score_each(questions, answers)
        page = report_page(
            f"{preset} on {data}", questions, load_contexts(data), answered, answers, each
        )
        try:
            with open(report, "w", encoding="utf-8") as file:
                file.write(page)
        except OSError as error:
            raise BadInputError(f"{report}: cannot be written ({error})") from error
        print(f"{report}: all questions", flush=True)
    return scores


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
    model, settings = load_answerer(preset, data)
    answered = _answer(model, data, settings, batch_size)
    write_directory(output, lambda directory: _write_predictions(directory, answered, settings))
    print(f"{output}: answers to {len(answered):,} questions", flush=True)


def load_settings(preset: str) -> AnsweringSettings:
    """How the answers of a preset are chosen; the defaults if it does not say."""
    if not preset_utils.check_file_exists(preset, SETTINGS_FILE):
        return AnsweringSettings()
    return AnsweringSettings(**preset_utils.load_json(preset, SETTINGS_FILE))


def load_answerer(preset: str, data: str) -> tuple[SpanBertQuestionAnswerer, AnsweringSettings]:
    """Loads a preset and checks that questions were written for it.

    Raises:
        BadInputError: the preset cannot be used.
        MismatchError: vocabulary, casing or order of the segments differ.
    """
    model = load_checked(SpanBertQuestionAnswerer, preset)
    settings = load_settings(preset)
    info, preprocessor = QuestionAnsweringInfo.load(data), model.preprocessor
    tokenizer = preprocessor.tokenizer
    for name, found, wanted in (
        ("vocabulary_hash", info.vocabulary_hash, vocabulary_hash(tokenizer.get_vocabulary())),
        ("lowercase", info.lowercase, tokenizer.lowercase),
        ("question_first", info.question_first, preprocessor.question_first),
        ("has_unanswerable", info.has_unanswerable, settings.has_unanswerable),
    ):
        if found != wanted:
            raise MismatchError(
                f"{data}: {name} of these questions is {found}, of {preset} {wanted}; write them "
                "again for this model"
            )
    return model, settings


def _answer(
    model: keras.Model, data: str, settings: AnsweringSettings, batch_size: int
) -> list[AnsweredQuestion]:
    return answer_questions(
        model,
        question_answering_dataset(data, batch_size=batch_size, training=False),
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
