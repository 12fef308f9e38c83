"""From questions and passages to answers, in a graph: predictions, the export and the predictor.

The best spans of each window, exact, over all pairs of positions at once; of them the answers of
questions, by one rule for records and texts.

N questions, W windows of all of them, S positions of a row, L tokens of an answer at most, K spans
of a window, C candidates of a question.
"""

from typing import NamedTuple

import keras_hub
import numpy as np
import tensorflow as tf

from spanbert_tf.data.windows import WindowPacker, Windows
from spanbert_tf.serving.exporting import Signatures
from spanbert_tf.tasks.graphs import (
    map_row_chunks,
    no_sentences,
    sentence_specs,
    text_specs,
)
from spanbert_tf.tasks.question_answering.records import MAX_QUESTION_TOKENS
from spanbert_tf.text.positions import (
    SegmentPositions,
    as_line,
    given_sentences,
    pair_positions,
)
from spanbert_tf.text.tokenization import WordPieceTokenizer, characters_before, clean_texts

NO_SPAN = -1e30  # score that marks an invalid span
SPANS_OF_A_WINDOW = 20  # as in the original code for SQuAD
_SPANS_OF_A_CANDIDATE = 8  # spans considered for each candidate, since texts recur
_BYTES_AT_ONCE = 1 << 24  # of contexts that are copied
_SPAN_DTYPES = (tf.int32, tf.float32, tf.int32, tf.int32, tf.float32)  # of `WindowSpans`


class Spans(NamedTuple):
    """The best spans of each row, best first; ends are inclusive."""

    scores: tf.Tensor  # float32 [W, K], both logits; `NO_SPAN` or less: there are fewer
    starts: tf.Tensor  # int32 [W, K], positions in the row
    ends: tf.Tensor  # int32 [W, K]; may exceed the row where there is no span
    null_scores: tf.Tensor  # float32 [W], of no answer: both logits of [CLS]


def best_spans(
    start_logits: tf.Tensor,
    end_logits: tf.Tensor,
    is_passage: tf.Tensor,
    can_start: tf.Tensor,
    *,
    max_answer_tokens: int,
    num_spans: int,
) -> Spans:
    """Finds the best spans of passage tokens up to a length, by the sum of their two logits.

    Args:
        start_logits: float32 [W, S].
        end_logits: float32 [W, S].
        is_passage: whether an answer may contain a position, bool [W, S].
        can_start: whether an answer may begin at a position, bool [W, S].
        max_answer_tokens: L; at most S.
        num_spans: K.
    """
    length = tf.shape(start_logits)[1]
    starts = tf.where(can_start & is_passage, start_logits, NO_SPAN)
    ends = tf.where(is_passage, end_logits, NO_SPAN)
    longest = tf.minimum(max_answer_tokens, length)
    padded = tf.pad(ends, [[0, 0], [0, longest - 1]], constant_values=NO_SPAN)
    positions = tf.range(length)[:, None] + tf.range(longest)[None]  # [S, L]
    scores = starts[:, :, None] + tf.gather(padded, positions, axis=1)  # [W, S, L]
    flat = tf.reshape(scores, [-1, length * longest])
    # `top_k` needs at least K spans, which short rows may not have.
    flat = tf.pad(flat, [[0, 0], [0, num_spans]], constant_values=2 * NO_SPAN)
    best, indices = tf.math.top_k(flat, num_spans)  # [W, K]
    best_starts = tf.minimum(indices // longest, length - 1)
    best_ends = best_starts + indices % longest
    null_scores = start_logits[:, 0] + end_logits[:, 0]
    return Spans(best, best_starts, best_ends, null_scores)


class WindowSpans(NamedTuple):
    """The best spans of each window, in its passage; ends are exclusive."""

    question_index: tf.Tensor  # int32 [W]
    scores: tf.Tensor  # float32 [W, K]; `NO_SPAN` or less marks an invalid span
    starts: tf.Tensor  # int32 [W, K], bytes or characters of the passage
    ends: tf.Tensor  # int32 [W, K]
    null_scores: tf.Tensor  # float32 [W], of no answer


class AnswerCandidates(NamedTuple):
    """The possible answers of each question, best first, each text once; ends are exclusive."""

    scores: tf.Tensor  # float32 [N, C], both logits; `NO_SPAN` where there are fewer
    probabilities: tf.Tensor  # float32 [N, C], among these; 0 where there are fewer
    texts: tf.Tensor  # string [N, C]
    starts: tf.Tensor  # int32 [N, C], in the unit of the spans
    ends: tf.Tensor  # int32 [N, C]
    null_scores: tf.Tensor  # float32 [N], the lowest of all windows
    null_odds: tf.Tensor  # float32 [N], how much better no answer is than the best one


def best_candidates(
    contexts: tf.Tensor, spans: WindowSpans, *, num_candidates: int, unit: str
) -> AnswerCandidates:
    """Finds the best spans of each question over all of its windows; each text counts once.

    Of spans with the same score the first one is better, then the shorter one.

    Args:
        contexts: string [N].
        spans: the best spans of all windows.
        num_candidates: C.
        unit: unit of starts and ends, `"BYTE"` or `"UTF8_CHAR"`.
    """
    num_questions = tf.shape(contexts)[0]
    spans_of_window = tf.shape(spans.scores)[1]
    scores = tf.reshape(spans.scores, [-1])  # [W K], as the next two
    starts = tf.reshape(spans.starts, [-1])
    ends = tf.reshape(spans.ends, [-1])
    owners = tf.repeat(spans.question_index, spans_of_window)
    ranked = _ranked(owners, scores, starts, ends)
    # Indices of spans, ragged [N, spans of the question].
    chosen = tf.RaggedTensor.from_value_rowids(ranked, tf.gather(owners, ranked), num_questions)
    chosen = chosen[:, : _SPANS_OF_A_CANDIDATE * num_candidates]
    indices = chosen.values
    rows = chosen.value_rowids()
    first = tf.gather(starts, indices)
    end = tf.gather(ends, indices)
    texts = _cut(contexts, rows, first, end, unit)
    places = chosen.with_values(tf.range(tf.size(indices)))
    is_new = chosen.with_values(_is_new(rows, texts))
    kept = tf.ragged.boolean_mask(places, is_new)[:, :num_candidates]

    def dense(values: tf.Tensor, padding: float | int | str) -> tf.Tensor:
        found = kept.with_values(tf.gather(values, kept.values))
        return found.to_tensor(padding, shape=[None, num_candidates])  # [N, C]

    best_scores = dense(tf.gather(scores, indices), NO_SPAN)
    probabilities = tf.where(best_scores > NO_SPAN, tf.nn.softmax(best_scores), 0.0)
    null_scores = tf.math.unsorted_segment_min(
        spans.null_scores, spans.question_index, num_questions
    )
    return AnswerCandidates(
        best_scores,
        probabilities,
        dense(texts, ""),
        dense(first, 0),
        dense(end, 0),
        null_scores,
        null_scores - best_scores[:, 0],
    )


def _cut(
    contexts: tf.Tensor, rows: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor, unit: str
) -> tf.Tensor:
    """Returns the texts of spans, string [spans].

    Each span needs a copy of its context for a moment, so long contexts are cut in turns.

    Args:
        contexts: string [N].
        rows: index of the context of each span, [spans].
        starts: start of each span, int32 [spans].
        ends: end of each span, int32 [spans].
        unit: unit of starts and ends.
    """
    longest = tf.reduce_max(tf.concat([tf.strings.length(contexts), [1]], axis=0))

    def cut(spans: tuple[tf.Tensor, tf.Tensor, tf.Tensor]) -> tf.Tensor:
        row, start, end = spans
        return tf.strings.substr(tf.gather(contexts, row), start, end - start, unit=unit)

    at_once = tf.maximum(_BYTES_AT_ONCE // longest, 1)
    return map_row_chunks(cut, (rows, starts, ends), tf.string, at_once)


def _ranked(owners: tf.Tensor, scores: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor) -> tf.Tensor:
    """Returns the indices of the valid spans, sorted by question, score, start and end."""
    order = tf.where(scores > NO_SPAN / 2)[:, 0]
    for key in (ends, starts, -scores, owners):  # the last one counts most
        order = tf.gather(order, tf.argsort(tf.gather(key, order), stable=True))
    return order


def _is_new(rows: tf.Tensor, texts: tf.Tensor) -> tf.Tensor:
    """Whether no earlier text of the same question equals this one, bool."""
    _, text_ids = tf.unique(tf.strings.join([tf.strings.as_string(rows), texts], separator=" "))
    places = tf.range(tf.size(text_ids))
    first = tf.math.unsorted_segment_min(places, text_ids, tf.size(text_ids))
    return tf.equal(places, tf.gather(first, text_ids))


class AnswerQuestions(tf.Module):
    """The graph functions of the export.

    Args:
        answerer: a `SpanBertQuestionAnswerer` with its preprocessor.
        top_k: number of answers to each question.
    """

    def __init__(self, answerer: keras_hub.models.Task, top_k: int) -> None:
        super().__init__()
        self._model = answerer
        self._top_k = top_k
        preprocessor = answerer.preprocessor
        self._segment_aware = preprocessor.segment_aware
        tokenizer = preprocessor.tokenizer
        self._language = tokenizer.text_rules.language
        vocabulary = tokenizer.get_vocabulary()
        self._tokenizer = WordPieceTokenizer.shared(vocabulary, tokenizer.text_rules)
        self._packer = WindowPacker(
            tokenizer.start_token_id,
            tokenizer.end_token_id,
            tokenizer.pad_token_id,
            sequence_length=preprocessor.sequence_length,
            stride=answerer.stride,
            max_question_tokens=MAX_QUESTION_TOKENS,
            question_first=preprocessor.question_first,
        )

    def signatures(self) -> Signatures:
        """Returns a signature of texts, and for SegaBERT one of texts and their sentences."""
        texts = text_specs("question", "context")
        signatures: Signatures = {
            "serving_default": (lambda question, context: self.answer(question, context), texts)
        }
        if self._segment_aware:
            sentences = sentence_specs("question_sentence_starts", "context_sentence_starts")
            signatures["sentences"] = (self.answer, [*texts, *sentences])
        return signatures

    def answer(
        self,
        question: tf.Tensor,
        context: tf.Tensor,
        question_sentence_starts: tf.Tensor | None = None,
        context_sentence_starts: tf.Tensor | None = None,
    ) -> dict[str, tf.Tensor]:
        """Finds the best answers to each question.

        Args:
            question: string [N]; a line end in it is a space.
            context: string [N], of any length; bytes that are not UTF-8 are replaced.
            question_sentence_starts: int32 [N, sentences], see `given_sentences`.
            context_sentence_starts: the same of the contexts.

        Returns:
            `answers`, string [N, top k], parts of the context; `starts` and `ends`, int32
            [N, top k], characters of the context, the end exclusive; `probabilities`, float32
            [N, top k], among the model's `num_candidates` best answers; `null_odds`, float32 [N];
            `is_answerable`, bool [N]. If there are fewer answers, the others are empty and have
            probability 0.
        """
        questions = clean_texts(question)
        contexts = clean_texts(context)
        asked, question_starts, _ = self._tokenizer.tokenize_with_offsets(questions)
        passages, byte_starts, byte_ends = self._tokenizer.tokenize_with_offsets(contexts)
        positions: tuple[SegmentPositions, SegmentPositions] | None = None
        if self._segment_aware:
            lines = as_line(questions)
            positions = pair_positions(
                lines,
                contexts,
                question_starts,
                byte_starts,
                self._sentences(lines, question_sentence_starts),
                self._sentences(contexts, context_sentence_starts),
            )
        planned = self._packer.plan(asked, passages, positions)

        # Computed once for all chunks, since it takes time in proportion to the passages.
        places = _BytesOfTokens(
            byte_starts.row_starts(), _never_empty(byte_starts), _never_empty(byte_ends)
        )

        def spans_of(indices: tf.Tensor) -> WindowSpans:
            return self._spans_of(planned.pack(indices), places)

        # Each chunk packs its own rows: all rows together are many times as large as a passage.
        spans = map_row_chunks(spans_of, tf.range(planned.num_windows), WindowSpans(*_SPAN_DTYPES))
        found = best_candidates(
            contexts,
            spans,
            num_candidates=self._model.num_candidates,
            unit="BYTE",
        )
        probabilities = self._cut(found.probabilities)
        threshold = self._model.null_threshold if self._model.has_unanswerable else np.inf
        return {
            "answers": self._cut(found.texts),
            "starts": self._in_characters(contexts, self._cut(found.starts)),
            "ends": self._in_characters(contexts, self._cut(found.ends)),
            "probabilities": probabilities,
            "null_odds": found.null_odds,
            "is_answerable": (probabilities[:, 0] > 0) & (found.null_odds <= threshold),
        }

    def _sentences(self, texts: tf.Tensor, starts: tf.Tensor | None) -> tf.RaggedTensor:
        """Returns the byte where each sentence begins, ragged int64 [N, sentences]."""
        if starts is None:
            starts = no_sentences(texts)
        return given_sentences(texts, starts, self._language)

    def _spans_of(self, windows: Windows, places: "_BytesOfTokens") -> WindowSpans:
        """Finds the best spans of windows, in bytes of their passages."""
        logits = self._model(windows.features(), training=False)
        spans = best_spans(
            logits["start_logits"],
            logits["end_logits"],
            windows.passage_tokens >= 0,
            windows.has_most_context,
            max_answer_tokens=self._model.max_answer_tokens,
            num_spans=SPANS_OF_A_WINDOW,
        )
        last = tf.minimum(spans.ends, tf.shape(windows.token_ids)[1] - 1)
        firsts = tf.gather(windows.passage_tokens, spans.starts, batch_dims=1)  # [W, K] tokens
        lasts = tf.gather(windows.passage_tokens, last, batch_dims=1)
        return WindowSpans(
            windows.question_index,
            spans.scores,
            places.of(places.starts, windows.question_index, firsts),
            places.of(places.ends, windows.question_index, lasts),
            spans.null_scores,
        )

    def _cut(self, values: tf.Tensor) -> tf.Tensor:
        """Cuts or pads values of candidates [N, C] to those of answers [N, top k]."""
        missing = max(self._top_k - self._model.num_candidates, 0)
        padding = tf.zeros([tf.shape(values)[0], missing], values.dtype)
        return tf.concat([values[:, : self._top_k], padding], axis=1)

    def _in_characters(self, contexts: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
        """Converts places in contexts, int32 [N, top k], from bytes to characters."""
        rows = tf.repeat(tf.range(tf.size(contexts)), self._top_k)
        characters = characters_before(contexts, tf.reshape(places, [-1]), rows)
        return tf.reshape(characters, tf.shape(places))


class _BytesOfTokens(NamedTuple):
    """The places of the tokens of all passages: first bytes and ends, int64 [tokens + 1] each."""

    row_starts: tf.Tensor  # [N]
    starts: tf.Tensor
    ends: tf.Tensor

    def of(self, values: tf.Tensor, rows: tf.Tensor, tokens: tf.Tensor) -> tf.Tensor:
        """Returns the values of tokens as int32 [W, K]; any value if there is no such token.

        Args:
            values: `starts` or `ends`.
            rows: index of the passage of each window, int32 [W].
            tokens: indices of tokens in the passage, int32 [W, K].
        """
        first = tf.cast(tf.gather(self.row_starts, rows), tf.int32)[:, tf.newaxis]
        places = tf.clip_by_value(first + tokens, 0, tf.size(values) - 1)
        return tf.cast(tf.gather(values, places), tf.int32)


def _never_empty(values: tf.RaggedTensor) -> tf.Tensor:
    """Returns the values of all rows, followed by a 0."""
    return tf.concat([values.flat_values, [0]], axis=0)
