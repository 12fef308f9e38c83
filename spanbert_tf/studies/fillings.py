"""Shows what a masked-language model fills in before and after training.

One word is masked in each of some held-out sentences. It is an entry of the vocabulary, since the
model fills in one, so Chinese text, whose entries are characters, has no such word.
"""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from spanbert_tf.config.positions import reads_indices
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
_COMMON_WORDS = 200  # number of most frequent words that may be masked


class MaskedSentence(NamedTuple):
    """A sentence with a masked word.

    Attributes:
        text: the sentence with `[MASK]`; words and punctuation are separated by spaces.
        answer: the masked word.
    """

    text: str
    answer: str


def show_what_was_learned(before: str, after: str, records: str) -> None:
    """Prints what the presets before and after a run fill in.

    It prints nothing if there is no suitable sentence, or if the models need more than a text
    (SegaBERT's positions).

    Args:
        before: preset with which the run began. It is skipped if its head is not trained.
        after: preset of the run.
        records: directory of the records of the run.
    """
    sentences = choose_masked_sentences(records)
    trained = Preset(after).task(SpanBertMaskedLM)
    if not sentences or reads_indices(trained.backbone.position_embeddings):
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
    """Returns the masked texts as a tensor, string [sentences]."""
    return tf.constant([sentence.text for sentence in sentences], tf.string)


def fill(model: SpanBertMaskedLM, sentences: list[MaskedSentence]) -> dict[str, np.ndarray]:
    """Fills in the masked words.

    Returns:
        `fillings`, bytes, and `probabilities`, float32, both [sentences, 1, TOP_K].
    """
    filled = tf.function(FillMaskGraph(model, TOP_K).fill_texts)(texts_of(sentences))
    return {name: values.numpy() for name, values in filled.items()}


def print_fillings(
    sentences: list[MaskedSentence],
    before: dict[str, np.ndarray] | None,
    after: dict[str, np.ndarray],
) -> None:
    """Prints each sentence, its word, and the results of `fill`.

    Args:
        sentences: the sentences.
        before: result before training; `None`: it is not printed.
        after: result after training.
    """

    def show(filled: dict[str, np.ndarray], row: int) -> str:
        words = filled["fillings"][row, 0]
        probabilities = filled["probabilities"][row, 0]
        pairs = zip(words, probabilities, strict=True)
        return ", ".join(f"{word.decode()} {probability:.1%}" for word, probability in pairs)

    for row, sentence in enumerate(sentences):
        print_line(sentence.text)
        print_line(f"  the text has: {sentence.answer}")
        if before is not None:
            print_line(f"  before training: {show(before, row)}")
        print_line(f"  after: {show(after, row)}")


def choose_masked_sentences(
    directory: str, num_sentences: int = _NUM_SENTENCES
) -> list[MaskedSentence]:
    """Chooses held-out sentences, each from another record, and masks a common word of each.

    Args:
        directory: directory of the records.
        num_sentences: number of sentences, if there are as many.
    """
    manifest = PretrainingManifest.load(directory)
    vocabulary = load_vocabulary(f"{directory}/{VOCABULARY_FILE}")
    candidates = [index for index, piece in enumerate(vocabulary) if _is_long_word(piece)]
    counts = np.array(manifest.unigram_counts(directory))
    common = sorted(candidates, key=lambda index: -counts[index])[:_COMMON_WORDS]
    words = {vocabulary[index] for index in common}
    chosen: list[MaskedSentence] = []
    for sentences in _sentences_of_records(directory):
        for token_ids in sentences:
            masked = _mask_one_word([vocabulary[index] for index in token_ids], words)
            if masked is not None:
                chosen.append(masked)
                break
        if len(chosen) == num_sentences:
            break
    return chosen


def _sentences_of_records(directory: str) -> Iterator[list[np.ndarray]]:
    """Yields the token ids of the whole sentences of each held-out record."""
    manifest = PretrainingManifest.load(directory)
    files = manifest.files(directory, "validation")
    for serialized in tf.data.TFRecordDataset(files).batch(_BATCH_SIZE):
        records = parse_records(serialized, manifest, (SENTENCE_STARTS,))
        values, num_starts = (part.numpy() for part in records.lists[SENTENCE_STARTS])
        for row, token_ids in enumerate(records.token_ids.numpy()):
            starts = values[row, : num_starts[row]]
            # Skip the first and the last sentence: they may continue outside of the block.
            yield [token_ids[start:end] for start, end in itertools.pairwise(starts[1:])]


def _mask_one_word(pieces: list[str], words: set[str]) -> MaskedSentence | None:
    """Masks the word of `words` that is nearest to the middle of a sentence, if it has one."""
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
