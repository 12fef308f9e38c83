"""Picks held-out sentences and masks a word of each, to look at what a model fills in."""

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from spanbert_tf.data.packing import parse_records
from spanbert_tf.data.records import load_dataset_info, load_unigram_counts
from spanbert_tf.data.schema import SENTENCE_STARTS, VOCABULARY_FILE
from spanbert_tf.text.vocabulary import MASK_TOKEN, is_continuation, load_vocabulary

_BATCH_SIZE = 64
_SENTENCE_WORDS = range(8, 21)
_LEAST_LETTERS = 4
_COMMON_WORDS = 200  # entries that the training text has most often


@dataclasses.dataclass(frozen=True)
class MaskedSentence:
    """A sentence with one word masked.

    Attributes:
        text: the sentence with `[MASK]`, its words and marks separated by blanks.
        answer: the word that was there.
    """

    text: str
    answer: str


def choose_masked_sentences(directory: str, num_sentences: int) -> list[MaskedSentence]:
    """The first held-out sentences, each of another record, that have a common word to mask.

    Args:
        directory: directory of the records.
        num_sentences: how many to return, at most.
    """
    info = load_dataset_info(directory)
    vocabulary = load_vocabulary(f"{directory}/{VOCABULARY_FILE}")
    candidates = [number for number, piece in enumerate(vocabulary) if _is_long_word(piece)]
    counts = np.array(load_unigram_counts(directory, info))
    common = sorted(candidates, key=lambda number: -counts[number])[:_COMMON_WORDS]
    words = {vocabulary[number] for number in common}
    chosen = []
    for sentences in _records_of_sentences(directory):
        masked = [_mask_one_word([vocabulary[i] for i in ids], words) for ids in sentences]
        chosen += [sentence for sentence in masked if sentence is not None][:1]
        if len(chosen) == num_sentences:
            break
    return chosen


def _records_of_sentences(directory: str) -> Iterator[list[np.ndarray]]:
    """For each held-out record the token ids of its whole sentences."""
    info = load_dataset_info(directory)
    files = info.files(directory, "validation")
    for serialized in tf.data.TFRecordDataset(files).batch(_BATCH_SIZE):
        records = parse_records(serialized, info, (SENTENCE_STARTS,))
        values, num_starts = (part.numpy() for part in records.lists[SENTENCE_STARTS])
        for row, token_ids in enumerate(records.token_ids.numpy()):
            starts = values[row, : num_starts[row]]
            # The block's first sentence may have begun before it, and its last may go on after.
            yield [token_ids[start:end] for start, end in itertools.pairwise(starts[1:])]


def _mask_one_word(pieces: list[str], words: set[str]) -> MaskedSentence | None:
    """Masks the one of `words` that is nearest to the middle of a sentence."""
    joined: list[str] = []
    for piece in pieces:
        if is_continuation(piece) and joined:
            joined[-1] += piece.removeprefix("##")
        else:
            joined.append(piece)
    places = [place for place, word in enumerate(joined) if word in words]
    if len(joined) not in _SENTENCE_WORDS or not places:
        return None
    place = min(places, key=lambda place: abs(place - len(joined) / 2))
    text = " ".join([*joined[:place], MASK_TOKEN, *joined[place + 1 :]])
    return MaskedSentence(text, joined[place])


def _is_long_word(piece: str) -> bool:
    return piece.isalpha() and len(piece) >= _LEAST_LETTERS
