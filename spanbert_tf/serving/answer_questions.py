"""What an exported question answerer computes: questions and passages in, answers out.

N questions, W windows of all of them, S positions of a row, K answers of a question.
"""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from spanbert_tf.data.passage_windows import WindowPacker
from spanbert_tf.data.segment_positions import SegmentPositions, pair_positions
from spanbert_tf.data.tokenization import word_piece_tokenizer
from spanbert_tf.models import SpanBertQuestionAnswerer
from spanbert_tf.question_answering.settings import AnsweringSettings
from spanbert_tf.question_answering.spans import NO_SPAN, best_spans
from spanbert_tf.serving.server_files import Manual
from spanbert_tf.serving.warmup import Request

_ROW = ("token_ids", "segment_ids", "padding_mask")
_SIGNATURES = """| signature | inputs |
| --- | --- |
| `serving_default` | `question`, `context`, string [N] |
| `token_ids` | {row}, int32 [N, S] |

`serving_default` returns the best answers of each question: `answers` (texts of the context),
`starts` and `ends` (characters of the context, the end exclusive) and `probabilities`, all
[N, top k]; `null_odds` [N]: how much more the model is for no answer than for the best one; and
`is_answerable` [N]: whether they are at most the threshold that was best on the development set.
Contexts may have any length. `token_ids` returns `start_logits` and `end_logits` [N, S]."""


class AnswerQuestions(tf.Module):
    """The graph functions of the export.

    Args:
        answerer: a model with its preprocessor.
        settings: how answers are chosen.
        top_k: answers for each question, K.
    """

    def __init__(
        self, answerer: SpanBertQuestionAnswerer, settings: AnsweringSettings, top_k: int
    ) -> None:
        super().__init__()
        self._model = answerer
        self._settings = settings
        self._top_k = top_k
        preprocessor = answerer.preprocessor
        self._segment_aware = preprocessor.segment_aware
        self._row_names = (*_ROW, *(SegmentPositions._fields if self._segment_aware else ()))
        tokenizer = preprocessor.tokenizer
        vocabulary = tokenizer.get_vocabulary()
        self._tokenizer = word_piece_tokenizer(vocabulary, lowercase=tokenizer.lowercase)
        self._pack = WindowPacker(
            tokenizer.start_token_id,
            tokenizer.end_token_id,
            tokenizer.pad_token_id,
            sequence_length=preprocessor.sequence_length,
            stride=settings.stride,
            question_first=preprocessor.question_first,
        )

    def answer(self, question: tf.Tensor, context: tf.Tensor) -> dict[str, tf.Tensor]:
        """The best answers of each question.

        Args:
            question: string [N].
            context: string [N], of any length; bytes that are no UTF-8 are replaced.

        Returns:
            `answers`, string [N, K], as they stand in the context; `starts` and `ends`, int32
            [N, K], characters of the context, the end exclusive; `probabilities`, float32 [N, K],
            among these answers; `null_odds`, float32 [N]; `is_answerable`, bool [N]. Where there
            are fewer answers, the rest is empty with probability 0.
        """
        questions, contexts = (
            tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
            for texts in (question, context)
        )
        asked, question_starts, _ = self._tokenizer.tokenize_with_offsets(questions)
        passages, byte_starts, byte_ends = self._tokenizer.tokenize_with_offsets(contexts)
        positions = None
        if self._segment_aware:
            positions = pair_positions(questions, contexts, question_starts, byte_starts)
        windows = self._pack(asked, passages, positions)
        logits = self._model(windows.features(), training=False)
        spans = best_spans(
            logits["start_logits"],
            logits["end_logits"],
            windows.passage_tokens >= 0,
            windows.has_most_context,
            max_answer_tokens=self._settings.max_answer_tokens,
            num_spans=self._top_k,
        )
        last = tf.minimum(spans.ends, tf.shape(windows.token_ids)[1] - 1)
        firsts = tf.gather(windows.passage_tokens, spans.starts, batch_dims=1)  # [W, K] tokens
        lasts = tf.gather(windows.passage_tokens, last, batch_dims=1)
        num_questions = tf.shape(question)[0]
        scores, firsts, lasts = self._best_of_all_windows(
            windows.question_index, spans.scores, firsts, lasts, num_questions
        )
        null_scores = tf.math.unsorted_segment_min(
            spans.null_scores, windows.question_index, num_questions
        )  # [N]
        is_answer = scores > NO_SPAN / 2  # [N, K]
        starts = _gather_tokens(byte_starts, tf.where(is_answer, firsts, 0), is_answer)
        ends = _gather_tokens(byte_ends, tf.where(is_answer, lasts, 0), is_answer)
        return {**self._texts(contexts, starts, ends), **self._odds(scores, null_scores)}

    def logits_of_rows(self, *row: tf.Tensor) -> dict[str, tf.Tensor]:
        """`start_logits` and `end_logits`, float32 [N, S], of rows that are packed already.

        Args:
            *row: `token_ids`, `segment_ids`, `padding_mask` and, for a model that reads SegaBERT's
                positions, `paragraph_indices`, `sentence_indices`, `token_indices`; int32 [N, S].
        """
        return self._model(dict(zip(self._row_names, row, strict=True)), training=False)

    def signatures(self) -> dict[str, tuple[Callable, list[tf.TensorSpec]]]:
        """The export's signatures: name → function and its inputs."""
        texts = [tf.TensorSpec([None], tf.string, name=name) for name in ("question", "context")]
        packed = [tf.TensorSpec([None, None], tf.int32, name=name) for name in self._row_names]
        return {
            "serving_default": (self.answer, texts),
            "token_ids": (self.logits_of_rows, packed),
        }

    def warmup_requests(self) -> list[Request]:
        """Requests for each signature, short and long, single and in batches."""
        requests = []
        for batch_size in (1, 8):
            for context in ("Ann has the cat. Bob has the owl.", "", "Ann has the cat. " * 300):
                texts = {"question": "Who has the owl?", "context": context}
                inputs = {name: np.full([batch_size], text) for name, text in texts.items()}
                requests.append(("serving_default", inputs))
            rows = np.ones([batch_size, 16], "int32")
            requests.append(("token_ids", dict.fromkeys(self._row_names, rows)))
        return requests

    def manual(self) -> Manual:
        """What the export's README says."""
        return Manual(
            description="An extractive question answerer: a question and a context in, the parts "
            "of the context\nthat answer it out.",
            inputs={
                "question": ["Who has the owl?"],
                "context": ["Ann has the cat. Bob has the owl."],
            },
            output="answers",
            output_shape="[questions, top k]",
            signatures=_SIGNATURES.format(row=", ".join(f"`{name}`" for name in self._row_names)),
        )

    def _best_of_all_windows(
        self,
        index: tf.Tensor,
        scores: tf.Tensor,
        firsts: tf.Tensor,
        lasts: tf.Tensor,
        num_questions: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """From the best spans of windows [W, K] to those of questions [N, K]."""

        def by_question(values: tf.Tensor, padding: float) -> tf.Tensor:
            rows = tf.RaggedTensor.from_value_rowids(values, index, num_questions)
            dense = rows.to_tensor(padding)  # [N, most windows, K]
            most_windows = tf.maximum(tf.shape(dense)[1], 1)  # there may be no question
            return tf.reshape(dense, [num_questions, most_windows * self._top_k])

        best, which = tf.math.top_k(by_question(scores, NO_SPAN), self._top_k)
        firsts, lasts = (
            tf.gather(by_question(values, -1), which, batch_dims=1) for values in (firsts, lasts)
        )
        return best, firsts, lasts

    def _texts(
        self, contexts: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Texts and characters of pieces that are given in bytes, [N, K]."""
        repeated = tf.repeat(contexts[:, tf.newaxis], self._top_k, axis=1)
        answers = tf.strings.substr(repeated, starts, ends - starts)

        def in_characters(places: tf.Tensor) -> tf.Tensor:
            before = tf.strings.substr(repeated, tf.zeros_like(places), places)
            return tf.strings.length(before, unit="UTF8_CHAR")

        return {"answers": answers, "starts": in_characters(starts), "ends": in_characters(ends)}

    def _odds(self, scores: tf.Tensor, null_scores: tf.Tensor) -> dict[str, tf.Tensor]:
        is_answer = scores > NO_SPAN / 2
        weights = tf.exp(tf.where(is_answer, scores - scores[:, :1], NO_SPAN))
        total = tf.maximum(tf.reduce_sum(weights, axis=1, keepdims=True), 1e-30)
        null_odds = null_scores - scores[:, 0]
        threshold = self._settings.null_threshold if self._settings.has_unanswerable else np.inf
        return {
            "probabilities": weights / total,
            "null_odds": null_odds,
            "is_answerable": is_answer[:, 0] & (null_odds <= threshold),
        }


def _gather_tokens(values: tf.RaggedTensor, tokens: tf.Tensor, is_answer: tf.Tensor) -> tf.Tensor:
    """Values of tokens [N, K] of each row; 0 where there is no answer."""
    starts = tf.cast(values.row_starts(), tf.int32)[:, tf.newaxis]
    flat = tf.concat([values.flat_values, [0]], axis=0)  # never empty
    places = tf.minimum(starts + tokens, tf.size(flat) - 1)
    return tf.where(is_answer, tf.cast(tf.gather(flat, places), tf.int32), 0)
