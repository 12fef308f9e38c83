"""Answers in words: the best spans of all windows of each question, put together."""

import dataclasses

import keras
import numpy as np
import tensorflow as tf

from spanbert_tf.data.question_answering import load_contexts, load_questions
from spanbert_tf.question_answering.spans import NO_SPAN, best_spans

_SPANS_OF_A_WINDOW = 20  # as in the original code for SQuAD


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A possible answer.

    Attributes:
        text: of the context, with its case, spaces and accents.
        start: its first character in the context.
        end: the character behind it.
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
    """What a model says to a question.

    Attributes:
        id: of the question.
        candidates: best first; each text once.
        null_score: of no answer, the lowest of all windows; more than the best candidate's score
            speaks for no answer.
    """

    id: str
    candidates: tuple[Candidate, ...]
    null_score: float

    @property
    def null_odds(self) -> float:
        """How much better no answer is than the best one."""
        return self.null_score - self.candidates[0].score


def answer_questions(
    model: keras.Model,
    dataset: tf.data.Dataset,
    directory: str,
    *,
    max_answer_tokens: int = 30,
    num_candidates: int = 20,
) -> list[AnsweredQuestion]:
    """Answers all questions of a directory.

    Args:
        model: a `SpanBertQuestionAnswerer`.
        dataset: of `question_answering_dataset`, not for training.
        directory: what the data set was read from.
        max_answer_tokens: longest answer.
        num_candidates: for each question.

    Returns:
        In the order of `questions.jsonl`.
    """

    @tf.function(reduce_retracing=True)
    def spans_of(x: dict) -> tuple:
        logits = model(x, training=False)
        is_passage = x["offset_ends"] > 0
        spans = best_spans(
            logits["start_logits"],
            logits["end_logits"],
            is_passage,
            x["has_most_context"] > 0,
            max_answer_tokens=max_answer_tokens,
            num_spans=_SPANS_OF_A_WINDOW,
        )
        starts = tf.gather(x["offset_starts"], spans.starts, batch_dims=1)  # [B, K] characters
        # An invalid span may end behind the row.
        last = tf.minimum(spans.ends, tf.shape(is_passage)[1] - 1)
        ends = tf.gather(x["offset_ends"], last, batch_dims=1)
        return x["question_index"], spans.scores, starts, ends, spans.null_scores

    parts = [[value.numpy() for value in spans_of(x)] for x, _ in dataset]
    questions, scores, starts, ends, null_scores = map(np.concatenate, zip(*parts, strict=True))
    lines, contexts = load_questions(directory), load_contexts(directory)
    lowest = np.full(len(lines), np.inf)
    np.minimum.at(lowest, questions, null_scores)
    # All spans of a question side by side, the best first.
    owners = np.repeat(questions, scores.shape[1])
    flat_scores, flat_starts, flat_ends = (values.ravel() for values in (scores, starts, ends))
    order = np.lexsort((flat_ends, flat_starts, -flat_scores, owners))
    bounds = np.searchsorted(owners[order], np.arange(len(lines) + 1))
    answered = []
    for number, line in enumerate(lines):
        chosen = order[bounds[number] : bounds[number + 1]]
        spans = zip(flat_scores[chosen], flat_starts[chosen], flat_ends[chosen], strict=True)
        context = contexts[line["context_index"]]
        candidates = _candidates(context, spans, num_candidates)
        answered.append(AnsweredQuestion(line["id"], candidates, float(lowest[number])))
    return answered


def _candidates(context: str, spans: zip, num_candidates: int) -> tuple[Candidate, ...]:
    """The best spans with different texts, and their softmax."""
    unique: dict[str, tuple[float, int, int]] = {}
    for score, start, end in spans:
        if len(unique) == num_candidates or score <= NO_SPAN / 2:
            break
        unique.setdefault(context[start:end], (float(score), int(start), int(end)))
    scores = np.array([score for score, _, _ in unique.values()])
    weights = np.exp(scores - scores.max())
    return tuple(
        Candidate(text, start, end, score, float(weight))
        for (text, (score, start, end)), weight in zip(
            unique.items(), weights / weights.sum(), strict=True
        )
    )
