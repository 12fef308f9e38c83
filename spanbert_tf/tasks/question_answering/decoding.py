"""From the best spans of a question's windows to its answers."""

import dataclasses
import os
from collections.abc import Callable, Iterable

import keras
import numpy as np
import tensorflow as tf

from spanbert_tf.errors import BadInputError
from spanbert_tf.tasks.question_answering.candidates import (
    SPANS_OF_A_WINDOW,
    AnswerCandidates,
    WindowSpans,
    best_candidates,
)
from spanbert_tf.tasks.question_answering.dataset import load_contexts, load_questions
from spanbert_tf.tasks.question_answering.spans import NO_SPAN, best_spans

_QUESTIONS_AT_ONCE = 64
_LONE_SURROGATES = "surrogatepass"  # JSON may hold them


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A possible answer.

    Attributes:
        text: part of the context, with its case, spaces and accents.
        start: its first character in the context.
        end: the character after its last one.
        score: start logit plus end logit.
        probability: among the candidates of its question.
    """

    text: str
    start: int
    end: int
    score: float
    probability: float


@dataclasses.dataclass(frozen=True)
class AnsweredQuestion:
    """A model's answers to a question.

    Attributes:
        id: id of the question.
        candidates: best first; each text once. Where a passage has no tokens, an empty one.
        null_score: score of no answer, the lowest of all windows; if it exceeds the best
            candidate's score, it speaks for no answer.
    """

    id: str
    candidates: tuple[Candidate, ...]
    null_score: float

    @property
    def null_odds(self) -> float:
        """How much better no answer is than the best one, in float32 as the export computes it."""
        return float(np.float32(self.null_score) - np.float32(self.candidates[0].score))

    def text_under(self, null_threshold: float) -> str:
        """The answer that counts, empty where the null odds are above the threshold."""
        return "" if self.null_odds > null_threshold else self.candidates[0].text


def answer_questions(
    model: keras.Model,
    batches: Iterable,
    directory: str,
    *,
    max_answer_tokens: int = 30,
    num_candidates: int = 20,
    after_batch: Callable[[], None] = lambda: None,
) -> list[AnsweredQuestion]:
    """Answers all questions of a directory.

    Args:
        model: a `SpanBertQuestionAnswerer`.
        batches: what `question_answering_dataset` returned, not for training.
        directory: what the batches were read from.
        max_answer_tokens: longest answer.
        num_candidates: answers to keep for each question.
        after_batch: is called after each batch.

    Returns:
        In the order of `questions.jsonl`.
    """

    @tf.function(reduce_retracing=True)
    def spans_of(x: dict) -> WindowSpans:
        logits = model(x, training=False)
        is_passage = x["offset_ends"] > 0
        spans = best_spans(
            logits["start_logits"],
            logits["end_logits"],
            is_passage,
            x["has_most_context"] > 0,
            max_answer_tokens=max_answer_tokens,
            num_spans=SPANS_OF_A_WINDOW,
        )
        starts = tf.gather(x["offset_starts"], spans.starts, batch_dims=1)  # [B, K] characters
        # An invalid span may end beyond the row.
        last = tf.minimum(spans.ends, tf.shape(is_passage)[1] - 1)
        ends = tf.gather(x["offset_ends"], last, batch_dims=1)
        return WindowSpans(x["question_index"], spans.scores, starts, ends, spans.null_scores)

    parts = []
    for x, *_ in batches:
        parts.append([value.numpy() for value in spans_of(x)])
        after_batch()
    spans = WindowSpans(*map(np.concatenate, zip(*parts, strict=True)))
    order = np.argsort(spans.question_index, kind="stable")
    return _answers(directory, WindowSpans(*(values[order] for values in spans)), num_candidates)


def _answers(directory: str, spans: WindowSpans, num_candidates: int) -> list[AnsweredQuestion]:
    """The answers from the spans of all windows, which stand in the order of the questions."""
    lines, contexts = load_questions(directory), load_contexts(directory)
    _check_places(directory, spans, lines, contexts)

    @tf.function(reduce_retracing=True)
    def candidates_of(texts: tf.Tensor, some: WindowSpans) -> AnswerCandidates:
        return best_candidates(texts, some, num_candidates=num_candidates, unit="UTF8_CHAR")

    answered = []
    for first in range(0, len(lines), _QUESTIONS_AT_ONCE):
        some = lines[first : first + _QUESTIONS_AT_ONCE]
        begin, end = np.searchsorted(spans.question_index, [first, first + len(some)])
        part = WindowSpans(*(tf.constant(values[begin:end]) for values in spans))
        part = part._replace(question_index=part.question_index - first)
        texts = [contexts[line["context_index"]].encode("utf-8", _LONE_SURROGATES) for line in some]
        found = AnswerCandidates(
            *(values.numpy() for values in candidates_of(tf.constant(texts), part))
        )
        for row, line in enumerate(some):
            null_score = float(found.null_scores[row])
            answered.append(AnsweredQuestion(line["id"], _of_question(found, row), null_score))
    return answered


def _check_places(
    directory: str | os.PathLike, spans: WindowSpans, lines: list[dict], contexts: list[str]
) -> None:
    """Refuses questions without a passage, and windows without a question or beyond a passage.

    Checksums tell that no file has changed since, not that what was written fits together.

    Raises:
        BadInputError: the records' files do not fit together.
    """
    outside = [line for line in lines if line["context_index"] >= len(contexts)]
    owners = spans.question_index
    if outside or not np.array_equal(np.unique(owners), np.arange(len(lines))):
        raise BadInputError(
            f"{directory}: its questions are not those of its windows and contexts; write the "
            "records again"
        )
    lengths = np.array([len(contexts[line["context_index"]]) for line in lines])
    room = lengths[owners][:, np.newaxis]  # [W, 1] characters
    is_inside = (spans.starts >= 0) & (spans.starts <= spans.ends) & (spans.ends <= room)
    if bad := owners[np.any((spans.scores > NO_SPAN / 2) & ~is_inside, axis=1)].tolist():
        raise BadInputError(
            f"{directory}: question {lines[bad[0]]['id']!r}: a window shows more than its context "
            "holds; write the records again"
        )


def _of_question(found: AnswerCandidates, row: int) -> tuple[Candidate, ...]:
    """The candidates of one question; a single empty candidate if it has no other."""
    count = max(int(np.sum(found.scores[row] > NO_SPAN)), 1)
    return tuple(
        Candidate(
            text=found.texts[row, place].decode("utf-8", _LONE_SURROGATES),
            start=int(found.starts[row, place]),
            end=int(found.ends[row, place]),
            score=float(found.scores[row, place]),
            probability=float(found.probabilities[row, place]),
        )
        for place in range(count)
    )
