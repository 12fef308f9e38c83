"""Packs questions and passages for `SpanBertQuestionAnswerer`.

B rows, S positions, T tokens of a passage.
"""

import keras
import keras_hub
import numpy as np
import tensorflow as tf

from spanbert_tf.data.windows import WindowPacker
from spanbert_tf.models.preprocessing import RowPreprocessor, flat_texts, is_one_text, of_one_text
from spanbert_tf.models.span_bert_backbone import SpanBertBackbone
from spanbert_tf.models.span_bert_tokenizer import SpanBertTokenizer
from spanbert_tf.text.positions import pair_positions
from spanbert_tf.text.tokenization import WordPieceTokenizer

_NONE = -1  # in place of a token


@keras.saving.register_keras_serializable(package="spanbert_tf")
class SpanBertQuestionAnswererPreprocessor(RowPreprocessor, keras_hub.models.Preprocessor):
    """Packs one row a question: `[CLS] passage [SEP] question [SEP]` (SpanBERT, section 4.1).

    What does not fit is cut off the passage; for passages of any length write records with
    `spanbert-tf prepare squad`, whose windows slide.

    Args:
        tokenizer: a `SpanBertTokenizer`.
        sequence_length: int. Positions of a packed row; a new preprocessor of a preset has the
            length of the preset's own, or of its encoder.
        question_first: bool. `[CLS] question [SEP] passage [SEP]`.
        segment_aware: bool. Tell SegaBERT's positions as well; needs `question_first`.

    Call arguments:
        x: tuple of questions and passages, string tensors [B]; or of one of each, string [], whose
            outputs have no dimension B.
        y: the answers, to train: strings [B], which are looked for in the passages, the first
            occurrence counts; or a tuple of such and of the characters where they begin, int [B];
            or a dict, which is handed through. An empty string is no answer.
        sample_weight: handed through.

    Returns:
        `x`, `(x, y)` or `(x, y, sample_weight)`, where `x` is a dict of `token_ids`, `segment_ids`
        and `padding_mask`, and if `segment_aware` of `paragraph_indices`, `sentence_indices` and
        `token_indices`, int32 [B, sequence_length]; and `y` of `start_positions` and
        `end_positions`, int32 [B], the end inclusive. They are 0, [CLS], where there is no answer
        or it does not stand in that place of the passage or in the row.

    Raises:
        ValueError: `segment_aware` without `question_first`; or `x` is no tuple of two.

    Example:
    ```python
    tokenizer = spanbert_tf.models.SpanBertTokenizer("records/vocab.txt", lowercase=True)
    preprocessor = spanbert_tf.models.SpanBertQuestionAnswererPreprocessor(tokenizer, 16)
    x, y = preprocessor(x=(["Who sat?"], ["The cat sat."]), y=["cat"])
    y["start_positions"]  # [2], after [CLS] and `the`
    ```
    """

    backbone_cls = SpanBertBackbone
    tokenizer_cls = SpanBertTokenizer
    _of_segment_aware = ("segment_aware", "question_first")

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
        with tf.init_scope():  # the first call may be in a graph, which the constants outlive
            self._word_piece = WordPieceTokenizer.shared(  # with offsets, unlike the tokenizer
                self.tokenizer.get_vocabulary(), self.tokenizer.casing
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
            (questions, question_starts, _), (passages, starts, ends) = (
                self._word_piece.tokenize_with_offsets(text) for text in texts
            )
            if self.segment_aware:
                positions = pair_positions(texts[0], texts[1], question_starts, starts)
        else:
            questions, passages = map(self.tokenizer, texts)
        planned = self.packer.plan(questions, passages, positions)
        windows = planned.pack(planned.first_windows)
        room = [[0, 0], [0, self.sequence_length - tf.shape(windows.token_ids)[1]]]
        padding = {"token_ids": self.tokenizer.pad_token_id}
        features = {
            name: tf.ensure_shape(
                tf.pad(values, room, constant_values=padding.get(name, 0)),
                [None, self.sequence_length],
            )
            for name, values in windows.features().items()
        }
        if has_answers:
            tokens = tokens_of_answers(texts[1], y, starts, ends)
            y = _positions_in_rows(*tokens, windows.passage_tokens)
        if is_unbatched:
            features, y = of_one_text(features), of_one_text(y) if has_answers else y
        return features, y

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
    """Positions of the tokens [B] in rows [B, S]; 0 for both where one is not there."""
    is_token = [passage_tokens == token[:, tf.newaxis] for token in (first, last)]
    is_inside = tf.reduce_all([tf.reduce_any(where, axis=1) for where in is_token], axis=0)
    is_inside &= first >= 0
    start, end = (
        tf.where(is_inside, tf.argmax(tf.cast(where, tf.int32), axis=1, output_type=tf.int32), 0)
        for where in is_token
    )
    return {"start_positions": start, "end_positions": end}


def tokens_of_answers(
    passages: tf.Tensor,
    answers: tf.Tensor | tuple[tf.Tensor, tf.Tensor],
    token_starts: tf.RaggedTensor,
    token_ends: tf.RaggedTensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    """The first and the last token of each answer.

    Args:
        passages: string [B], in UTF-8.
        answers: string [B], whose first occurrences count; or a tuple of those and int [B], the
            characters where they begin.
        token_starts: int [B, tokens], first byte of each token of the passages.
        token_ends: int [B, tokens], the byte after each token.

    Returns:
        int32 [B] each, the last one inclusive; -1 where the answer is empty, does not stand in the
        passage, or covers no token.

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
        begins = _byte_places(passages, texts, tf.cast(tf.reshape(characters, [-1]), tf.int32))
    sizes = tf.strings.length(texts)
    is_there = (begins >= 0) & (sizes > 0)
    starts, ends = (
        tf.cast(values.to_tensor(values.dtype.max), tf.int64)  # [B, T], padding after all others
        for values in (token_starts, token_ends)
    )
    begin = tf.cast(begins, tf.int64)[:, tf.newaxis]
    stop = begin + tf.cast(sizes, tf.int64)[:, tf.newaxis]
    # Tokens that end before the answer begins, and tokens that begin before it ends.
    first = _count(ends <= begin)
    last = _count(starts < stop) - 1
    is_there &= first <= last
    return tf.where(is_there, first, _NONE), tf.where(is_there, last, _NONE)


def _count(flags: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.cast(flags, tf.int32), axis=1)


def _find(passages: np.ndarray, texts: np.ndarray) -> np.ndarray:
    """The first byte of the first occurrence; -1 for none."""
    pairs = zip(passages, texts, strict=True)
    return np.array([passage.find(text) for passage, text in pairs], np.int64)


def _byte_places(passages: tf.Tensor, texts: tf.Tensor, characters: tf.Tensor) -> tf.Tensor:
    """Bytes of characters of passages; -1 where the text does not stand there."""
    lengths = tf.strings.length(passages, unit="UTF8_CHAR")
    inside = tf.clip_by_value(characters, 0, lengths)
    before = tf.strings.substr(passages, tf.zeros_like(inside), inside, unit="UTF8_CHAR")
    places = tf.strings.length(before)
    found = tf.strings.substr(passages, places, tf.strings.length(texts))
    return tf.where((found == texts) & (inside == characters), places, _NONE)
