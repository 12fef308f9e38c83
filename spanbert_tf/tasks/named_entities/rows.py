"""Reads sentences with named entities, and makes their rows.

The formats are the columns of CoNLL-2003, tables of lists of words and tags, tables with spans of
characters, and CrossRE's JSON lines. Tables are of any format that `files.tables` reads.

The first word piece of an entity has the label `B-TYPE`, and the first pieces of its other words
have `I-TYPE`. Words are those that the data mark (Devlin et al., 2019, section 5.3). Spans of
characters mark no words, so there they are the words of BERT's tokenizer.

In languages without spaces between words, raw text shows neither: there each piece has a label, and
words that the data mark are joined as the language is written.

Dimensions: T pieces of a sentence.
"""

import dataclasses
import itertools
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, NotRequired

import numpy as np
from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12

from spanbert_tf.data.records import ROW_TOKEN_IDS, SECOND_START
from spanbert_tf.errors import BadInputError
from spanbert_tf.files.tables import read_rows
from spanbert_tf.files.text_files import check_json_value, join_words, read_text_file
from spanbert_tf.tasks.named_entities.records import (
    BEGIN,
    INSIDE,
    LABEL_DTYPE,
    LABELS,
    OUTSIDE,
    SENTENCES_FILE,
    LabelledWords,
    NamedEntitiesManifest,
    SentenceLine,
)
from spanbert_tf.tasks.preparation import Row, RowMaker, RowPacker, write_task_records
from spanbert_tf.terminal import show_progress
from spanbert_tf.text.languages import LETTER_WITHOUT_SPACES, WITHOUT_SPACES
from spanbert_tf.text.tokenization import TextTokenizer, TokenizedText
from spanbert_tf.text.vocabulary import TextRules, begin_words

_DOCUMENT = "-DOCSTART-"
_TAG_COLUMNS: tuple[Literal["ner_tags", "tags"], ...] = ("ner_tags", "tags")
_COLUMNS = re.compile("[ \t]+")  # other kinds of space can be part of a word
# Prefixes of tags: B and I of BIO; in BIOES, E ends an entity, and S is an entity of one word.
_BEGINS = "BS"
_GOES_ON = "IE"
_SHOWN_LOST = 5
_LABEL_DTYPE = np.dtype(LABEL_DTYPE).newbyteorder("<")


class Entity(NamedTuple):
    """A named entity: its first character, the character after its last, and its type."""

    start: int
    end: int
    type: str


@dataclasses.dataclass(frozen=True)
class Sentence:
    """A sentence, or another text that is tagged as a whole.

    Attributes:
        id: id of the sentence.
        text: its text.
        words: characters of the words, ends exclusive; `None` for the words of BERT's tokenizer.
        entities: the entities, which do not overlap; `None` if they are not known.
    """

    id: str
    text: str
    words: tuple[tuple[int, int], ...] | None
    entities: tuple[Entity, ...] | None


@dataclasses.dataclass(frozen=True)
class SentenceSet:
    """The sentences of a file.

    Attributes:
        path: path of the file.
        sentences: the sentences in the order of the file.
        repairs: what was repaired while reading → how often.
    """

    path: str
    sentences: list[Sentence]
    repairs: dict[str, int] = dataclasses.field(default_factory=dict)


def _sentence_of_words(
    identifier: str, words: Sequence[str], spans: Sequence[tuple[int, int, str]] | None
) -> Sentence:
    """Joins words to a sentence with spaces between them."""
    text, places = join_words(words)
    entities = None
    if spans is not None:
        entities = tuple(
            Entity(places[first][0], places[last][1], kind) for first, last, kind in sorted(spans)
        )
    return Sentence(identifier, text, tuple(places), entities)


def _without_spaces(sentence: Sentence) -> Sentence:
    """Takes out the spaces beside characters of scripts that have none between words."""
    text = sentence.text
    is_kept = np.ones(len(text) + 1, bool)
    for place, character in enumerate(text):
        if character == " ":
            around = text[max(place - 1, 0) : place + 2]
            is_kept[place] = not any(map(_needs_no_space, around))
    kept = "".join(itertools.compress(text, is_kept))
    # The new place of a character is the number of characters before it that stay.
    new_places = (np.cumsum(is_kept) - is_kept).tolist()
    words = tuple((new_places[start], new_places[end]) for start, end in sentence.words or ())
    entities = sentence.entities
    if entities is not None:
        entities = tuple(
            Entity(new_places[start], new_places[end], name) for start, end, name in entities
        )
    return Sentence(sentence.id, kept, words, entities)


def _needs_no_space(character: str) -> bool:
    """Whether a character has no spaces around it: such letters, and wide marks such as `。`."""
    is_wide = unicodedata.east_asian_width(character) in ("W", "F")
    return is_wide or LETTER_WITHOUT_SPACES.match(character) is not None


def spans_of_tags(tags: Sequence[str], place: str) -> tuple[list[tuple[int, int, str]], int]:
    """Reads the entities of words that are tagged in BIO or BIOES.

    As in `conlleval`, a tag that continues an entity which has not begun begins it. So the original
    CoNLL-2003 files, which have `B-` only between adjacent entities, are read correctly.

    Returns:
        The entities: first word, last word and type; and the number of tags `I-` or `E-` that began
        one.
    """
    spans: list[list] = []
    is_open = False
    num_begun = 0
    for index, tag in enumerate(tags):
        if tag == "O":
            is_open = False
            continue
        kind, dash, name = tag.partition("-")
        if not dash or not name or kind not in (*_BEGINS, *_GOES_ON):
            raise BadInputError(
                f"{place}: word {index + 1}: {tag!r} is no tag of BIO or BIOES, such as B-PER"
            )
        continues = kind in _GOES_ON and is_open and spans[-1][2] == name
        num_begun += kind in _GOES_ON and not continues
        if continues:
            spans[-1][1] = index
        else:
            spans.append([index, index, name])
        is_open = kind in "BI"
    return [(first, last, name) for first, last, name in spans], num_begun


def _check_spans(spans: Sequence[tuple[int, int, str]], length: int, place: str) -> None:
    """Refuses spans (ends inclusive) that are outside of the sentence or overlap."""
    last_end = -1
    for start, end, name in sorted(spans):
        shown = f"{place}: entity {name!r} from {start} to {end}"
        if not 0 <= start <= end < length:
            raise BadInputError(f"{shown}: is not in its sentence of {length}; mend its borders")
        if start <= last_end:
            raise BadInputError(f"{shown}: overlaps the one before it; keep one of them")
        if not name or any(character.isspace() for character in name):
            raise BadInputError(f"{shown}: its type is empty or has a space")
        last_end = end


class _Span(TypedDict):
    start: int
    end: int
    label: str


class _Line(TypedDict):
    text: str
    id: NotRequired[str | int]
    entities: NotRequired[list[_Span] | None]


class _TaggedLine(TypedDict):
    tokens: list[str]
    id: NotRequired[str | int]
    ner_tags: NotRequired[list[str | int | None] | None]
    tags: NotRequired[list[str | int | None] | None]


class _CrossReLine(TypedDict):
    doc_key: str
    sentence: list[str]
    ner: list[list]


def read_conll2003(path: str) -> SentenceSet:
    """Reads columns: a word a line, its tag (BIO or BIOES) last, a blank line after a sentence."""
    sentences: list[Sentence] = []
    rows: list[list[str]] = []
    num_begun = 0
    first_line = 1
    for number, line in enumerate([*read_text_file(path).split("\n"), ""], start=1):
        columns = _COLUMNS.split(line.strip(" \t\r"))
        if columns != [""] and columns[0] != _DOCUMENT:
            if len(columns) < 2:
                raise BadInputError(
                    f"{path}: line {number}: {line!r} has one column; a word and its tag are needed"
                )
            first_line = first_line if rows else number
            rows.append(columns)
        elif rows:
            place = f"{path}: line {first_line}"
            spans, begun = spans_of_tags([row[-1] for row in rows], place)
            words = [row[0] for row in rows]
            sentences.append(_sentence_of_words(f"line {first_line}", words, spans))
            num_begun += begun
            rows = []
    return SentenceSet(path, sentences, {"entities begun by I- or E-": num_begun})


def read_entity_lines(path: str) -> SentenceSet:
    """Reads a table of `{"text": …, "entities": [{"start": …, "end": …, "label": …}]}`.

    Characters are counted from 0, and the end is exclusive. An `id` is kept. Rows without
    `entities` can only be predicted.
    """
    sentences = []
    for row in read_rows(path):
        line = check_json_value(row.values, _Line, row.place)
        spans = line.get("entities")
        entities = None
        if spans is not None:
            found = [(span["start"], span["end"] - 1, span["label"]) for span in spans]
            _check_spans(found, len(line["text"]), row.place)
            entities = tuple(Entity(start, end + 1, label) for start, end, label in sorted(found))
        identifier = str(line.get("id", f"{row.unit} {row.number}"))
        sentences.append(Sentence(identifier, line["text"], None, entities))
    return SentenceSet(path, sentences)


def read_crossre(path: str) -> SentenceSet:
    """Reads the JSON lines of CrossRE (Bassignana and Plank, 2022), without its relations."""
    sentences = []
    for row in read_rows(path):
        line = check_json_value(row.values, _CrossReLine, row.place)
        place = f"{row.place} ({line['doc_key']})"
        for span in line["ner"]:
            if [type(value) for value in span] != [int, int, str]:
                raise BadInputError(f"{place}: ner: {span} is not [first, last, type]")
        spans = [(first, last, name) for first, last, name in line["ner"]]
        _check_spans(spans, len(line["sentence"]), place)
        sentences.append(_sentence_of_words(line["doc_key"], line["sentence"], spans))
    return SentenceSet(path, sentences)


def read_tagged_tokens(path: str) -> SentenceSet:
    """Reads a table of lists of words and of their tags, as `datasets` has CoNLL-2003.

    The words are `tokens`, the tags (BIO or BIOES) `ner_tags` or `tags`. Numbers for tags are read
    where the file has their names. An `id` is kept. Rows without tags can only be predicted.
    """
    sentences = []
    num_begun = 0
    for row in read_rows(path, ["tokens"], ["id", *_TAG_COLUMNS]):
        line = check_json_value(row.values, _TaggedLine, row.place)
        tags = next((line[name] for name in _TAG_COLUMNS if line.get(name) is not None), None)
        spans = None
        if tags is not None:
            spans, begun = _spans_of_row(line["tokens"], tags, row.place)
            num_begun += begun
        identifier = str(line.get("id", f"{row.unit} {row.number}"))
        sentences.append(_sentence_of_words(identifier, line["tokens"], spans))
    return SentenceSet(path, sentences, {"entities begun by I- or E-": num_begun})


def _spans_of_row(
    words: Sequence[str], tags: Sequence[str | int | None], place: str
) -> tuple[list[tuple[int, int, str]], int]:
    """Returns the entities of a row, as `spans_of_tags`."""
    if len(words) != len(tags):
        raise BadInputError(f"{place}: has {len(words)} tokens and {len(tags)} tags")
    for tag in tags:
        if not isinstance(tag, str):
            raise BadInputError(
                f"{place}: the tag {tag} has no name in the file; write names, such as B-PER"
            )
    return spans_of_tags([str(tag) for tag in tags], place)


READERS: Mapping[str, Callable[[str], SentenceSet]] = {
    "conll": read_conll2003,
    "conll2003": read_conll2003,
    "jsonlines": read_entity_lines,
    "tokens": read_tagged_tokens,
    "crossre": read_crossre,
}


def write_entities(
    sentences: SentenceSet, output: str, *, sequence_length: int = 512, **options: Any
) -> NamedEntitiesManifest:
    """Writes the records of sentences, completely or not at all.

    Args:
        sentences: the sentences of a file.
        output: directory that is new or empty.
        sequence_length: largest number of positions of a row.
        **options: as for `write_task_records`.

    Returns:
        The manifest.

    Raises:
        BadInputError: the sentences cannot be used, or the output exists or cannot be written.
    """
    maker = EntityRows(sentences)
    return write_task_records(maker, output, sequence_length=sequence_length, **options)


class EntityRows(RowMaker[NamedEntitiesManifest]):
    """Makes the rows of sentences and counts their entities.

    Entities that begin or end inside a word, or have no word pieces, get no labels; they are
    counted as `lost_entities`. Those that also have no label of a word are counted as
    `unscored_entities`: scores leave them out.

    Raises:
        BadInputError: there are no sentences, or the entities of only some are known.
    """

    manifest_class = NamedEntitiesManifest
    title = "records of named entities"

    def __init__(self, sentences: SentenceSet) -> None:
        super().__init__()
        self._sentences = sentences
        self._labels = _labels(sentences)
        self._label_ids = {label: label_id for label_id, label in enumerate(self._labels)}
        self._lost: list[str] = []  # descriptions of the first lost entities
        self.counts.update(
            sentences=len(sentences.sentences),
            empty_sentences=0,
            split_sentences=0,
            words=0,
            words_without_pieces=0,
            entities=0,
            lost_entities=0,
            unscored_entities=0,
        )
        self.is_labelled = sentences.sentences[0].entities is not None
        self._label_counts = np.zeros(len(self._labels), int)

    def rows(
        self, pieces: Sequence[str], text_rules: TextRules, sequence_length: int
    ) -> Iterator[Row]:
        """Yields a row for each sentence, and further rows for a sentence that is too long."""
        sentences = self._sentences.sentences
        has_words = sentences[0].words is not None
        self._words: LabelledWords = "marked" if has_words else "tokenizer"
        self._begins_word = begin_words(pieces)
        if text_rules.language in WITHOUT_SPACES:
            if has_words:
                sentences = list(map(_without_spaces, sentences))
            self._words = "pieces"
            self._begins_word[:] = True
        tokenize = TextTokenizer(pieces, text_rules, segment_aware=False)
        pack = RowPacker(pieces)
        lines: list[SentenceLine] = []
        self.lines[SENTENCES_FILE] = lines
        pairs = zip(sentences, tokenize([sentence.text for sentence in sentences]), strict=True)
        for sentence, text in show_progress(pairs, len(sentences), "sentences"):
            line = self._line(sentence, text)
            lines.append(line)
            if self._words == "marked":
                labels = self._labels_of_words(sentence, line)
            else:
                labels = self._piece_labels(sentence, text)
            self._label_counts += np.bincount(labels[labels >= 0], minlength=len(self._labels))
            yield from self._rows(text, labels, pack, sequence_length)

    def described(self) -> dict[str, Any]:
        """Returns the labels and their counts, and the kind of words that have labels."""
        return {
            "labels": self._labels,
            "words": self._words,
            "label_counts": self._label_counts.tolist(),
        }

    def summary(self, manifest: NamedEntitiesManifest, seconds: float) -> Iterator[str]:
        """Yields the numbers of sentences and entities, the lost entities, and repairs."""
        counts = manifest.counts
        num_lost = counts["lost_entities"]
        lost = f"; {num_lost:,} lost, which begin or end inside a word or have no word pieces"
        yield (
            f"{counts['sentences']:,} sentences in {counts['rows']:,} rows, "
            f"{counts['entities']:,} entities of {len(manifest.labels) // 2} types"
            f"{lost if num_lost else ''}"
        )
        yield from (f"  {line}" for line in self._lost)
        for repair, count in self._sentences.repairs.items():
            if count:
                yield f"{self._sentences.path}: {repair}: {count:,}"

    def _rows(
        self, text: TokenizedText, labels: np.ndarray, pack: RowPacker, sequence_length: int
    ) -> Iterator[Row]:
        """Yields the rows of a sentence, and counts empty and split sentences."""
        num_pieces = len(text.token_ids)
        room = sequence_length - 2  # without [CLS] and [SEP]
        self.counts["empty_sentences"] += not num_pieces
        self.counts["split_sentences"] += num_pieces > room
        for start in range(0, max(num_pieces, 1), room):
            part = slice(start, start + room)
            token_ids, second_start = pack(text.token_ids[part])
            row_labels = np.pad(labels[part] + 1, 1).astype(_LABEL_DTYPE)
            lists = {ROW_TOKEN_IDS: token_ids, LABELS: row_labels}
            yield Row({SECOND_START: second_start}, lists)

    def _labels_of_words(self, sentence: Sentence, line: SentenceLine) -> np.ndarray:
        """Returns the labels of words at their first pieces, int64 [T]; -1 for other pieces.

        An entity begins at its first word that has pieces.
        """
        labels = np.full(line["num_pieces"], -1)
        if sentence.entities is None:
            return labels
        self.counts["entities"] += len(sentence.entities)
        first_pieces = np.array(line["first_pieces"], int)
        labels[first_pieces[first_pieces >= 0]] = 0
        starts = [start for start, _ in line["words"]]
        for entity in sentence.entities:
            first, limit = np.searchsorted(starts, (entity.start, entity.end))
            pieces = first_pieces[first:limit]
            pieces = pieces[pieces >= 0]
            if not len(pieces):
                self._note_lost(sentence, entity)
                continue
            labels[pieces] = self._label_ids[INSIDE + entity.type]
            labels[pieces[0]] = self._label_ids[BEGIN + entity.type]
        return labels

    def _piece_labels(self, sentence: Sentence, text: TokenizedText) -> np.ndarray:
        """Returns the labels of the tokenizer's words, as `_labels_of_words`."""
        labels = np.where(self._begins_word[text.token_ids], 0, -1)
        if sentence.entities is None:
            return np.full_like(labels, -1)
        self.counts["entities"] += len(sentence.entities)
        for entity in sentence.entities:
            span = self._span(entity, text)
            if span is None:
                self._note_lost(sentence, entity)
                continue
            inside = labels[span]
            inside[inside == 0] = self._label_ids[INSIDE + entity.type]
            inside[0] = self._label_ids[BEGIN + entity.type]
        return labels

    def _span(self, entity: Entity, text: TokenizedText) -> slice | None:
        """Returns the pieces of an entity; `None` without pieces, or if it cuts a word."""
        found = text.span(entity.start, entity.end)
        if found is None:
            return None
        first, last = found
        is_cut = text.starts[first] < entity.start or text.ends[last] > entity.end
        following = text.token_ids[last + 1 : last + 2]  # empty after the last piece
        is_cut |= not self._begins_word[[text.token_ids[first], *following]].all()
        return None if is_cut else slice(first, last + 1)

    def _line(self, sentence: Sentence, text: TokenizedText) -> SentenceLine:
        """Returns the JSON line of a sentence, and counts its words."""
        words = self._words_of(text) if sentence.words is None else sentence.words
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
            "words": [[start, end] for start, end in words],
            "first_pieces": first_pieces,
            "num_pieces": num_pieces,
            "labels": labels,
        }

    def _words_of(self, text: TokenizedText) -> Sequence[tuple[int, int]]:
        """Returns the characters of the tokenizer's words, ends exclusive."""
        firsts = np.flatnonzero(self._begins_word[text.token_ids])
        lasts = np.append(firsts[1:], len(text.token_ids))[: len(firsts)] - 1
        starts = text.starts[firsts].tolist()
        ends = text.ends[lasts].tolist()
        return list(zip(starts, ends, strict=True))

    def _note_lost(self, sentence: Sentence, entity: Entity) -> None:
        """Counts a lost entity, and describes the first ones."""
        self.counts["lost_entities"] += 1
        if len(self._lost) < _SHOWN_LOST:
            shown = sentence.text[entity.start : entity.end]
            self._lost.append(
                f"{self._sentences.path}: {sentence.id}: {shown!r} ({entity.type}) begins or ends "
                "inside a word, or has no word pieces"
            )


def _labels(sentences: SentenceSet) -> list[str]:
    """Returns `O`, and `B-TYPE` and `I-TYPE` of each type, the types sorted."""
    if not sentences.sentences:
        raise BadInputError(f"{sentences.path}: holds no sentences")
    known = [sentence.entities for sentence in sentences.sentences]
    without = [number for number, entities in enumerate(known, start=1) if entities is None]
    if 0 < len(without) < len(known):
        raise BadInputError(
            f"{sentences.path}: entry {without[0]}: has no entities, as others have; give all of "
            "them some, an empty list where there are none"
        )
    types: set[str] = set()
    for entities in known:
        types.update(entity.type for entity in entities or ())
    labels = [OUTSIDE]
    for name in sorted(types):
        labels += [BEGIN + name, INSIDE + name]
    return labels


def _word_labels(words: Sequence[tuple[int, int]], entities: Sequence[Entity]) -> list[str]:
    """Returns the labels of words. An entity that begins or ends inside a word gives no labels."""
    labels = [OUTSIDE] * len(words)
    starts, ends = np.array(words, int).reshape(-1, 2).T
    for entity in entities:
        first = int(np.searchsorted(starts, entity.start))
        last = int(np.searchsorted(ends, entity.end, side="right"))
        begins_inside = first > 0 and ends[first - 1] > entity.start
        if begins_inside or (last < len(words) and starts[last] < entity.end):
            continue
        for index in range(first, last):
            prefix = BEGIN if index == first else INSIDE
            labels[index] = prefix + entity.type
    return labels
