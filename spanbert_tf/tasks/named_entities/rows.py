"""Sentences with named entities as rows.

An entity's first word piece has the label `B-TYPE`, the first pieces of its other words `I-TYPE`; a
word is what BERT's tokenizer takes for one, so that texts without marked words are read the same.

T pieces of a sentence.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from spanbert_tf.data.rows_info import ROW_TOKEN_IDS, SECOND_START
from spanbert_tf.errors import BadInputError
from spanbert_tf.tasks.named_entities.files import Entity, Sentence, SentenceSet
from spanbert_tf.tasks.named_entities.records import (
    BEGIN,
    INSIDE,
    LABEL_DTYPE,
    LABELS,
    OUTSIDE,
    SENTENCES_FILE,
    NamedEntitiesInfo,
    SentenceLine,
)
from spanbert_tf.tasks.preparation import Row, RowMaker, RowPacker, write_task_records
from spanbert_tf.terminal import show_progress
from spanbert_tf.text.tokenization import TextTokenizer, TokenizedText
from spanbert_tf.text.vocabulary import Casing, is_continuation

_SHOWN_LOST = 5
_LABEL_DTYPE = np.dtype(LABEL_DTYPE).newbyteorder("<")


def write_entities(
    sentences: SentenceSet, output: str, *, sequence_length: int = 512, **options: object
) -> NamedEntitiesInfo:
    """Writes a directory of rows and sentences; it appears whole or not at all.

    Args:
        sentences: sentences of one file.
        output: directory, new or empty.
        sequence_length: positions of a row at most; longer sentences go on in further rows.
        **options: as for `write_task_records`.

    Returns:
        The manifest that was written. Its `counts` tell `sentences`, `empty_sentences`,
        `split_sentences`, `words`, `words_without_pieces`, `entities` and `lost_entities`: those
        that begin or end inside a word, or have no pieces, and so have no labels; of these the
        `unscored_entities` are in no word's label, either: scores do not know of them.

    Raises:
        BadInputError: the sentences cannot be used, or the output exists or cannot be written.
        MismatchError: the vocabulary is not of the stated case.
    """
    maker = EntityRows(sentences)
    return write_task_records(maker, output, sequence_length=sequence_length, **options)


class EntityRows(RowMaker):
    """Makes the rows of sentences and counts what became of them.

    Raises:
        BadInputError: there are no sentences, or only some tell their entities.
    """

    info_class = NamedEntitiesInfo
    title = "records of named entities"

    def __init__(self, sentences: SentenceSet) -> None:
        super().__init__()
        self._sentences = sentences
        self._labels = _labels(sentences)
        self._numbers = {label: number for number, label in enumerate(self._labels)}
        self._lost: list[str] = []  # the first lost entities, for people
        names = ("empty_sentences", "split_sentences", "words", "words_without_pieces")
        names += ("entities", "lost_entities", "unscored_entities")
        self.counts.update(dict.fromkeys(names, 0))

    def rows(self, pieces: Sequence[str], casing: Casing, sequence_length: int) -> Iterator[Row]:
        """A row a sentence; what is longer goes on in further ones."""
        sentences = self._sentences.sentences
        self._continues = np.array([is_continuation(piece) for piece in pieces])
        tokenize, pack = TextTokenizer(pieces, casing, segment_aware=False), RowPacker(pieces)
        pairs = zip(sentences, tokenize([sentence.text for sentence in sentences]), strict=True)
        for sentence, text in show_progress(pairs, len(sentences), "sentences"):
            self.lines[SENTENCES_FILE].append(self._line(sentence, text))
            yield from self._rows(text, self._piece_labels(sentence, text), pack, sequence_length)

    def described(self) -> dict[str, list[str]]:
        """The labels."""
        return {"labels": self._labels}

    def counted(self, written: Mapping[str, int]) -> dict[str, int]:
        """Without known entities there is nothing to train."""
        sentences = self._sentences.sentences
        counts = {**written, "sentences": len(sentences), **self.counts}
        return counts if sentences[0].entities is not None else {**counts, "training_rows": 0}

    def summary(self, info: NamedEntitiesInfo, seconds: float) -> Iterator[str]:
        """What there is, what was lost, and what was mended while reading."""
        counts = info.counts
        yield (
            f"{counts['sentences']:,} sentences in {counts['rows']:,} rows, "
            f"{counts['entities']:,} entities of {len(info.labels) // 2} types; "
            f"{counts['lost_entities']:,} lost, which begin or end inside a word or have no word "
            "pieces"
        )
        yield from (f"  {line}" for line in self._lost)
        for what, count in self._sentences.repairs.items():
            if count:
                yield f"{self._sentences.path}: {what}: {count:,}"

    def _rows(
        self, text: TokenizedText, labels: np.ndarray, pack: RowPacker, sequence_length: int
    ) -> Iterator[Row]:
        num_pieces, room = len(text.token_ids), sequence_length - 2  # [CLS], [SEP]
        self.counts["empty_sentences"] += not num_pieces
        self.counts["split_sentences"] += num_pieces > room
        for start in range(0, max(num_pieces, 1), room):
            part = slice(start, start + room)
            token_ids, second_start = pack(text.token_ids[part])
            of_positions = np.pad(labels[part] + 1, 1).astype(_LABEL_DTYPE)
            lists = {ROW_TOKEN_IDS: token_ids, LABELS: of_positions}
            yield Row({SECOND_START: second_start}, lists)

    def _piece_labels(self, sentence: Sentence, text: TokenizedText) -> np.ndarray:
        """Numbers of the labels, int64 [T]; -1 for pieces that go on with a word."""
        labels = np.where(self._continues[text.token_ids], -1, 0)
        if sentence.entities is None:
            return np.full_like(labels, -1)
        self.counts["entities"] += len(sentence.entities)
        for entity in sentence.entities:
            span = self._span(entity, text)
            if span is None:
                self._note_lost(sentence, entity)
                continue
            inside = labels[span]
            inside[inside == 0] = self._numbers[INSIDE + entity.type]
            inside[0] = self._numbers[BEGIN + entity.type]
        return labels

    def _span(self, entity: Entity, text: TokenizedText) -> slice | None:
        """The pieces of an entity; `None` where it has none, or begins or ends inside a word."""
        found = text.span(entity.start, entity.end)
        if found is None:
            return None
        first, last = found
        is_cut = text.starts[first] < entity.start or text.ends[last] > entity.end
        following = text.token_ids[last + 1 : last + 2]  # must begin a word, too; may be missing
        is_cut |= self._continues[[text.token_ids[first], *following]].any()
        return None if is_cut else slice(first, last + 1)

    def _line(self, sentence: Sentence, text: TokenizedText) -> SentenceLine:
        words = sentence.words
        if words is None:
            words = self._words(text)
        firsts = np.searchsorted(text.starts, [start for start, _ in words]).tolist()
        num_pieces = len(text.token_ids)
        first_pieces = [
            first if first < num_pieces and text.starts[first] < end else -1
            for first, (_, end) in zip(firsts, words, strict=True)
        ]
        self.counts["words"] += len(words)
        self.counts["words_without_pieces"] += first_pieces.count(-1)
        labels = None
        if sentence.entities is not None:
            labels = _word_labels(words, sentence.entities)
            labelled = sum(label.startswith(BEGIN) for label in labels)
            self.counts["unscored_entities"] += len(sentence.entities) - labelled
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
        self.counts["lost_entities"] += 1
        if len(self._lost) < _SHOWN_LOST:
            shown = sentence.text[entity.start : entity.end]
            self._lost.append(
                f"{self._sentences.path}: sentence {sentence.id}: {shown!r} ({entity.type}) begins "
                "or ends inside a word, or has no word pieces"
            )


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
    prefixed = [(BEGIN + name, INSIDE + name) for name in types]
    return [OUTSIDE, *(label for pair in prefixed for label in pair)]


def _word_labels(words: Sequence[tuple[int, int]], entities: Sequence[Entity]) -> list[str]:
    """The labels of words, from the characters of the entities; none of one that cuts a word."""
    labels = [OUTSIDE] * len(words)
    starts, ends = np.array(words, int).reshape(-1, 2).T
    for entity in entities:
        first = int(np.searchsorted(starts, entity.start))
        last = int(np.searchsorted(ends, entity.end, side="right"))
        begins_inside = first > 0 and ends[first - 1] > entity.start
        if begins_inside or (last < len(words) and starts[last] < entity.end):
            continue
        for number in range(first, last):
            labels[number] = (INSIDE if number > first else BEGIN) + entity.type
    return labels
