"""Packs questions and passages for `SpanBertQuestionAnswerer`.

Shapes: B rows, S positions.
"""

import keras
import keras_hub
import numpy as np
import tensorflow as tf

from spanbert_tf.data.windows import WindowPacker
from spanbert_tf.models.preprocessing import RowPreprocessor, flat_texts, is_one_text, of_one_text
from spanbert_tf.models.span_bert_backbone import SpanBertBackbone
from spanbert_tf.models.span_bert_tokenizer import SpanBertTokenizer
from spanbert_tf.text.positions import as_line, find_sentences, pair_positions
from spanbert_tf.text.tokenization import WordPieceTokenizer

_NONE = -1  # for an answer without tokens, or one that is not found


@keras.saving.register_keras_serializable(package="spanbert_tf")
class SpanBertQuestionAnswererPreprocessor(RowPreprocessor, keras_hub.models.Preprocessor):
    """Packs one row for each question: `[CLS] passage [SEP] question [SEP]` (SpanBERT, 4.1).

    A passage that does not fit is truncated. For long passages write records with
    `spanbert-tf prepare squad`, which uses sliding windows.

    Args:
        tokenizer: a `SpanBertTokenizer`.
        sequence_length: int. Number of positions of a row; by default of `from_preset` that of the
            preset's preprocessor, or the maximum of its encoder.
        question_first: bool. Whether to pack `[CLS] question [SEP] passage [SEP]` instead.
        segment_aware: bool. Whether to return SegaBERT's positions; needs `question_first`.

    Call arguments:
        x: tuple of questions and passages, string [B] each. A single question and passage, string
            [], have outputs without the dimension B.
        y: answers for training, string [B], whose first occurrence in the passage counts; or a
            tuple of such answers and their first characters, int [B]; or a dict, which is returned
            unchanged. An empty string means that there is no answer.
        sample_weight: returned unchanged.

    Returns:
        `x`, `(x, y)` or `(x, y, sample_weight)`. `x` is a dict of `token_ids`, `segment_ids` and
        `padding_mask`, and with `segment_aware` of `paragraph_indices`, `sentence_indices` and
        `token_indices`, int32 [B, S]. `y` is a dict of `start_positions` and `end_positions`, int32
        [B]; the end is inclusive. Both are 0, the position of [CLS], if there is no answer, or if
        the passage or the row does not contain it at this place.

    Raises:
        ValueError: `segment_aware` without `question_first`, or `x` is no tuple of two.

    Example:
    ```python
    tokenizer = spanbert_tf.models.SpanBertTokenizer("records/vocab.txt", lowercase=True)
    preprocessor = spanbert_tf.models.SpanBertQuestionAnswererPreprocessor(tokenizer, 16)
    x, y = preprocessor(x=(["Who sat?"], ["The cat sat."]), y=["cat"])
    y["start_positions"]  # [2]: `cat` follows [CLS] and `the`
    ```
    """

    backbone_cls = SpanBertBackbone
    tokenizer_cls = SpanBertTokenizer
    _segment_aware_arguments = ("segment_aware", "question_first")

    def __init__(
        self,
        tokenizer: SpanBertTokenizer,
        sequence_length: int = 512,
        question_first: bool = False,
        segment_aware: bool = False,
        **kwargs,
    ) -> None:
        if segment_aware and not question_first:
            raise ValueError("segment_aware needs question_first: the question is paragraph 0")
        super().__init__(**kwargs)
        self.tokenizer = tokenizer
        self.sequence_length = sequence_length
        self.question_first = question_first
        self.segment_aware = segment_aware

    def build(self, input_shape: tuple) -> None:
        self.packer = WindowPacker(
            self.tokenizer.start_token_id,
            self.tokenizer.end_token_id,
            self.tokenizer.pad_token_id,
            sequence_length=self.sequence_length,
            stride=self.sequence_length,
            max_question_tokens=self.sequence_length,
            question_first=self.question_first,
        )
        with tf.init_scope():  # the first call may be in a graph that the constants must outlive
            # Unlike `self.tokenizer`, it returns the offsets of tokens.
            self._word_piece = WordPieceTokenizer.shared(
                self.tokenizer.get_vocabulary(), self.tokenizer.text_rules
            )

    def _rows(
        self, x: tuple, y: tf.Tensor | tuple | dict | None
    ) -> tuple[dict, tf.Tensor | dict | None]:
        if not isinstance(x, tuple | list) or len(x) != 2:
            raise ValueError(
                "x must be a tuple of questions and passages: preprocessor(x=(questions, "
                "passages)), and in a data set without answers ((questions, passages),)"
            )
        is_unbatched = is_one_text(x[0])
        texts = [flat_texts(text) for text in x]  # [B] each
        has_answers = y is not None and not isinstance(y, dict)
        positions = None
        if self.segment_aware or has_answers:
            tokenize = self._word_piece.tokenize_with_offsets
            questions, question_starts, _ = tokenize(texts[0])
            passages, starts, ends = tokenize(texts[1])
            if self.segment_aware:
                language = self.tokenizer.text_rules.language
                lines = as_line(texts[0])
                positions = pair_positions(
                    lines,
                    texts[1],
                    question_starts,
                    starts,
                    find_sentences(lines, language),
                    find_sentences(texts[1], language),
                )
        else:
            questions = self.tokenizer(texts[0])
            passages = self.tokenizer(texts[1])
        planned = self.packer.plan(questions, passages, positions)
        windows = planned.pack(planned.first_windows)
        features = {
            name: self._pad(values, self.tokenizer.pad_token_id if name == "token_ids" else 0)
            for name, values in windows.features().items()
        }
        if has_answers:
            tokens = tokens_of_answers(texts[1], y, starts, ends)
            y = _positions_in_rows(*tokens, windows.passage_tokens)
        if is_unbatched:
            features = of_one_text(features)
            if has_answers:
                y = of_one_text(y)
        return features, y

    def _pad(self, values: tf.Tensor, filler: int) -> tf.Tensor:
        """Pads rows, int32 [B, positions], to `sequence_length`."""
        num_missing = self.sequence_length - tf.shape(values)[1]
        padded = tf.pad(values, [[0, 0], [0, num_missing]], constant_values=filler)
        return tf.ensure_shape(padded, [None, self.sequence_length])

    def get_config(self) -> dict:
        return {
            **super().get_config(),
            "sequence_length": self.sequence_length,
            "question_first": self.question_first,
            "segment_aware": self.segment_aware,
        }


def _positions_in_rows(
    first: tf.Tensor, last: tf.Tensor, passage_tokens: tf.Tensor
) -> dict[str, tf.Tensor]:
    """Finds the positions of the first and the last tokens of answers.

    Args:
        first: index of the first token of each answer, int32 [B].
        last: index of the last token of each answer, int32 [B].
        passage_tokens: index of the passage's token at each position, int32 [B, S].

    Returns:
        `start_positions` and `end_positions`, int32 [B]; both are 0 if a row lacks one of them.
    """
    is_first = passage_tokens == first[:, tf.newaxis]  # [B, S]
    is_last = passage_tokens == last[:, tf.newaxis]
    is_inside = tf.reduce_any(is_first, axis=1) & tf.reduce_any(is_last, axis=1) & (first >= 0)

    def position(is_token: tf.Tensor) -> tf.Tensor:
        positions = tf.argmax(tf.cast(is_token, tf.int32), axis=1, output_type=tf.int32)
        return tf.where(is_inside, positions, 0)

    return {"start_positions": position(is_first), "end_positions": position(is_last)}


def tokens_of_answers(
    passages: tf.Tensor,
    answers: tf.Tensor | tuple[tf.Tensor, tf.Tensor],
    token_starts: tf.RaggedTensor,
    token_ends: tf.RaggedTensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Finds the first and the last token of each answer.

    Args:
        passages: string [B], in UTF-8.
        answers: string [B], whose first occurrence counts; or a tuple of answers and their first
            characters, int [B].
        token_starts: ragged int [B, tokens], first byte of each token of the passages.
        token_ends: ragged int [B, tokens], the byte after each token.

    Returns:
        The indices of the first and of the last token, int32 [B] each. They are -1 if the answer is
        empty, not in the passage, or covers no token.

    Raises:
        ValueError: `answers` are not strings.
    """
    texts, characters = answers if isinstance(answers, tuple) else (answers, None)
    texts = tf.reshape(texts, [-1])
    if texts.dtype != tf.string:
        raise ValueError(
            f"y must be the answers as strings, a tuple (answers, starts), or a dict of "
            f"start_positions and end_positions. Received: {texts.dtype.name}"
        )
    if characters is None:
        begins = tf.numpy_function(_find, [passages, texts], tf.int64, stateful=False)
        begins = tf.cast(tf.ensure_shape(begins, [None]), tf.int32)
    else:
        begins = _byte_offsets(passages, texts, tf.cast(tf.reshape(characters, [-1]), tf.int32))
    sizes = tf.strings.length(texts)
    is_there = (begins >= 0) & (sizes > 0)
    starts = _padded_offsets(token_starts)
    ends = _padded_offsets(token_ends)
    begin = tf.cast(begins, tf.int64)[:, tf.newaxis]
    stop = begin + tf.cast(sizes, tf.int64)[:, tf.newaxis]
    # Count the tokens that end before the answer starts, and those that start before it ends.
    first = _count_true(ends <= begin)
    last = _count_true(starts < stop) - 1
    is_there &= first <= last
    return tf.where(is_there, first, _NONE), tf.where(is_there, last, _NONE)


def _padded_offsets(offsets: tf.RaggedTensor) -> tf.Tensor:
    """Converts ragged offsets of tokens to int64 [B, tokens]; padding comes after all tokens."""
    return tf.cast(offsets.to_tensor(offsets.dtype.max), tf.int64)


def _count_true(flags: tf.Tensor) -> tf.Tensor:
    """Counts the true values of each row, int32 [B]."""
    return tf.reduce_sum(tf.cast(flags, tf.int32), axis=1)


def _find(passages: np.ndarray, texts: np.ndarray) -> np.ndarray:
    """Returns the first byte of the first occurrence of each text, or -1."""
    pairs = zip(passages, texts, strict=True)
    return np.array([passage.find(text) for passage, text in pairs], np.int64)


def _byte_offsets(passages: tf.Tensor, texts: tf.Tensor, characters: tf.Tensor) -> tf.Tensor:
    """Converts the first characters of texts to bytes; -1 if the passage lacks the text there."""
    lengths = tf.strings.length(passages, unit="UTF8_CHAR")
    inside = tf.clip_by_value(characters, 0, lengths)
    before = tf.strings.substr(passages, tf.zeros_like(inside), inside, unit="UTF8_CHAR")
    offsets = tf.strings.length(before)
    found = tf.strings.substr(passages, offsets, tf.strings.length(texts))
    return tf.where((found == texts) & (inside == characters), offsets, _NONE)
