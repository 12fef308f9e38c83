"""The task of extractive question answering.

Dimensions: B rows, S positions.
"""

import collections
import dataclasses
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import keras_hub
import numpy as np
import scipy.special
import tensorflow as tf
from rich.text import Text

from spanbert_tf.data.batches import PackedRows
from spanbert_tf.data.records import Records
from spanbert_tf.errors import BadInputError, MismatchError
from spanbert_tf.files.output import write_text
from spanbert_tf.models import (
    SpanBertBackbone,
    SpanBertQuestionAnswerer,
    SpanBertQuestionAnswererPreprocessor,
    SpanBertTokenizer,
)
from spanbert_tf.serving.description import Description
from spanbert_tf.serving.exporting import Signatures
from spanbert_tf.tasks.graphs import sentences_of
from spanbert_tf.tasks.marked_text import marked_pieces, pieces_of_row
from spanbert_tf.tasks.pipeline import best_of
from spanbert_tf.tasks.question_answering.answers import (
    AnsweredQuestion,
    answer_by_overlap,
    answer_questions,
    spans_of_windows,
)
from spanbert_tf.tasks.question_answering.evaluators import SQUAD, advice_on_metric, check_metric
from spanbert_tf.tasks.question_answering.graph import AnswerQuestions, WindowSpans
from spanbert_tf.tasks.question_answering.metrics import (
    choose_null_threshold,
    score_answers,
    score_each,
)
from spanbert_tf.tasks.question_answering.records import (
    CONTEXTS_FILE,
    END_POSITION,
    HAS_MOST_CONTEXT,
    METRICS,
    OFFSET_ENDS,
    OFFSET_STARTS,
    PASSAGE_START,
    QUESTION_INDEX,
    QUESTIONS_FILE,
    START_POSITION,
    QuestionAnsweringConfig,
    QuestionAnsweringManifest,
)
from spanbert_tf.tasks.report import Report, Table, confusion_table, marked_parts, marked_places
from spanbert_tf.tasks.shown_answers import View
from spanbert_tf.tasks.task import Outcome, Task
from spanbert_tf.terminal import print_line

_PASSAGE_LISTS = (OFFSET_STARTS, OFFSET_ENDS, HAS_MOST_CONTEXT)
_TEMPLATE = os.path.join(os.path.dirname(__file__), "report.html")
_FILTERS = {"errors": "no exact match", "right": "exact match", "wrong": "F1 of 0"}
_SHOWN_OPENINGS = 10  # first words of questions


class QuestionAnswering(Task[QuestionAnsweringManifest, QuestionAnsweringConfig]):
    """Answers questions with parts of passages.

    Predictions are `AnsweredQuestion`; the gold answers are in the lines of `questions.jsonl`.
    """

    name = "question_answering"
    model_class = SpanBertQuestionAnswerer
    config_class = QuestionAnsweringConfig
    manifest_class = QuestionAnsweringManifest
    written_files = ("predictions.json", "nbest_predictions.json", "null_odds.json")
    metrics = METRICS
    fields = ("question", "context")
    answered_by = "sentences"
    readme = os.path.join(os.path.dirname(__file__), "readme.md")
    example: ClassVar[Mapping[str, Any]] = {
        "question": "Who has the owl?",
        "context": "Ann has the cat. Bob has the owl.",
        "question_sentence_starts": [0],
        "context_sentence_starts": [0, 17],
    }

    def signatures(self, model: keras_hub.models.Task, top_k: int) -> Signatures:
        """Returns signatures of questions and contexts, and of their sentences for SegaBERT."""
        return AnswerQuestions(model, max(top_k, 1)).signatures()

    def check(self, description: Description, item: dict) -> dict:
        """Checks a raw input as `Pipeline.check`, and finds the sentences that SegaBERT reads."""
        item = super().check(description, item)
        if not description.settings["segment_aware"]:
            return item
        line = item["question"].replace("\n", " ")
        return {
            **item,
            "question_sentence_starts": sentences_of(description, line),
            "context_sentence_starts": sentences_of(description, item["context"]),
        }

    def readme_values(self, model: keras_hub.models.Task) -> dict[str, Any]:
        """Puts question and context in the order in which the model reads them."""
        question = self.example["question"]
        context = self.example["context"]
        is_first = model.preprocessor.question_first
        return {"texts": (question, context) if is_first else (context, question)}

    def settings_of(self, model: keras_hub.models.Task) -> Mapping[str, bool | float]:
        """Returns whether it reads sentences, and when a question counts as unanswerable."""
        return {
            "segment_aware": model.preprocessor.segment_aware,
            "has_unanswerable": model.has_unanswerable,
            "null_threshold": float(model.null_threshold),
        }

    def answer(
        self, description: Description, item: dict, found: dict, top_k: int
    ) -> dict | list[dict]:
        """Returns the best answers, as the pipeline `question-answering` does.

        Where questions may have no answer, an empty `answer` says so. Its score is its probability
        beside the best answer. It is the first one if the question counts as unanswerable, and
        otherwise the last one of several.
        """
        answers = []
        for index, text in enumerate(found["answers"]):
            answer = {
                "score": float(found["probabilities"][index]),
                "start": int(found["starts"][index]),
                "end": int(found["ends"][index]),
                "answer": text.decode(),
            }
            answers.append(answer)
        texts = [answer for answer in answers if answer["answer"]]
        if not description.settings["has_unanswerable"]:
            return best_of(texts or answers[:1], top_k)
        score = float(scipy.special.expit(found["null_odds"]))
        none = {"score": score, "start": 0, "end": 0, "answer": ""}
        if not texts or not found["is_answerable"]:
            return best_of([none, *texts], top_k)
        return best_of([*texts[: max(top_k - 1, 1)], none], top_k)

    def view(self, description: Description, item: dict, answer: dict | list[dict]) -> View:
        """Shows the best answer in its passage, and the probabilities of all."""
        answers = [answer] if isinstance(answer, dict) else answer
        place = (answers[0]["start"], answers[0]["end"])
        shares = [(one["answer"] or "no answer", one["score"]) for one in answers]
        return View([marked_places(item["context"], [place])], shares)

    def check_model(self, model: keras_hub.models.Task, records: Records, preset: str) -> None:
        """Refuses another order of question and passage, and unanswerable questions for others."""
        manifest = records.manifest
        question_first = model.preprocessor.question_first
        if manifest.question_first != question_first:
            orders = ("after the passage", "before the passage")
            option = "with" if question_first else "without"
            raise MismatchError(
                f"{records}: has the question {orders[manifest.question_first]}, and {preset} has "
                f"it {orders[question_first]}; write the records again {option} --question-first"
            )
        if manifest.has_unanswerable != model.has_unanswerable:
            kinds = ("that all have an answer", "some of which have no answer")
            raise MismatchError(
                f"{records}: holds questions {kinds[manifest.has_unanswerable]}, and {preset} is "
                f"for questions {kinds[model.has_unanswerable]}; it and the records must be of one "
                "data set"
            )

    def build(
        self,
        backbone: SpanBertBackbone,
        tokenizer: SpanBertTokenizer,
        manifest: QuestionAnsweringManifest,
        config: QuestionAnsweringConfig,
    ) -> SpanBertQuestionAnswerer:
        """Creates a question answerer on the encoder."""
        preprocessor = SpanBertQuestionAnswererPreprocessor(
            tokenizer,
            sequence_length=manifest.sequence_length,
            question_first=manifest.question_first,
            segment_aware=manifest.segment_aware,
        )
        return self.model_class(
            backbone,
            preprocessor,
            max_answer_tokens=config.prediction.max_answer_tokens,
            num_candidates=config.prediction.num_candidates,
            stride=manifest.stride,
            has_unanswerable=manifest.has_unanswerable,
        )

    def parse(
        self, rows: PackedRows, serialized: tf.Tensor, width: tf.Tensor
    ) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
        """Parses windows and the positions of their answers.

        `x` also has `question_index` and `passage_start`, int32 [B], and for each position of the
        passage its characters in the context, `offset_starts` and `offset_ends`, and
        `has_most_context`, int32 [B, S]. `y` has `start_positions` and `end_positions`, int32 [B],
        which are 0 if the window has no answer.
        """
        x, found = rows.parse(serialized, width)
        x["question_index"] = found[QUESTION_INDEX]
        x["passage_start"] = found[PASSAGE_START]
        in_passage = tf.range(width)[tf.newaxis] - x["passage_start"][:, tf.newaxis]  # [B, S]
        for name in _PASSAGE_LISTS:  # stored only for the tokens of the passage
            shifted = tf.gather(found[name], tf.maximum(in_passage, 0), batch_dims=1)
            x[name] = tf.where(in_passage >= 0, shifted, 0)
        y = {"start_positions": found[START_POSITION], "end_positions": found[END_POSITION]}
        return x, y

    def predict_batch(
        self, model: keras_hub.models.Task, x: dict, outputs: dict[str, tf.Tensor]
    ) -> WindowSpans:
        """Finds the best spans of each window."""
        return spans_of_windows(x, outputs, model.max_answer_tokens)

    def collect(
        self, model: keras_hub.models.Task, records: Records, rows: list[WindowSpans]
    ) -> list[AnsweredQuestion]:
        """Chooses the answers to each question from all of its windows."""
        return answer_questions(records, rows, model.num_candidates)

    def baseline(self, records: Records) -> list[AnsweredQuestion]:
        """Answers with the words after the longest n-gram that passage and question share."""
        return answer_by_overlap(records)

    def calibrate(
        self,
        model: keras_hub.models.Task,
        records: Records,
        predictions: Sequence[AnsweredQuestion],
    ) -> None:
        """Sets the threshold of the null odds above which a question counts as unanswerable."""
        if model.has_unanswerable:
            questions = records.lines(QUESTIONS_FILE)
            model.null_threshold = choose_null_threshold(questions, predictions)

    def outcome(
        self,
        model: keras_hub.models.Task | None,
        records: Records,
        predictions: Sequence[AnsweredQuestion],
    ) -> Outcome:
        """Decodes answers to texts, which are empty for questions that count as unanswerable."""
        threshold = _threshold(model)
        texts = [item.text_under(threshold) for item in predictions]
        questions = records.lines(QUESTIONS_FILE)
        return Outcome(model, records, predictions, questions, texts, texts)

    def configure(self, config: QuestionAnsweringConfig) -> None:
        """Scores by `prediction.metric`."""
        self.score_by(config.prediction.metric)

    def check_metric(self, records: Records) -> None:
        """Refuses what a metric cannot score, and says where it does not fit the answers."""
        manifest = records.manifest
        if self.metric != SQUAD and manifest.has_unanswerable:
            raise BadInputError(
                f"{records}: questions without an answer are scored by metric {SQUAD} alone, not "
                f"by {self.metric}"
            )
        check_metric(self.metric, manifest.language, str(records))
        lines = records.lines(QUESTIONS_FILE)
        golds = [text for line in lines for text in line["gold_texts"]]
        advice = advice_on_metric(self.metric, golds, manifest.language)
        if advice:
            print_line(f"{records}: {advice}")

    def score(self, outcome: Outcome) -> dict[str, float]:
        """Computes exact match and F1 by the official script of the metric."""
        model = outcome.model
        has_unanswerable = outcome.records.manifest.has_unanswerable
        return score_answers(
            outcome.gold,
            outcome.predictions,
            has_unanswerable=has_unanswerable if model is None else model.has_unanswerable,
            null_threshold=np.inf if model is None else model.null_threshold,
            metric=self.metric,
            language=outcome.records.manifest.language,
        )

    def _score_each(self, outcome: Outcome) -> list[dict[str, float]]:
        """Computes exact match and F1 of each question by the metric."""
        language = outcome.records.manifest.language
        return score_each(outcome.gold, outcome.predicted, self.metric, language)

    def write(self, outcome: Outcome, output: str) -> None:
        """Writes the files of BERT's code for SQuAD, which the official scripts read."""
        predictions: dict[str, str] = {}
        candidates: dict[str, list[dict]] = {}
        null_odds: dict[str, float] = {}
        for item, text in zip(outcome.predictions, outcome.predicted, strict=True):
            predictions[item.id] = text
            candidates[item.id] = [dataclasses.asdict(candidate) for candidate in item.candidates]
            null_odds[item.id] = item.null_odds
        files: dict[str, dict] = {
            "predictions.json": predictions,
            "nbest_predictions.json": candidates,
        }
        if outcome.model is not None and outcome.model.has_unanswerable:
            files["null_odds.json"] = null_odds
        for name, content in files.items():
            text = json.dumps(content, indent=1, ensure_ascii=False)
            write_text(os.path.join(output, name), text)

    def report(self, outcome: Outcome, scores: Mapping[str, float]) -> Report:
        """Returns a report that shows each question with its passage."""
        contexts = outcome.records.lines(CONTEXTS_FILE)
        each = self._score_each(outcome)
        columns = zip(outcome.gold, outcome.predictions, outcome.predicted, each, strict=True)
        records = []
        for question, answered, text, score in columns:
            context = contexts[question["context_index"]]
            records.append(_record(question, context, answered, text, score, outcome.by))
        shown = {name: scores[name] for name in ("exact_match", "f1")}
        return Report(_TEMPLATE, "question", records, _FILTERS, shown)

    def tables(self, outcome: Outcome) -> list[Table]:
        """Returns tables of scores by the first word of a question, and of the kinds of answers."""
        each = self._score_each(outcome)
        return [_by_opening(outcome.gold, each), _by_answer(outcome, each)]

    def examples(self, records: Records) -> Iterator[list[str | Text]]:
        """Yields windows as the model reads them, with their questions and answers."""
        questions = records.lines(QUESTIONS_FILE)
        rows = self.dataset(records, batch_size=1, training=False)
        for x, y in rows.as_numpy_iterator():
            question = questions[int(x["question_index"][0])]
            golds = ", ".join(dict.fromkeys(question["gold_texts"])) or "none"
            start = int(y["start_positions"][0])
            end = int(y["end_positions"][0])
            answers = [(start, end, "")] if start else []  # 0: no answer in this window
            yield [
                f"{question['id']}: {question['question']}",
                f"gold answers: {golds}",
                marked_pieces(pieces_of_row(x, records.vocabulary), answers),
            ]


def _by_opening(questions: Sequence[dict], each: Sequence[Mapping[str, float]]) -> Table:
    """Returns mean scores of questions with the same first word, for the most frequent words."""
    openings = [_first_word(question["question"]) for question in questions]
    counts = collections.Counter(openings).most_common(_SHOWN_OPENINGS)
    scores: dict[str, list] = {f"{opening} \u2026": [] for opening, _ in counts}
    for opening, score in zip(openings, each, strict=True):
        name = f"{opening} \u2026"
        scores.setdefault(name if name in scores else "others", []).append(score)
    rows = [_means(name, opening_scores) for name, opening_scores in scores.items()]
    columns = ("", "exact match", "F1", "support")
    return Table("questions by their first word", columns, rows, [_means("all", each)])


def _first_word(question: str) -> str:
    """Returns the first letters and digits of a question, in lower case."""
    word = re.search(r"\w+", question.lower())
    return word[0] if word else ""


def _means(name: str, each: Sequence[Mapping[str, float]]) -> tuple[str, ...]:
    """Returns the row of a table: a name, the mean scores, and the number of questions."""
    exact_match = np.mean([scores["exact_match"] for scores in each])
    f1 = np.mean([scores["f1"] for scores in each])
    return (name, f"{exact_match:.2f}", f"{f1:.2f}", f"{len(each):,}")


def _by_answer(outcome: Outcome, each: Sequence[Mapping[str, float]]) -> Table:
    """Counts how questions with and without a gold answer were answered."""
    has_answer = "has an answer"
    has_none = "has none"
    no_answer = "no answer"
    gold = []
    found = []
    for question, text, scores in zip(outcome.gold, outcome.predicted, each, strict=True):
        gold.append(has_answer if question["gold_texts"] else has_none)
        if not text:
            found.append(no_answer)
        elif scores["exact_match"]:
            found.append("exact match")
        else:
            found.append("in part" if scores["f1"] else "wrong")
    rows = [name for name in (has_answer, has_none) if name in gold]
    columns = ["exact match", "in part", "wrong", no_answer]
    return confusion_table(gold, found, rows, columns)._replace(title="what was answered")


def _threshold(model: keras_hub.models.Task | None) -> float:
    """Returns the null odds above which a question is unanswerable; a baseline always answers."""
    if model is None or not model.has_unanswerable:
        return np.inf
    return model.null_threshold


def _record(
    question: dict,
    context: str,
    item: AnsweredQuestion,
    answer: str,
    score: dict[str, float],
    by: str,
) -> dict:
    """Returns what the report shows of a question with its context and its answer."""
    best = item.candidates[0]
    chosen = [(best.start, best.end)] if answer else []
    is_exact = score["exact_match"] > 0
    # An exact match is shown as the gold answer, whatever articles and punctuation surround it.
    golds = chosen if is_exact else question["gold_spans"]
    notes = ("gold", by, f"\u2713 {by}")
    return {
        "kinds": ["wrong"] if score["f1"] == 0 else [],
        "error": 0 if is_exact else 101 - score["f1"],
        "id": question["id"],
        "f1": score["f1"],
        "question": question["question"],
        "golds": ", ".join(dict.fromkeys(question["gold_texts"])) or "(no answer)",
        "answer": answer or "(no answer)",
        "probability": best.probability,
        "passage": marked_parts(context, golds, chosen, notes),
    }
