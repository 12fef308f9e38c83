"""Reads and writes CorefUD: CoNLL-U with coreference in its last column.

CorefUD (Nedoluzhko et al., 2022; format 1.0) writes mentions as brackets in `Entity=` of the column
MISC: `(e5-person-1` begins a mention of entity `e5`, `e5)` ends it, `(e5-person-1)` is one word.
`# global.Entity = eid-etype-head-other` names the fields, of which the entity's id is the first.
`e5[1/2]` is the first of two parts of a discontinuous mention. A row `5.1` is a word that the text
leaves out, such as a pronoun; a row `3-4` shows how the text spells words 3 and 4.

A document keeps the text of its file, so that predictions are written into it. The package `conllu`
reads the same rows, but it drops a comment that comes twice, and its errors do not name the line.
"""

import collections
import dataclasses
import itertools
import os
import re
from collections.abc import Iterator, Mapping, Sequence

from spanbert_tf.errors import BadInputError
from spanbert_tf.tasks.coreference.conll import Document, clean_clusters, mention_borders
from spanbert_tf.tasks.coreference.records import Clusters, DocumentLine, Span

DISCONTINUOUS = "mentions_discontinuous"
EMPTY = "mentions_empty"
_ID, _FORM, _MISC, _NUM_COLUMNS = 0, 1, 9, 10
_ROW = re.compile(r"^\d+(?:[-.]\d+)?\t", re.MULTILINE)
_BEGINNING = re.compile(rf"(?:#[^\n]*+\n|[ \t\r]*+\n)*+{_ROW.pattern}", re.MULTILINE)
_NEW_DOCUMENT = re.compile(r"^#[ \t]*+newdoc\b", re.MULTILINE)
_FIELDS = re.compile(r"^#[ \t]*+global\.Entity[ \t]*+=[ \t]*+([^\n]*)", re.MULTILINE)
_WORD_ID = re.compile(r"\d+")
_RANGE_ID = re.compile(r"\d+-\d+")
_LEFT_OUT_ID = re.compile(r"\d+\.\d+")
_ENTITY = "Entity="
_NOTHING = "_"
_ENTITY_FIELDS = ("eid", "GRP")  # names of the first field; the latter in GUM's own files
_BRACKET = re.compile(r"\((?P<begun>[^()]+)(?P<whole>\)?)|(?P<ended>[^()]+)\)")
_PART = re.compile(r"(.+)\[(\d+)/(\d+)\]")


def is_corefud(text: str) -> bool:
    """Whether a text is CoNLL-U: its first line that is no comment begins with a number and a tab.

    Files of three columns begin so, too, after `#begin document`.
    """
    return _BEGINNING.match(text) is not None


def read_corefud(path: str, text: str) -> list[Document]:
    """Reads the documents of a file, which begin at `# newdoc`.

    Words are those with whole numbers. A mention with other words, too, is that of its words with
    whole numbers. Mentions that are discontinuous, and those without such a word, are left out and
    counted in `Document.left_out`.

    Args:
        path: path of the file, whose name names documents without a name.
        text: its content.

    Raises:
        BadInputError: a line is malformed, or a mention begins or ends alone.
    """
    return_place = text.find("\r\n")
    if return_place >= 0:
        number = 1 + text.count("\n", 0, return_place)
        raise BadInputError(
            f"{path}: line {number}: ends with a carriage return; lines of CoNLL-U end with a line "
            "feed alone: convert the file, for example with dos2unix"
        )
    documents = []
    file_name = os.path.basename(path).split(".conllu")[0]
    num_unnamed = 0
    has_fields = False
    for first_line, part in _parts(text):
        reader = _DocumentReader(path, has_fields)
        reader.read(part, first_line)
        has_fields = reader.has_fields
        if reader.name is None:
            documents.append(reader.document(file_name, num_unnamed, part))
            num_unnamed += 1
        else:
            documents.append(reader.document(reader.name, 0, part))
    return documents


def _parts(text: str) -> Iterator[tuple[int, str]]:
    """Yields the documents of a file, each with the number of its first line."""
    first_row = _ROW.search(text)
    assert first_row is not None  # `is_corefud` found it
    later = _NEW_DOCUMENT.finditer(text, first_row.start())
    borders = [0, *(match.start() for match in later), len(text)]
    line = 1
    for start, end in itertools.pairwise(borders):
        yield line, text[start:end]
        line += text.count("\n", start, end)


@dataclasses.dataclass(frozen=True)
class _Beginning:
    """Where a mention begins."""

    word: int
    line: int  # in the file


class _DocumentReader:
    """Reads one document.

    Args:
        path: path of the file, for errors.
        has_fields: whether `# global.Entity` stood before an earlier document of the file.

    Attributes:
        name: as `# newdoc id` has it.
        has_fields: whether `# global.Entity` stands in this document or before an earlier one.
    """

    def __init__(self, path: str, has_fields: bool) -> None:
        self.name: str | None = None
        self.has_fields = has_fields
        self._path = path
        self._words: list[str] = []
        self._speakers: list[str] = []
        self._speaker = ""
        self._sentence_starts: list[int] = []
        self._begins_sentence = True
        self._mentions: dict[str, list[Span]] = {}
        self._open: dict[str, list[_Beginning]] = collections.defaultdict(list)
        self._left_out = {DISCONTINUOUS: 0, EMPTY: 0}

    def read(self, text: str, first_line: int) -> None:
        """Reads the lines of a document; the first one has the given number in the file."""
        for number, line in enumerate(text.split("\n"), start=first_line):
            if line.startswith("#"):
                self._read_comment(line, number)
            elif line.strip():
                self._read_row(line, number)
            else:
                self._begins_sentence = True
                self._speaker = ""
        for entity, beginnings in self._open.items():
            if beginnings:
                raise BadInputError(
                    f"{self._path}: line {beginnings[0].line}: a mention of entity {entity} begins "
                    "and does not end in its document"
                )

    def document(self, name: str, part: int, text: str) -> Document:
        """Returns the document that was read.

        Args:
            name: its name.
            part: its number among those of the name.
            text: its lines.
        """
        return Document(
            name=name,
            part=part,
            words=self._words,
            sentence_starts=self._sentence_starts,
            speakers=self._speakers,
            clusters=clean_clusters(self._mentions.values()),
            path=self._path,
            conllu=text,
            left_out=self._left_out,
        )

    def _read_comment(self, line: str, number: int) -> None:
        """Reads a name, a speaker, or the fields of `Entity=`; skips other comments."""
        key, _, value = line.removeprefix("#").partition("=")
        key = key.strip()
        value = value.strip()
        if key == "newdoc id":
            self.name = value
        elif key == "speaker":
            self._speaker = value
        elif key == "global.Entity":
            if value.split("-")[0] not in _ENTITY_FIELDS:
                raise BadInputError(
                    f"{self._path}: line {number}: the first field of global.Entity is not eid: "
                    f"{value[:40]!r}"
                )
            self.has_fields = True

    def _read_row(self, line: str, number: int) -> None:
        """Adds the word of a row, and its mentions."""
        place = f"{self._path}: line {number}"
        columns = line.split("\t")
        if len(columns) != _NUM_COLUMNS:
            raise BadInputError(f"{place}: has {len(columns)} columns; CoNLL-U has {_NUM_COLUMNS}")
        word = len(self._words)
        is_range = False
        if _WORD_ID.fullmatch(columns[_ID]):
            if self._begins_sentence:
                self._sentence_starts.append(word)
                self._begins_sentence = False
            self._words.append(columns[_FORM])
            self._speakers.append(self._speaker)
        elif _RANGE_ID.fullmatch(columns[_ID]):
            is_range = True
        elif not _LEFT_OUT_ID.fullmatch(columns[_ID]):
            raise BadInputError(
                f"{place}: {columns[_ID][:40]!r} is no number of a word, such as 5, 5.1 or 5-6"
            )
        for attribute in columns[_MISC].split("|"):
            if not attribute.startswith(_ENTITY):
                continue
            if is_range:
                raise BadInputError(f"{place}: has {_ENTITY}, which stands at single words only")
            if not self.has_fields:
                raise BadInputError(f"{place}: {_ENTITY} stands before any `# global.Entity = eid`")
            # At a word that the text leaves out, mentions begin at the next word, and end at the
            # last one.
            last = len(self._words) - 1
            self._read_brackets(attribute.removeprefix(_ENTITY), word, last, number)

    def _read_brackets(self, brackets: str, first: int, last: int, number: int) -> None:
        """Reads the value of `Entity=`.

        Args:
            brackets: the value.
            first: the word where mentions begin that begin here.
            last: the word where mentions end that end here.
            number: the line.
        """
        position = 0
        while position < len(brackets):
            found = _BRACKET.match(brackets, position)
            if found is None:
                raise BadInputError(
                    f"{self._path}: line {number}: {brackets[position:][:40]!r} is no bracket of "
                    f"{_ENTITY}, such as (e5-person or e5)"
                )
            position = found.end()
            entity = found["ended"]
            if entity is None:
                entity = found["begun"].split("-")[0]
                self._open[entity].append(_Beginning(first, number))
            if found["ended"] or found["whole"]:
                if not self._open[entity]:
                    raise BadInputError(
                        f"{self._path}: line {number}: a mention of entity {entity} ends that has "
                        "not begun in its document"
                    )
                self._add(entity, self._open[entity].pop().word, last)

    def _add(self, entity: str, first: int, last: int) -> None:
        """Adds a mention, or counts it as left out."""
        part = _PART.fullmatch(entity)
        if part and part[3] != "1":
            self._left_out[DISCONTINUOUS] += part[2] == "1"
        elif first > last:
            self._left_out[EMPTY] += 1
        else:
            self._mentions.setdefault(part[1] if part else entity, []).append((first, last))


def as_corefud(lines: Sequence[DocumentLine], predicted: Sequence[Clusters]) -> str:
    """Writes the clusters of documents into the lines that they were read from.

    An entity has an id that no other entity of the documents has, and no other field. `Bridge=` and
    `SplitAnte=` stay as they are.

    Args:
        lines: the documents, all of which have `conllu`.
        predicted: the clusters of each.

    Returns:
        The documents, in which only `Entity=` differs. If the first one has no `# global.Entity`,
        it gets one.
    """
    texts: list[str] = []
    num_entities = 0
    has_fields = False
    for line, clusters in zip(lines, predicted, strict=True):
        text = _with_entities(line["conllu"], clusters, num_entities)
        num_entities += len(clusters)
        if not has_fields and _FIELDS.search(text) is None:
            text = _with_fields(text)
        has_fields = True
        if texts and not texts[-1].endswith("\n\n"):  # of a file without a blank line at its end
            texts[-1] = texts[-1].removesuffix("\n") + "\n\n"
        texts.append(text)
    return "".join(texts)


def _with_fields(text: str) -> str:
    """Inserts `# global.Entity` into a document after `# newdoc`, or as its first line."""
    place = 0
    if _NEW_DOCUMENT.match(text):
        place = text.index("\n") + 1
    return f"{text[:place]}# global.Entity = eid\n{text[place:]}"


def _with_entities(text: str, clusters: Clusters, num_before: int) -> str:
    """Replaces the mentions of a document by those of its predicted clusters.

    Args:
        text: the document.
        clusters: its clusters.
        num_before: number of entities of earlier documents; ids are counted on from there.
    """
    brackets = _brackets_of_words(clusters, num_before)
    lines = text.split("\n")
    word = 0
    for number, line in enumerate(lines):
        if line.startswith("#") or not line.strip():
            continue
        columns = line.split("\t")
        of_row = ""
        if _WORD_ID.fullmatch(columns[_ID]):
            of_row = brackets.get(word, "")
            word += 1
        columns[_MISC] = _with_brackets(columns[_MISC], of_row)
        lines[number] = "\t".join(columns)
    return "\n".join(lines)


def _brackets_of_words(clusters: Clusters, num_before: int) -> Mapping[int, str]:
    """Returns the value of `Entity=` for each word where a mention begins or ends."""
    begun, ended = mention_borders(clusters)
    values = {}
    for word in sorted({*begun, *ended}):
        whole = []
        opening = []
        for last, number in begun.get(word, []):
            entity = f"(e{num_before + number + 1}"
            if last == word:
                whole.append(f"{entity})")
            else:
                opening.append(entity)
        closing = [
            f"e{num_before + number + 1})" for first, number in ended.get(word, []) if first < word
        ]
        # A mention of one word is inside those that end with it, or inside those that begin.
        if closing:
            values[word] = "".join([*whole, *closing, *opening])
        else:
            values[word] = "".join([*opening, *whole])
    return values


def _with_brackets(misc: str, brackets: str) -> str:
    """Replaces the brackets in the column MISC; new ones are inserted in alphabetical order."""
    attributes: list[str] = []
    place = None
    for attribute in misc.split("|"):
        if attribute.startswith(_ENTITY):
            place = len(attributes)
        elif attribute != _NOTHING:
            attributes.append(attribute)
    if brackets:
        if place is None:
            place = sum(attribute.lower() < _ENTITY.lower() for attribute in attributes)
        attributes.insert(place, f"{_ENTITY}{brackets}")
    return "|".join(attributes) or _NOTHING
