"""Measures encoders of different vocabularies on the same held-out text.

A loss a piece says nothing where the pieces differ: one vocabulary has to predict `cat` and `##s`
where another one predicts `cats`. So words are masked, the same for all encoders, with all of their
pieces. The loss of a word is the sum of those of its pieces, and the sum over all words is divided
by the number of their characters, which no vocabulary changes. Words here are BERT's. Where the
records tell words in another way, BERT's words of one such word are masked together. An encoder
predicts each piece of a word without knowing the others, so the sum is that of a model which takes
them for independent; but it sees how many pieces are masked. The first is to the disadvantage of a
vocabulary that cuts words into more pieces, the second to its advantage.

B rows of a batch, S positions, K masked pieces of a row, V entries of a vocabulary.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import keras
import numpy as np
import tensorflow as tf

from spanbert_tf.data.manifest import PretrainingManifest
from spanbert_tf.data.rows import pack_rows, parse_records, starts_of_words
from spanbert_tf.models import SpanBertMaskedLM, SpanBertTokenizer
from spanbert_tf.text.vocabulary import (
    CONTINUATION_PREFIX,
    END_TOKEN,
    MASK_TOKEN,
    START_TOKEN,
    UNKNOWN_TOKEN,
    SpecialTokenIds,
    begin_words,
    is_continuation,
)

_MASKED_SHARE = 0.15  # of the words, as of the pieces in pre-training
_MOST_ROWS = 256  # 17,000 masked words of rows of 512
_RECORDS_AT_ONCE = 64
_BATCH_SIZE = 8
_NUM_SPECIAL_TOKENS = 2  # [CLS] and [SEP]


@dataclasses.dataclass(frozen=True)
class HeldOutText:
    """Rows of words, some of them masked, which fit into a row of every vocabulary.

    Attributes:
        rows: the words of each row, normalized as the tokenizers do it.
        masked: for each row the indices of the masked words.
        sequence_length: positions of a row of any of the vocabularies, at most.
    """

    rows: list[list[str]]
    masked: list[list[int]]
    sequence_length: int

    @property
    def num_words(self) -> int:
        """The number of words."""
        return sum(map(len, self.rows))

    @property
    def num_masked_characters(self) -> int:
        """The number of characters of the masked words."""
        total = 0
        for row, masked in zip(self.rows, self.masked, strict=True):
            total += sum(len(row[index]) for index in masked)
        return total


def read_held_out_text(records: str, tokenizers: Sequence[SpanBertTokenizer]) -> HeldOutText:
    """Reads the held-out records as words and masks some of the words; always the same.

    Args:
        records: directory of the records, which were written with one of the vocabularies.
        tokenizers: tokenizers of the encoders that are compared. They normalize text alike.
    """
    manifest = PretrainingManifest.load(records)
    vocabulary = manifest.vocabulary(records)
    cutters = [WordCutter(tokenizer) for tokenizer in tokenizers]
    source = np.random.default_rng(0)
    rows: list[list[str]] = []
    masked: list[list[int]] = []
    for ids, begins_word in _held_out_records(records, manifest):
        pieces = [vocabulary[index] for index in ids]
        words = join_words(pieces)
        for cutter in cutters:
            words = words[: cutter.num_fitting(words, manifest.sequence_length)]
        known = []
        for group in group_words(pieces, begins_word, len(words)):
            parts = [words[index] for index in group]
            is_known = all(all(map(cutter.knows, parts)) for cutter in cutters)
            if is_known and any(map(str.isalnum, "".join(parts))):
                known.append(group)
        if not known:
            continue
        num_masked = max(round(_MASKED_SHARE * len(known)), 1)
        rows.append(words)
        chosen = sorted(source.choice(len(known), num_masked, replace=False).tolist())
        masked.append(list(itertools.chain.from_iterable(known[number] for number in chosen)))
        if len(rows) == _MOST_ROWS:
            break
    return HeldOutText(rows, masked, manifest.sequence_length)


def _held_out_records(
    records: str, manifest: PretrainingManifest
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the token ids of each held-out record, and whether each begins a word, bool."""
    files = manifest.files(records, "validation")
    special = SpecialTokenIds.from_vocabulary(manifest.vocabulary(records))
    begins_word = tf.constant(begin_words(manifest.vocabulary(records)))
    for serialized in tf.data.TFRecordDataset(files).batch(_RECORDS_AT_ONCE):
        parsed = parse_records(serialized, manifest, manifest.word_lists)
        _, blocks = pack_rows(parsed, special)
        starts = starts_of_words(parsed, blocks, begins_word).numpy()
        lengths = parsed.lengths.numpy()
        for row, token_ids in enumerate(parsed.token_ids.numpy()):
            # [CLS] stands before the tokens.
            yield token_ids[: lengths[row]], starts[row, 1 : lengths[row] + 1]


def group_words(
    pieces: Sequence[str], begins_word: Sequence[bool] | np.ndarray, num_words: int
) -> list[list[int]]:
    """Groups the first words of `join_words` by the words of the records.

    Args:
        pieces: the pieces of a record.
        begins_word: whether each piece begins a word of the records. A word that begins inside of
            one of `join_words` belongs to its group.
        num_words: number of words to group.

    Returns:
        For each group the indices of its words.
    """
    groups: list[list[int]] = []
    index = -1
    for piece, begins in zip(pieces, begins_word, strict=True):
        if is_continuation(piece):
            continue
        index += 1
        if index == num_words:
            break
        if begins or not groups:
            groups.append([])
        groups[-1].append(index)
    return groups


def join_words(pieces: Sequence[str]) -> list[str]:
    """Returns the words of pieces, without the rest of a word that began before them."""
    words: list[str] = []
    for piece in pieces:
        if not is_continuation(piece):
            words.append(piece)
        elif words:
            words[-1] += piece.removeprefix(CONTINUATION_PREFIX)
    return words


class WordCutter:
    """Cuts words into the ids of their pieces, each word once."""

    def __init__(self, tokenizer: SpanBertTokenizer) -> None:
        self._tokenizer = tokenizer
        self.unknown = tokenizer.token_to_id(UNKNOWN_TOKEN)
        self._ids_of_word: dict[str, list[int]] = {UNKNOWN_TOKEN: [self.unknown]}

    def cut(self, words: Sequence[str]) -> list[list[int]]:
        """Returns the ids of the pieces of each word."""
        new = [word for word in dict.fromkeys(words) if word not in self._ids_of_word]
        if new:
            ids_of_new = self._tokenizer.tokenize(new)  # of a list of texts it returns a list
            for word, ids in zip(new, ids_of_new, strict=True):
                self._ids_of_word[word] = [int(index) for index in ids]
        return [self._ids_of_word[word] for word in words]

    def knows(self, word: str) -> bool:
        """Whether a word has pieces, and none of them is [UNK]."""
        (ids,) = self.cut([word])
        return bool(ids) and self.unknown not in ids

    def num_fitting(self, words: Sequence[str], sequence_length: int) -> int:
        """Returns how many of the first words fit into a row."""
        num_pieces = np.cumsum([len(ids) for ids in self.cut(words)])
        return int(np.sum(num_pieces <= sequence_length - _NUM_SPECIAL_TOKENS))


def pieces_per_word(text: HeldOutText, tokenizer: SpanBertTokenizer) -> float:
    """Returns the mean number of pieces per word. Punctuation marks are words, too."""
    cutter = WordCutter(tokenizer)
    num_pieces = 0
    for row in text.rows:
        num_pieces += sum(map(len, cutter.cut(row)))
    return num_pieces / text.num_words


def loss_per_character(
    text: HeldOutText, model: SpanBertMaskedLM, tokenizer: SpanBertTokenizer
) -> float:
    """Returns the loss of the masked words in nats, divided by the number of their characters.

    Args:
        text: the text.
        model: an encoder without SegaBERT's positions, and its head.
        tokenizer: its tokenizer.
    """
    rows = _masked_rows(text, tokenizer)
    num_targets = max(len(targets) for _, targets in rows)
    total = 0.0
    for start in range(0, len(rows), _BATCH_SIZE):
        batch = rows[start : start + _BATCH_SIZE]
        shape = (_BATCH_SIZE, text.sequence_length)
        token_ids = np.zeros(shape, "int32")
        padding_mask = np.zeros(shape, "int32")
        padding_mask[:, 0] = 1  # rows that fill the last batch
        mask_positions = np.zeros((_BATCH_SIZE, num_targets), "int32")
        for number, (ids, targets) in enumerate(batch):
            token_ids[number, : len(ids)] = ids
            padding_mask[number, : len(ids)] = 1
            mask_positions[number, : len(targets)] = list(targets)
        inputs = {
            "token_ids": token_ids,
            "segment_ids": np.zeros(shape, "int32"),
            "padding_mask": padding_mask,
            "mask_positions": mask_positions,
        }
        # Not the task's own method, which would tokenize texts.
        logits = keras.Model.predict_on_batch(model, inputs)  # [B, K, V]
        for number, (_, targets) in enumerate(batch):
            found = np.asarray(logits[number, : len(targets)], "float64")
            expected = found[np.arange(len(targets)), list(targets.values())]
            total += float(np.sum(np.logaddexp.reduce(found, axis=-1) - expected))
    return total / text.num_masked_characters


def _masked_rows(
    text: HeldOutText, tokenizer: SpanBertTokenizer
) -> list[tuple[list[int], dict[int, int]]]:
    """Returns the token ids of each row, and the position → id of each masked piece."""
    cutter = WordCutter(tokenizer)
    start, end, mask = map(tokenizer.token_to_id, (START_TOKEN, END_TOKEN, MASK_TOKEN))
    rows = []
    for words, masked in zip(text.rows, text.masked, strict=True):
        ids = [start]
        targets: dict[int, int] = {}
        masked_words = set(masked)
        for index, pieces in enumerate(cutter.cut(words)):
            for piece in pieces:
                if index in masked_words:
                    targets[len(ids)] = piece
                    piece = mask
                ids.append(piece)
        rows.append(([*ids, end], targets))
    return rows
