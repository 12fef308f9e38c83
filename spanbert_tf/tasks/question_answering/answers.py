"""The answers to the questions of records, from the best spans of their windows or by a baseline.

Dimensions: W windows, K spans of a window, S positions of a row.
"""

import dataclasses
import difflib
import re
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from spanbert_tf.data.records import Records
from spanbert_tf.errors import BadInputError
from spanbert_tf.tasks.question_answering.graph import (
    NO_SPAN,
    SPANS_OF_A_WINDOW,
    AnswerCandidates,
    WindowSpans,
    best_candidates,
    best_spans,
)
from spanbert_tf.tasks.question_answering.records import CONTEXTS_FILE, QUESTIONS_FILE

_QUESTIONS_AT_ONCE = 64
_LONE_SURROGATES = "surrogatepass"  # JSON may contain them
_ANSWER_WORDS = 8  # the best of 1, 2, 3, 5 and 8 on SquadShifts' new Wikipedia questions
_WORD = re.compile(r"\w+")


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A possible answer."""

    text: str  # part of the context, with its case, spaces and accents
    start: int  # its first character in the context
    end: int  # the character after its last one
    score: float  # start logit plus end logit
    probability: float  # among the candidates of its question


@dataclasses.dataclass(frozen=True)
class AnsweredQuestion:
    """The possible answers to a question."""

    id: str  # of the question
    candidates: tuple[Candidate, ...]  # best first, each text once; an empty one without tokens
    null_score: float  # of no answer, the lowest of all windows

    @property
    def null_odds(self) -> float:
        """The score of no answer less that of the best answer, in float32 as in the export."""
        return float(np.float32(self.null_score) - np.float32(self.candidates[0].score))

    def text_under(self, null_threshold: float) -> str:
        """Returns the best answer, or an empty text if the null odds are above the threshold."""
        return "" if self.null_odds > null_threshold else self.candidates[0].text


def spans_of_windows(
    x: dict[str, tf.Tensor], outputs: dict[str, tf.Tensor], max_answer_tokens: int
) -> WindowSpans:
    """Finds the best spans of a batch of windows, in characters, by the model's logits [W, S]."""
    is_passage = x["offset_ends"] > 0
    spans = best_spans(
        outputs["start_logits"],
        outputs["end_logits"],
        is_passage,
        x["has_most_context"] > 0,
        max_answer_tokens=max_answer_tokens,
        num_spans=SPANS_OF_A_WINDOW,
    )
    starts = tf.gather(x["offset_starts"], spans.starts, batch_dims=1)  # [W, K] characters
    # An invalid span may end beyond the row.
    last = tf.minimum(spans.ends, tf.shape(is_passage)[1] - 1)
    ends = tf.gather(x["offset_ends"], last, batch_dims=1)
    return WindowSpans(x["question_index"], spans.scores, starts, ends, spans.null_scores)


def answer_questions(
    records: Records, windows: Sequence[WindowSpans], num_candidates: int
) -> list[AnsweredQuestion]:
    """Returns the answers to all questions, in the order of `questions.jsonl`.

    Args:
        records: the records.
        windows: the best spans of each window, as arrays.
        num_candidates: number of possible answers of a question that are kept.
    """
    columns = [np.stack(values) for values in zip(*windows, strict=True)]
    spans = WindowSpans(*columns)
    order = np.argsort(spans.question_index, kind="stable")
    spans = WindowSpans(*[values[order] for values in spans])
    lines = records.lines(QUESTIONS_FILE)
    contexts = records.lines(CONTEXTS_FILE)
    _check_places(records, spans, lines, contexts)

    @tf.function(reduce_retracing=True)
    def candidates_of(texts: tf.Tensor, spans: WindowSpans) -> AnswerCandidates:
        return best_candidates(texts, spans, num_candidates=num_candidates, unit="UTF8_CHAR")

    answered = []
    for first in range(0, len(lines), _QUESTIONS_AT_ONCE):
        batch = lines[first : first + _QUESTIONS_AT_ONCE]
        begin, end = np.searchsorted(spans.question_index, [first, first + len(batch)])
        part = WindowSpans(*[tf.constant(values[begin:end]) for values in spans])
        part = part._replace(question_index=part.question_index - first)
        texts = [
            contexts[line["context_index"]].encode("utf-8", _LONE_SURROGATES) for line in batch
        ]
        tensors = candidates_of(tf.constant(texts), part)
        found = AnswerCandidates(*[values.numpy() for values in tensors])
        for row, line in enumerate(batch):
            null_score = float(found.null_scores[row])
            answered.append(AnsweredQuestion(line["id"], _candidates(found, row), null_score))
    return answered


def _check_places(
    records: Records, spans: WindowSpans, lines: list[dict], contexts: list[str]
) -> None:
    """Raises `BadInputError` if questions, windows and passages do not fit each other.

    Checksums show that no file has changed; they do not show that the files fit each other.
    """
    outside = [line for line in lines if line["context_index"] >= len(contexts)]
    owners = spans.question_index
    if outside or not np.array_equal(np.unique(owners), np.arange(len(lines))):
        raise BadInputError(
            f"{records}: its questions are not those of its windows and contexts; write the "
            "records again"
        )
    lengths = np.array([len(contexts[line["context_index"]]) for line in lines])
    room = lengths[owners][:, np.newaxis]  # [W, 1] characters
    is_inside = (spans.starts >= 0) & (spans.starts <= spans.ends) & (spans.ends <= room)
    is_valid = spans.scores > NO_SPAN / 2
    bad = owners[np.any(is_valid & ~is_inside, axis=1)].tolist()
    if bad:
        raise BadInputError(
            f"{records}: question {lines[bad[0]]['id']!r}: a window shows more than its context "
            "holds; write the records again"
        )


def _candidates(found: AnswerCandidates, row: int) -> tuple[Candidate, ...]:
    """Returns the candidates of one question; a single empty candidate if it has no other."""
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


def answer_by_overlap(records: Records) -> list[AnsweredQuestion]:
    """Answers with the eight words after the longest n-gram that passage and question share.

    If the passage ends there, the words before it. Case does not matter; the first of several
    n-grams of that length counts. No question counts as unanswerable.
    """
    contexts = records.lines(CONTEXTS_FILE)
    answered = []
    for line in records.lines(QUESTIONS_FILE):
        context = contexts[line["context_index"]]
        start, end = _window(line["question"], context)
        candidate = Candidate(context[start:end], start, end, score=0.0, probability=1.0)
        answered.append(AnsweredQuestion(line["id"], (candidate,), null_score=-1.0))
    return answered


def _window(question: str, context: str) -> tuple[int, int]:
    """Returns the characters of the answer; (0, 0) for a passage without words."""
    words = list(_WORD.finditer(context))
    passage = [word.group().lower() for word in words]
    asked = [word.group().lower() for word in _WORD.finditer(question)]
    shared = difflib.SequenceMatcher(None, passage, asked, autojunk=False).find_longest_match()
    after = shared.a + shared.size
    chosen = words[after : after + _ANSWER_WORDS]
    chosen = chosen or words[max(shared.a - _ANSWER_WORDS, 0) : shared.a] or words[-1:]
    return (chosen[0].start(), chosen[-1].end()) if chosen else (0, 0)
