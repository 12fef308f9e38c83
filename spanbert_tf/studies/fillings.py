"""What a masked-language model fills in, before training and after it.

Sentences of the held-out records, one word of each masked, show what a run has learned.
"""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from spanbert_tf.data.manifest import SENTENCE_STARTS, VOCABULARY_FILE, PretrainingManifest
from spanbert_tf.data.rows import parse_records
from spanbert_tf.models import SpanBertMaskedLM
from spanbert_tf.presets.preset import Preset
from spanbert_tf.tasks.fill_mask import FillMaskGraph
from spanbert_tf.terminal import print_line
from spanbert_tf.text.vocabulary import MASK_TOKEN, is_continuation, load_vocabulary

TOP_K = 3
_NUM_SENTENCES = 4
_BATCH_SIZE = 64
_SENTENCE_WORDS = range(8, 21)
_LEAST_LETTERS = 4
_COMMON_WORDS = 200  # entries that the training text has most often


class MaskedSentence(NamedTuple):
    """A sentence with one word `[MASK]`, words and marks separated by blanks; and that word."""

    text: str
    answer: str


def show_what_was_learned(before: str, after: str, records: str) -> None:
    """Prints what two presets fill in; nothing where a text alone is not enough for them.

    Args:
        before: preset that a run began with; without a trained head for masked words, it is passed
            over.
        after: preset of the run.
        records: directory of its records.
    """
    sentences = choose_masked_sentences(records)
    trained = Preset(after).task(SpanBertMaskedLM)
    if not sentences or trained.backbone.position_embeddings != "absolute":
        return
    first = Preset(before).task(SpanBertMaskedLM)
    print_line()
    print_line("What the model fills in:")
    print_fillings(
        sentences,
        fill(first, sentences) if first.is_head_trained else None,
        fill(trained, sentences),
    )


def texts_of(sentences: list[MaskedSentence]) -> tf.Tensor:
    """The texts with their masks, string [sentences]."""
    return tf.constant([sentence.text for sentence in sentences], tf.string)


def fill(model: SpanBertMaskedLM, sentences: list[MaskedSentence]) -> dict[str, np.ndarray]:
    """`fillings` and `probabilities`, [sentences, 1, TOP_K]."""
    filled = tf.function(FillMaskGraph(model, TOP_K).fill_texts)(texts_of(sentences))
    return {name: values.numpy() for name, values in filled.items()}


def print_fillings(
    sentences: list[MaskedSentence],
    before: dict[str, np.ndarray] | None,
    after: dict[str, np.ndarray],
) -> None:
    """Prints each sentence, its word, and what `fill` found before training, if any, and after."""

    def show(filled: dict[str, np.ndarray], row: int) -> str:
        words, shares = filled["fillings"][row, 0], filled["probabilities"][row, 0]
        pairs = zip(words, shares, strict=True)
        return ", ".join(f"{word.decode()} {share:.1%}" for word, share in pairs)

    for row, sentence in enumerate(sentences):
        print_line(sentence.text)
        print_line(f"  the text has: {sentence.answer}")
        if before is not None:
            print_line(f"  before training: {show(before, row)}")
        print_line(f"  after: {show(after, row)}")


def choose_masked_sentences(
    directory: str, num_sentences: int = _NUM_SENTENCES
) -> list[MaskedSentence]:
    """The first held-out sentences, each of another record, that have a common word to mask."""
    info = PretrainingManifest.load(directory)
    vocabulary = load_vocabulary(f"{directory}/{VOCABULARY_FILE}")
    candidates = [number for number, piece in enumerate(vocabulary) if _is_long_word(piece)]
    counts = np.array(info.unigram_counts(directory))
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
    info = PretrainingManifest.load(directory)
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
