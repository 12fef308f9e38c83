"""What an exported question answerer computes: questions and passages in, answers out.

N questions, W windows of all of them, S positions of a row, K spans of a window.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from spanbert_tf.data.windows import WindowPacker, Windows
from spanbert_tf.models import SpanBertQuestionAnswerer
from spanbert_tf.serving.exporting import ServedModule
from spanbert_tf.serving.server_files import Manual
from spanbert_tf.serving.text_function import map_row_chunks
from spanbert_tf.tasks.question_answering.candidates import (
    SPANS_OF_A_WINDOW,
    WindowSpans,
    best_candidates,
)
from spanbert_tf.tasks.question_answering.spans import best_spans
from spanbert_tf.text.positions import SegmentPositions, pair_positions
from spanbert_tf.text.tokenization import WordPieceTokenizer, characters_before

_ROW = ("token_ids", "segment_ids", "padding_mask")
_SPAN_DTYPES = WindowSpans(tf.int32, tf.float32, tf.int32, tf.int32, tf.float32)
_SIGNATURES = """| signature | inputs |
| --- | --- |
| `serving_default` | `question`, `context`, string [N] |
| `token_ids` | {row}, int32 [N, S] |

`serving_default` returns the best answers of each question: `answers` (texts of the context),
`starts` and `ends` (characters of the context, the end exclusive) and `probabilities` (among the
{num_candidates} best answers, as `predict` has them), all [N, top k]; `null_odds` [N]: how much
more the model is for no answer than for the best one; and `is_answerable` [N]: whether they are at
most the threshold that was best on the development set. Contexts may have any length. `token_ids`
returns `start_logits` and `end_logits` [N, S]."""


class AnswerQuestions(tf.Module, ServedModule):
    """The graph functions of the export.

    Args:
        answerer: the model, with its preprocessor.
        top_k: answers for each question.
    """

    def __init__(self, answerer: SpanBertQuestionAnswerer, top_k: int) -> None:
        super().__init__()
        self._model = answerer
        self._top_k = top_k
        preprocessor = answerer.preprocessor
        self._segment_aware = preprocessor.segment_aware
        self._row_names = (*_ROW, *(SegmentPositions._fields if self._segment_aware else ()))
        tokenizer = preprocessor.tokenizer
        vocabulary = tokenizer.get_vocabulary()
        self._tokenizer = WordPieceTokenizer.shared(vocabulary, tokenizer.casing)
        self._packer = WindowPacker(
            tokenizer.start_token_id,
            tokenizer.end_token_id,
            tokenizer.pad_token_id,
            sequence_length=preprocessor.sequence_length,
            stride=answerer.stride,
            question_first=preprocessor.question_first,
        )

    def answer(self, question: tf.Tensor, context: tf.Tensor) -> dict[str, tf.Tensor]:
        """The best answers of each question.

        Args:
            question: string [N].
            context: string [N], of any length; bytes that are not UTF-8 are replaced.

        Returns:
            `answers`, string [N, top k], as they stand in the context; `starts` and `ends`, int32
            [N, top k], characters of the context, the end exclusive; `probabilities`, float32
            [N, top k], among the model's `num_candidates` best answers; `null_odds`, float32 [N];
            `is_answerable`, bool [N]. Where there are fewer answers, the rest is empty with
            probability 0.
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
        planned = self._packer.plan(asked, passages, positions)

        # Outside of what is repeated, since each takes the length of the passage.
        places = _BytesOfTokens(
            byte_starts.row_starts(), *map(_never_empty, (byte_starts, byte_ends))
        )

        def spans_of(numbers: tf.Tensor) -> WindowSpans:
            return self._spans_of(planned.pack(numbers), places)

        # Rows are packed as their turn comes: all of them are many times a long passage.
        spans = map_row_chunks(spans_of, tf.range(planned.num_windows), _SPAN_DTYPES)
        found = best_candidates(
            contexts,
            spans,
            num_candidates=self._model.num_candidates,
            unit="BYTE",
        )
        texts, starts, ends, probabilities = (
            self._cut(values)
            for values in (found.texts, found.starts, found.ends, found.probabilities)
        )
        threshold = self._model.null_threshold if self._model.has_unanswerable else np.inf
        return {
            "answers": texts,
            "starts": self._in_characters(contexts, starts),
            "ends": self._in_characters(contexts, ends),
            "probabilities": probabilities,
            "null_odds": found.null_odds,
            "is_answerable": (probabilities[:, 0] > 0) & (found.null_odds <= threshold),
        }

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
            signatures=_SIGNATURES.format(
                row=", ".join(f"`{name}`" for name in self._row_names),
                num_candidates=self._model.num_candidates,
            ),
        )

    def _spans_of(self, windows: Windows, places: "_BytesOfTokens") -> WindowSpans:
        """The best spans of windows, in bytes of their passages."""
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
        """From the candidates [N, C] to the answers [N, top k]."""
        missing = max(self._top_k - self._model.num_candidates, 0)
        padding = tf.zeros([tf.shape(values)[0], missing], values.dtype)
        return tf.concat([values[:, : self._top_k], padding], axis=1)

    def _in_characters(self, contexts: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
        """Places in contexts, in bytes, int32 [N, top k], in characters."""
        rows = tf.repeat(tf.range(tf.size(contexts)), self._top_k)
        characters = characters_before(contexts, tf.reshape(places, [-1]), rows)
        return tf.reshape(characters, tf.shape(places))


class _BytesOfTokens(NamedTuple):
    """Where the tokens of all passages stand: first bytes and ends, int64 [tokens + 1] each."""

    row_starts: tf.Tensor  # [N]
    starts: tf.Tensor
    ends: tf.Tensor

    def of(self, values: tf.Tensor, rows: tf.Tensor, tokens: tf.Tensor) -> tf.Tensor:
        """Values of tokens [C, K] of rows [C], int32; any value where there is no token."""
        first = tf.cast(tf.gather(self.row_starts, rows), tf.int32)[:, tf.newaxis]
        places = tf.clip_by_value(first + tokens, 0, tf.size(values) - 1)
        return tf.cast(tf.gather(values, places), tf.int32)


def _never_empty(values: tf.RaggedTensor) -> tf.Tensor:
    return tf.concat([values.flat_values, [0]], axis=0)
