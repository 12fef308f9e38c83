"""Word pieces of texts, their places, and their SegaBERT positions."""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from spanbert_tf.data.segment_positions import segment_positions
from spanbert_tf.data.tokenization import WordPieceTokenizer
from spanbert_tf.vocabulary import Casing

_TEXTS_AT_ONCE = 4096


@dataclasses.dataclass(frozen=True)
class TokenizedText:
    """Word pieces of a text and where they stand in it.

    Attributes:
        token_ids: int32 [T].
        starts: int64 [T], first character of each.
        ends: int64 [T], the character after each.
        positions: int32 [T, 3], paragraph, sentence and token of `SegmentPositions`; [T, 0] unless
            they were asked for.
    """

    token_ids: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    positions: np.ndarray


class TextTokenizer:
    """The project's one tokenizer, for texts in memory.

    Args:
        pieces: the vocabulary.
        casing: what is done to the text.
        segment_aware: whether to compute `positions`.
    """

    def __init__(self, pieces: Sequence[str], casing: Casing, *, segment_aware: bool) -> None:
        self._tokenizer = WordPieceTokenizer.shared(pieces, casing)
        self._segment_aware = segment_aware

    def __call__(
        self, texts: Sequence[str], *, first_paragraph: int = 0
    ) -> Iterator[TokenizedText]:
        """The texts in their order.

        Args:
            texts: any.
            first_paragraph: index of each text's first paragraph.
        """
        for first in range(0, len(texts), _TEXTS_AT_ONCE):
            some = texts[first : first + _TEXTS_AT_ONCE]
            batch = [text.encode("utf-8", "replace") for text in some]
            ids, starts, ends = self._tokenizer.tokenize_with_offsets(batch)
            columns = []
            if self._segment_aware:
                columns = segment_positions(
                    tf.constant(batch), starts, first_paragraph=first_paragraph
                )
            positions = np.zeros([ids.flat_values.shape[0], len(columns)], "int32")
            for number, column in enumerate(columns):
                positions[:, number] = column.flat_values
            splits = ids.row_splits.numpy()[1:-1]
            flat = (*(values.flat_values.numpy() for values in (ids, starts, ends)), positions)
            parts = (np.split(values, splits) for values in flat)
            for raw, *row in zip(batch, *parts, strict=True):
                yield _in_characters(raw, *row)


def _in_characters(
    raw: bytes,
    token_ids: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    positions: np.ndarray,
) -> TokenizedText:
    """Offsets in bytes of UTF-8 as offsets in characters."""
    is_first_byte = (np.frombuffer(raw, np.uint8) & 0xC0) != 0x80
    characters = np.concatenate([[0], np.cumsum(is_first_byte)])  # before each byte
    return TokenizedText(token_ids, characters[starts], characters[ends], positions)
