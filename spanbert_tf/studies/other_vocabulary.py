"""Writes records of the same texts with the pieces of another vocabulary.

An encoder without a trained head needs a head that is trained on the text of the records, but not
on their held-out text. The text of a record depends on the vocabulary, so records that `prepare`
writes anew hold out other text. Here each record stays in its split.
"""

import dataclasses
import os

import numpy as np

from spanbert_tf.data.examples import named_damage, read_example
from spanbert_tf.data.manifest import (
    DATASET_INFO_FILE,
    RECORDS,
    SPLITS,
    TOKEN_IDS,
    UNIGRAM_COUNTS_FILE,
    VOCABULARY_FILE,
    PretrainingManifest,
    Shard,
    encode_unigram_counts,
    vocabulary_hash,
)
from spanbert_tf.data.rows import scalar_names
from spanbert_tf.data.tfrecords import (
    lengths_path,
    read_records,
    record_writer,
    save_lengths,
    serialize_features,
)
from spanbert_tf.files.output import Output, write_text
from spanbert_tf.models import SpanBertTokenizer
from spanbert_tf.studies.held_out_text import WordCutter, join_words
from spanbert_tf.text.vocabulary import is_continuation


def write_with_vocabulary(
    records: str, tokenizer: SpanBertTokenizer, output: str, num_records: int
) -> None:
    """Writes records of the same texts with another vocabulary.

    Pieces that do not fit into a row are left out, and so are starts of words inside of a word.

    Args:
        records: directory of records of single sequences without annotations.
        tokenizer: tokenizer of the other vocabulary, which normalizes text alike.
        output: directory to write.
        num_records: the shards of a split are read until so many records are written.

    Raises:
        BadInputError: a record is damaged, or the output cannot be written.
    """
    manifest = PretrainingManifest.load(records)
    vocabulary = tokenizer.get_vocabulary()
    written = dataclasses.replace(
        manifest, vocabulary_hash=vocabulary_hash(vocabulary), vocabulary_size=len(vocabulary)
    )
    recutter = _Recutter(records, manifest, written, tokenizer)
    shards: list[Shard] = []
    with (
        Output(output, RECORDS).written() as unfinished,
        named_damage(lambda: manifest.damage(records)),
    ):
        for split in SPLITS:
            num_written = 0
            for shard in manifest.shards:
                if shard.split == split and num_written < num_records:
                    num_written += shard.num_records
                    shards.append(recutter.write(records, shard, unfinished))
        counts, counts_hash = encode_unigram_counts(recutter.unigram_counts)
        written = dataclasses.replace(
            written,
            shards=tuple(shards),
            counts={"records": sum(shard.num_records for shard in shards)},
            unigram_counts_hash=counts_hash,
            made_from=None,
        )
        write_text(os.path.join(unfinished, VOCABULARY_FILE), "\n".join(vocabulary) + "\n")
        write_text(os.path.join(unfinished, UNIGRAM_COUNTS_FILE), counts)
        write_text(os.path.join(unfinished, DATASET_INFO_FILE), written.to_json())


class _Recutter:
    """Cuts the words of records into the pieces of another vocabulary.

    Attributes:
        unigram_counts: int64 [V], occurrences of each entry in the training records so far.
    """

    def __init__(
        self,
        records: str,
        before: PretrainingManifest,
        after: PretrainingManifest,
        tokenizer: SpanBertTokenizer,
    ) -> None:
        self._vocabulary = before.vocabulary(records)
        self._before = before
        self._after = after
        self._tokenizer = tokenizer
        self._cutter = WordCutter(tokenizer)
        self.unigram_counts = np.zeros(after.vocabulary_size, "int64")

    def write(self, records: str, shard: Shard, output: str) -> Shard:
        """Writes the records of a shard, and returns the description of the new shard."""
        target = os.path.join(output, shard.file)
        stored = self._before.stored()
        lengths = []
        with record_writer(target) as write:
            for serialized, _ in read_records(os.path.join(records, shard.file)):
                example = self._recut(read_example(serialized, stored))
                if shard.split == "train":
                    np.add.at(self.unigram_counts, example[TOKEN_IDS], 1)
                write(self._serialize(example))
                lengths.append(len(example[TOKEN_IDS]))
        save_lengths(lengths_path(target), lengths)
        return Shard.of_file(target, shard.split, lengths)

    def _recut(self, example: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the numbers of a record whose words are cut anew."""
        pieces = [self._vocabulary[index] for index in example[TOKEN_IDS]]
        words = [place for place, piece in enumerate(pieces) if not is_continuation(piece)]
        # A row may begin in a word. Words alone are added to a vocabulary, so it has the rest.
        begin = min(words, default=len(pieces))
        ids = [self._tokenizer.token_to_id(piece) for piece in pieces[:begin]]
        places = {0: 0}  # of the old starts of words, and of the record
        for start, ids_of_word in zip(words, self._cutter.cut(join_words(pieces)), strict=True):
            places[start] = len(ids)
            ids += ids_of_word
        ids = ids[: self._after.num_places]
        recut = {TOKEN_IDS: np.array(ids)}
        for name, stored in self._after.stored().items():
            values = example[name]
            if stored.is_list and name not in recut:
                starts = example[stored.like or name].tolist()
                is_kept = [places.get(start, len(ids)) < len(ids) for start in starts]
                values = values[is_kept]
                if stored.like is None:
                    values = np.array([places[start] for start in values.tolist()])
            recut.setdefault(name, values)
        return recut

    def _serialize(self, example: dict[str, np.ndarray]) -> bytes:
        stored = self._after.stored()
        numbers = {name: example[name].item() for name in scalar_names(self._after)}
        lists = {
            name: example[name].astype(np.dtype(one.dtype).newbyteorder("<")).tobytes()
            for name, one in stored.items()
            if one.is_list
        }
        return serialize_features(numbers, lists)
