"""Writes sentences with named entities as packed rows: what `prepare named_entities` does.

An entity's first word piece has the label `B-TYPE`, the first pieces of its other words `I-TYPE`; a
word is what BERT's tokenizer takes for one, so that texts without marked words are read the same.

T pieces of a sentence.
"""

import collections
import functools
import os
from collections.abc import Mapping, Sequence

import numpy as np

from data_prep.examples.answers import Location, token_span
from data_prep.examples.features import serialize_features
from data_prep.examples.row_writer import RowWriter
from data_prep.examples.tagged_sentences import Entity, Sentence, SentenceSet
from data_prep.examples.task_records import RowPacker, write_task_records
from spanbert_tf.data.row_lengths import lengths_path
from spanbert_tf.data.rows_info import ROW_TOKEN_IDS, SECOND_START
from spanbert_tf.data.schema import VOCABULARY_FILE
from spanbert_tf.errors import BadInputError
from spanbert_tf.files.json_lines import write_json_lines
from spanbert_tf.files.outputs import OutputKind, check_output
from spanbert_tf.process.lines import print_line
from spanbert_tf.process.progress import show_progress
from spanbert_tf.tasks.named_entities import schema
from spanbert_tf.tasks.named_entities.schema import NamedEntitiesInfo
from spanbert_tf.text.tokenization import TextTokenizer, TokenizedText
from spanbert_tf.text.vocabulary import Casing, check_case, is_continuation, load_vocabulary

RECORDS = OutputKind(
    "records of named entities",
    NamedEntitiesInfo.file_name(),
    (
        NamedEntitiesInfo.rows_file,
        os.path.basename(lengths_path(NamedEntitiesInfo.rows_file)),
        schema.SENTENCES_FILE,
        VOCABULARY_FILE,
    ),
)
_SHOWN_LOST = 5
_LABEL_DTYPE = np.dtype(schema.LABEL_DTYPE).newbyteorder("<")


def write_entities(
    sentences: SentenceSet,
    output: str,
    *,
    vocabulary: str,
    casing: Casing,
    sequence_length: int = 512,
    overwrite: bool = False,
) -> NamedEntitiesInfo:
    """Writes a directory of rows and sentences; it appears whole or not at all.

    Args:
        sentences: sentences of one file.
        output: directory, new or empty.
        vocabulary: path of a WordPiece vocabulary.
        casing: what is done to the text; must suit the vocabulary.
        sequence_length: positions of a row at most; longer sentences go on in further rows.
        overwrite: whether earlier records of named entities may be replaced.

    Returns:
        The description that was written. Its `counts` tell `sentences`, `empty_sentences`,
        `split_sentences`, `words`, `words_without_pieces`, `entities` and `lost_entities`: those
        that begin or end inside a word, or have no pieces, and so have no labels; of these the
        `unscored_entities` are in no word's label, either: scores do not know of them.

    Raises:
        BadInputError: the sentences cannot be used, or the output exists or cannot be written.
        MismatchError: the vocabulary is not of the stated case.
    """
    output = check_output(output, RECORDS, overwrite=overwrite)
    pieces = load_vocabulary(vocabulary)
    check_case(pieces, vocabulary, casing)
    labels = _labels(sentences)
    writer = _Writer(sentences, pieces, casing, labels, sequence_length)
    describe = functools.partial(
        NamedEntitiesInfo, **casing._asdict(), sequence_length=sequence_length, labels=labels
    )
    info = write_task_records(output, RECORDS, pieces, writer.write, describe, overwrite=overwrite)
    _print_summary(output, info, writer.lost)
    return info


def _labels(sentences: SentenceSet) -> list[str]:
    """`O`, and the two labels of each type, the types sorted."""
    if not sentences.sentences:
        raise BadInputError(f"{sentences.path}: holds no sentences")
    known = [sentence.entities for sentence in sentences.sentences]
    without = [number for number, entities in enumerate(known, start=1) if entities is None]
    if 0 < len(without) < len(known):
        raise BadInputError(
            f"{sentences.path}: entry {without[0]}: has no entities, as others have; give all of "
            "them some, an empty list where there are none"
        )
    types = sorted({entity.type for entities in known for entity in entities or ()})
    prefixed = [(schema.BEGIN + name, schema.INSIDE + name) for name in types]
    return [schema.OUTSIDE, *(label for pair in prefixed for label in pair)]


class _Writer:
    """Writes the rows of sentences and counts what became of them."""

    def __init__(
        self,
        sentences: SentenceSet,
        pieces: Sequence[str],
        casing: Casing,
        labels: Sequence[str],
        sequence_length: int,
    ) -> None:
        self.lost: list[str] = []  # the first lost entities, for people
        self._sentences = sentences
        self._labels = {label: number for number, label in enumerate(labels)}
        self._room = sequence_length - 2  # [CLS], [SEP]
        self._tokenize = TextTokenizer(pieces, casing, segment_aware=False)
        self._pack = RowPacker(pieces)
        self._continues = np.array([is_continuation(piece) for piece in pieces])
        names = ("empty_sentences", "split_sentences", "words", "words_without_pieces")
        names += ("entities", "lost_entities", "unscored_entities")
        self._counts = collections.Counter(dict.fromkeys(names, 0))

    def write(self, directory: str) -> Mapping[str, int]:
        """Writes the files into a directory; returns what became of the sentences."""
        sentences = self._sentences.sentences
        tokenized = self._tokenize([sentence.text for sentence in sentences])
        lines = []
        with RowWriter(os.path.join(directory, NamedEntitiesInfo.rows_file)) as writer:
            pairs = zip(sentences, tokenized, strict=True)
            for sentence, text in show_progress(pairs, len(sentences), "sentences"):
                lines.append(self._line(sentence, text))
                self._write_rows(writer, text, self._piece_labels(sentence, text))
        write_json_lines(os.path.join(directory, schema.SENTENCES_FILE), lines)
        counts = {**writer.counts(), "sentences": len(sentences), **self._counts}
        if sentences[0].entities is None:
            counts["training_rows"] = 0
        return counts

    def _write_rows(self, writer: RowWriter, text: TokenizedText, labels: np.ndarray) -> None:
        num_pieces = len(text.token_ids)
        self._counts["empty_sentences"] += not num_pieces
        self._counts["split_sentences"] += num_pieces > self._room
        for start in range(0, max(num_pieces, 1), self._room):
            part = slice(start, start + self._room)
            row, second_start = self._pack(text.token_ids[part])
            lists = {
                ROW_TOKEN_IDS: row,
                schema.LABELS: np.pad(labels[part] + 1, 1).astype(_LABEL_DTYPE),
            }
            raw = {name: values.tobytes() for name, values in lists.items()}
            writer.write(serialize_features({SECOND_START: second_start}, raw), len(row))

    def _piece_labels(self, sentence: Sentence, text: TokenizedText) -> np.ndarray:
        """Numbers of the labels, int64 [T]; -1 for pieces that go on with a word."""
        labels = np.where(self._continues[text.token_ids], -1, 0)
        if sentence.entities is None:
            return np.full_like(labels, -1)
        self._counts["entities"] += len(sentence.entities)
        for entity in sentence.entities:
            span = self._span(entity, text)
            if span is None:
                self._note_lost(sentence, entity)
                continue
            inside = labels[span]
            inside[inside == 0] = self._labels[schema.INSIDE + entity.type]
            inside[0] = self._labels[schema.BEGIN + entity.type]
        return labels

    def _span(self, entity: Entity, text: TokenizedText) -> slice | None:
        """The pieces of an entity; `None` where it has none, or begins or ends inside a word."""
        found = token_span(Location(entity.start, entity.end), text.starts, text.ends)
        if found is None:
            return None
        first, last = found
        is_cut = text.starts[first] < entity.start or text.ends[last] > entity.end
        following = text.token_ids[last + 1 : last + 2]  # must begin a word, too; may be missing
        is_cut |= self._continues[[text.token_ids[first], *following]].any()
        return None if is_cut else slice(first, last + 1)

    def _line(self, sentence: Sentence, text: TokenizedText) -> schema.SentenceLine:
        words = sentence.words
        if words is None:
            words = self._words(text)
        firsts = np.searchsorted(text.starts, [start for start, _ in words]).tolist()
        num_pieces = len(text.token_ids)
        first_pieces = [
            first if first < num_pieces and text.starts[first] < end else -1
            for first, (_, end) in zip(firsts, words, strict=True)
        ]
        self._counts["words"] += len(words)
        self._counts["words_without_pieces"] += first_pieces.count(-1)
        labels = None
        if sentence.entities is not None:
            labels = _word_labels(words, sentence.entities)
            labelled = sum(label.startswith(schema.BEGIN) for label in labels)
            self._counts["unscored_entities"] += len(sentence.entities) - labelled
        return {
            "id": sentence.id,
            "text": sentence.text,
            "words": list(words),
            "first_pieces": first_pieces,
            "num_pieces": num_pieces,
            "labels": labels,
        }

    def _words(self, text: TokenizedText) -> list[tuple[int, int]]:
        """The tokenizer's words: pieces that begin one, with those that go on with it."""
        firsts = np.flatnonzero(~self._continues[text.token_ids])
        lasts = np.append(firsts[1:], len(text.token_ids)) - 1
        return list(
            zip(text.starts[firsts].tolist(), text.ends[lasts[: len(firsts)]].tolist(), strict=True)
        )

    def _note_lost(self, sentence: Sentence, entity: Entity) -> None:
        self._counts["lost_entities"] += 1
        if len(self.lost) < _SHOWN_LOST:
            shown = sentence.text[entity.start : entity.end]
            self.lost.append(
                f"{self._sentences.path}: sentence {sentence.id}: {shown!r} ({entity.type}) begins "
                "or ends inside a word, or has no word pieces"
            )


def _word_labels(words: Sequence[tuple[int, int]], entities: Sequence[Entity]) -> list[str]:
    """The labels of words, from the characters of the entities; none of one that cuts a word."""
    labels = [schema.OUTSIDE] * len(words)
    starts, ends = np.array(words, int).reshape(-1, 2).T
    for entity in entities:
        first = int(np.searchsorted(starts, entity.start))
        last = int(np.searchsorted(ends, entity.end, side="right"))
        begins_inside = first > 0 and ends[first - 1] > entity.start
        if begins_inside or (last < len(words) and starts[last] < entity.end):
            continue
        for number in range(first, last):
            labels[number] = (schema.INSIDE if number > first else schema.BEGIN) + entity.type
    return labels


def _print_summary(output: str, info: NamedEntitiesInfo, lost: Sequence[str]) -> None:
    counts = info.counts
    print_line(
        f"{output}: {counts['sentences']:,} sentences in {counts['rows']:,} rows, "
        f"{counts['entities']:,} entities of {len(info.labels) // 2} types; "
        f"{counts['lost_entities']:,} lost, which begin or end inside a word or have no word pieces"
    )
    for line in lost:
        print_line(f"  {line}")
