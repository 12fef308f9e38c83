"""Reads documents with coreference clusters, and writes predicted clusters.

Three formats are read: CoNLL, CorefUD, and JSON lines as in e2e-coref and the original SpanBERT
code, one document a line. There `sentences` has words or, if `subtoken_map` is given, word pieces
of another vocabulary, which are joined to words. Importing this module does not import TensorFlow.
"""

import dataclasses
import glob
import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NotRequired

import numpy as np
from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12

from spanbert_tf.data.records import ROW_TOKEN_IDS
from spanbert_tf.errors import BadInputError, reason
from spanbert_tf.files.contents import each_once, files_inside, is_inside, refuse_links
from spanbert_tf.files.output import write_text
from spanbert_tf.files.text_files import parse_json, read_text_file
from spanbert_tf.tasks.coreference.conll import (
    MOST_DIGITS,
    Borders,
    Document,
    clean_clusters,
    document_title,
    is_conll,
    mention_borders,
    read_conll,
)
from spanbert_tf.tasks.coreference.corefud import as_corefud, is_corefud, read_corefud
from spanbert_tf.tasks.coreference.records import (
    MENTION_CLUSTERS,
    MENTION_ENDS,
    MENTION_STARTS,
    SEGMENT_LENGTHS,
    Clusters,
    DocumentLine,
    Span,
)
from spanbert_tf.terminal import escape_controls
from spanbert_tf.text.vocabulary import (
    CONTINUATION_PREFIX,
    END_TOKEN,
    START_TOKEN,
    is_continuation,
)

_BEFORE_WILDCARD = re.compile(r"[^*?[]*")
_ENDINGS = ("_conll", ".conll", ".conllu", ".jsonlines", ".jsonl")
# A key is a name and a part, as in `article_7`. Parts have no leading zeros, so `article_007` is a
# name without a part; so is a key with more digits than any part has.
_PART = re.compile(rf"(.*)_(0|[1-9][0-9]{{0,{MOST_DIGITS - 1}}})")
_NO_SPEAKER = ("-", "[SPL]")
_COREFUD_FILE = "predictions.conllu"
WRITTEN_FILES = (
    "predictions.conll",
    "predictions.jsonlines",
    "predictions.txt",
    "resolved.txt",
    _COREFUD_FILE,
)
SINGLETONS_DROPPED = "singletons_dropped"
_SUBSCRIPTS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
# English pronouns.
POSSESSIVE = frozenset(("my", "your", "his", "her", "its", "our", "their"))
_PERSONAL = ("i", "me", "you", "he", "him", "she", "it", "we", "us", "they", "them")
_REFLEXIVE = ("myself", "yourself", "himself", "herself", "itself", "ourselves", "themselves")
PRONOUNS = POSSESSIVE.union(_PERSONAL, _REFLEXIVE)


def read_documents(
    patterns: str | os.PathLike | Sequence[str | os.PathLike],
    *,
    follow_links: bool = False,
    drops_singletons: bool = False,
) -> list[Document]:
    """Reads the documents of one or several files.

    Args:
        patterns: paths of files or directories, or glob patterns. In a directory, all files are
            read whose names end in `_conll`, `.conll`, `.conllu`, `.jsonlines` or `.jsonl`,
            compressed by gzip or not.
        follow_links: whether symbolic links may lead out of a directory, or out of the folder
            before the first wildcard of a pattern.
        drops_singletons: whether clusters of one mention are dropped. `Document.left_out` counts
            them.

    Returns:
        The documents, in the order of the files and within each file.

    Raises:
        BadInputError: there is no such file, a file has none of the formats or is damaged, a
            document occurs twice, or none has words.
    """
    if isinstance(patterns, str | os.PathLike):
        patterns = [patterns]
    names = [os.fspath(pattern) for pattern in patterns]
    documents: list[Document] = []
    for path in itertools.chain.from_iterable(_files(name, follow_links) for name in names):
        text = read_text_file(path)
        if is_conll(text):
            documents += read_conll(path, text)
        elif is_corefud(text):
            documents += read_corefud(path, text)
        elif text.lstrip().startswith("{"):
            documents += _read_json(path, text)
        else:
            raise BadInputError(
                f"{path}: is neither CoNLL (`#begin document …`), nor CoNLL-U (ten columns "
                "separated by tabs), nor JSON lines with `doc_key`"
            )
    _check_documents(", ".join(names), documents)
    if drops_singletons:
        return [_without_singletons(document) for document in documents]
    return documents


def _without_singletons(document: Document) -> Document:
    """Drops and counts the clusters of one mention."""
    clusters = [mentions for mentions in document.clusters if len(mentions) > 1]
    num_dropped = len(document.clusters) - len(clusters)
    left_out = {**document.left_out, SINGLETONS_DROPPED: num_dropped}
    return dataclasses.replace(document, clusters=clusters, left_out=left_out)


def _files(pattern: str, follow_links: bool) -> list[str]:
    is_named = os.path.exists(pattern)  # what the user names may be a link
    found = [pattern] if is_named else sorted(glob.glob(pattern, recursive=True))
    if not found:
        raise BadInputError(f"{pattern}: no such file; put a pattern in quotes")
    if not (is_named or follow_links):
        before_wildcard = _BEFORE_WILDCARD.match(pattern)
        assert before_wildcard is not None  # it matches an empty text, too
        folder = os.path.dirname(before_wildcard[0]) or "."
        refuse_links([path for path in found if not is_inside(path, folder)], folder)
    files = []
    for path in found:
        files += _files_below(path, follow_links) if os.path.isdir(path) else [path]
    return files


def _files_below(directory: str, follow_links: bool) -> list[str]:
    def is_taken(path: str) -> bool:
        return path.removesuffix(".gz").endswith(_ENDINGS)

    try:
        paths = sorted(files_inside(directory, is_taken, follow_links=follow_links))
    except OSError as error:
        raise BadInputError(f"{directory}: cannot be searched ({reason(error)})") from error
    found = each_once(paths)
    if not found:
        endings = ", ".join(_ENDINGS)
        raise BadInputError(f"{directory}: contains no file whose name ends in {endings}")
    return found


def _check_documents(path: str, documents: Sequence[Document]) -> None:
    """Raises `BadInputError` if no document has words, or two have the same key."""
    if not any(document.words for document in documents):
        raise BadInputError(f"{path}: contains no document with words")
    places: dict[str, str] = {}
    for document in documents:
        if document.key in places:
            first = places[document.key]
            where = "occurs twice" if first == document.path else f"also occurs in {first}"
            raise BadInputError(f"{document.path}: document {document.key!r} {where}")
        places[document.key] = document.path


class _Line(TypedDict):
    doc_key: str
    sentences: list[list[str]]
    speakers: NotRequired[list[list[str]]]
    clusters: list[list[list[int]]]
    sentence_map: NotRequired[list[int]]
    subtoken_map: NotRequired[list[int]]


def _read_json(path: str, text: str) -> list[Document]:
    """Reads a file of JSON lines."""
    documents = []
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            place = f"{path}: line {number}"
            documents.append(_document(parse_json(line, _Line, place), place, path))
    return documents


def _document(line: _Line, place: str, path: str) -> Document:
    tokens = list(itertools.chain.from_iterable(line["sentences"]))
    speakers = list(itertools.chain.from_iterable(line.get("speakers") or []))
    if speakers and len(speakers) != len(tokens):
        raise BadInputError(f"{place}: has {len(tokens)} tokens and {len(speakers)} speakers")
    for cluster in line["clusters"]:
        for span in cluster:
            if len(span) != 2 or not 0 <= span[0] <= span[1] < len(tokens):
                raise BadInputError(f"{place}: {span} is not a span of {len(tokens)} tokens")
    speakers = ["" if name in _NO_SPEAKER else name for name in speakers] or [""] * len(tokens)
    clusters: Sequence[Sequence[Sequence[int]]]
    if "subtoken_map" in line:
        words, starts, speakers, clusters = _words_of_pieces(line, tokens, speakers, place)
    else:
        words, clusters = tokens, line["clusters"]
        sizes = [len(sentence) for sentence in line["sentences"] if sentence]
        starts = list(itertools.accumulate(sizes, initial=0))[:-1]
    name, part = found.groups() if (found := _PART.fullmatch(line["doc_key"])) else (None, "0")
    return Document(
        name=name or line["doc_key"],
        part=int(part),
        words=words,
        sentence_starts=starts,
        speakers=speakers,
        clusters=clean_clusters(clusters),
        path=path,
    )


def _words_of_pieces(
    line: _Line, pieces: list[str], speakers: list[str], place: str
) -> tuple[list[str], list[int], list[str], list[list[tuple[int, int]]]]:
    """Joins word pieces to words, without special tokens.

    Returns:
        The words, the index of the first word of each sentence, the speaker of each word, and the
        clusters, whose mentions are spans of words.
    """
    word_map, sentence_map = line["subtoken_map"], line.get("sentence_map")
    if sentence_map is None or not len(word_map) == len(sentence_map) == len(pieces):
        raise BadInputError(
            f"{place}: has {len(pieces)} pieces; subtoken_map and sentence_map must have the same "
            "length"
        )
    words: dict[int, str] = {}
    sentences: dict[int, int] = {}
    names: dict[int, str] = {}
    for piece, word, sentence, name in zip(pieces, word_map, sentence_map, speakers, strict=True):
        if piece in (START_TOKEN, END_TOKEN):
            continue
        words[word] = words.get(word, "") + piece.removeprefix(CONTINUATION_PREFIX)
        sentences.setdefault(word, sentence)
        names.setdefault(word, name)
    number = {word: position for position, word in enumerate(words)}
    if missing := set(word_map) - number.keys():
        raise BadInputError(
            f"{place}: word {min(missing)} of subtoken_map has no piece but special tokens"
        )
    order = list(sentences.values())
    starts = []
    for word, sentence in enumerate(order):
        if word == 0 or sentence != order[word - 1]:
            starts.append(word)
    clusters = []
    for spans in line["clusters"]:
        clusters.append([(number[word_map[start]], number[word_map[end]]) for start, end in spans])
    return list(words.values()), starts, list(names.values()), clusters


def write_predictions(
    lines: Sequence[DocumentLine], predicted: Sequence[Clusters], output: str
) -> None:
    """Writes predicted clusters in all formats of `WRITTEN_FILES`.

    Args:
        lines: the documents.
        predicted: the predicted clusters of each document.
        output: path of an existing directory. The file in CorefUD's format has the documents that
            were read from that format, and is not written if there are none.
    """
    pairs = list(zip(lines, predicted, strict=True))
    for name, show in zip(WRITTEN_FILES, (as_conll, as_json, as_text, as_resolved), strict=False):
        write_text(os.path.join(output, name), "".join(show(*pair) for pair in pairs))
    of_corefud = [(line, clusters) for line, clusters in pairs if "conllu" in line]
    if of_corefud:
        text = as_corefud(*zip(*of_corefud, strict=True))
        write_text(os.path.join(output, _COREFUD_FILE), text)


def as_conll(line: DocumentLine, clusters: Clusters) -> str:
    """Returns a document in the columns of CoNLL-2012. Columns that are not known are empty."""
    starts = set(line["sentence_starts"][1:])
    cells = cluster_cells(len(line["words"]), clusters)
    name = escape_controls(_cell(line["name"], "_"))
    name = f"_{name[1:]}" if name.startswith("#") else name  # a row that begins with # is a comment
    rows = [f"#begin document {document_title(line['name'], line['part'])}"]
    in_sentence = 0
    for number, (word, speaker) in enumerate(zip(line["words"], line["speakers"], strict=True)):
        if number in starts:
            rows.append("")
            in_sentence = 0
        # A word of white space alone would not be a column.
        columns = [name, line["part"], in_sentence, "".join(word.split()) or "_"]
        columns += ["-", "*", "-", "-", "-", _cell(speaker, "-"), "*", cells[number]]
        rows.append("\t".join(map(str, columns)))
        in_sentence += 1
    return "\n".join([*rows, "", "#end document", ""])


def cluster_cells(num_words: int, clusters: Sequence[Iterable[Span]]) -> list[str]:
    """Returns the last column of CoNLL's files, a cell a word. Clusters are numbered from 0."""
    begun, ended = mention_borders(clusters)
    cells = []
    for word in range(num_words):
        brackets = [f"({number}" for end, number in begun[word] if end > word]
        brackets += [f"({number})" for end, number in begun[word] if end == word]
        brackets += [f"{number})" for start, number in ended[word] if start < word]
        cells.append("|".join(brackets) or "-")
    return cells


def _cell(text: str, nothing: str) -> str:
    """Returns a text as one column, whether a reader splits at tabs or at any white space."""
    return "_".join(text.split()) or nothing


def as_json(line: DocumentLine, clusters: Clusters) -> str:
    """Returns a JSON line in the format of e2e-coref, with `predicted_clusters` added."""
    borders = [*line["sentence_starts"], len(line["words"])]

    def by_sentence(values: list[str]) -> list[list[str]]:
        return [values[start:end] for start, end in itertools.pairwise(borders)]

    content = {
        "doc_key": f"{line['name']}_{line['part']}",
        "sentences": by_sentence(line["words"]),
        "speakers": by_sentence(line["speakers"]),
        "clusters": line["clusters"],
        "predicted_clusters": clusters,
    }
    return json.dumps(content, ensure_ascii=False) + "\n"


def as_text(line: DocumentLine, clusters: Clusters) -> str:
    """Returns the sentences with mentions in brackets: `[Alice]₁ said that [she]₁ …`."""
    begun, ended = mention_borders(clusters)
    words = enumerate(line["words"])
    return _titled(line, [_bracketed(word, place, begun, ended) for place, word in words])


def row_in_words(
    line: DocumentLine, row: Mapping[str, np.ndarray], vocabulary: Sequence[str]
) -> Iterator[str]:
    """Yields what a record holds: its segments with mentions in brackets, and its clusters.

    Args:
        line: the line of the same document.
        row: the features of the record.
        vocabulary: entries in order of their ids.
    """
    pieces = [vocabulary[token] for token in row[ROW_TOKEN_IDS]]
    borders = [0, *np.cumsum(row[SEGMENT_LENGTHS]).tolist()]
    clusters: dict[int, list[Span]] = {}
    mentions = (row[name].tolist() for name in (MENTION_CLUSTERS, MENTION_STARTS, MENTION_ENDS))
    for number, start, end in sorted(zip(*mentions, strict=True)):
        clusters.setdefault(number, []).append((start, end))
    begun, ended = mention_borders(list(clusters.values()))

    def words(start: int, end: int, *, marked: bool) -> str:
        shown = ""
        for place in range(start, end):
            piece = pieces[place]
            shown += "" if is_continuation(piece) or place == start else " "
            text = piece.removeprefix(CONTINUATION_PREFIX)
            shown += _bracketed(text, place, begun, ended) if marked else text
        return shown

    num_mentions = sum(map(len, clusters.values()))
    yield (
        f"{_title(line)}: {len(pieces):,} positions in {len(borders) - 1:,} segments, "
        f"{len(clusters):,} clusters of {num_mentions:,} mentions"
    )
    for start, end in itertools.pairwise(borders):
        yield words(start, end, marked=True)
    for number, spans in enumerate(clusters.values(), start=1):
        shown = "; ".join(words(start, end + 1, marked=False) for start, end in spans)
        yield f"  {number}: {shown}"


def _bracketed(text: str, place: int, begun: Borders, ended: Borders) -> str:
    """Returns a word with the brackets of the mentions that begin or end there: `[her]₁`."""
    closing = [f"]{str(number + 1).translate(_SUBSCRIPTS)}" for _, number in ended[place]]
    return "[" * len(begun[place]) + text + "".join(closing)


def as_resolved(line: DocumentLine, clusters: Clusters) -> str:
    """Returns the sentences with pronouns replaced: `she` by `Alice`, `her cat` by `Alice's cat`.

    A pronoun that is a mention is replaced by the first mention of its cluster that is not a
    pronoun. It stays if the cluster has only pronouns, or if it is inside that mention. `her` is
    possessive if a word follows it.
    """
    words = list(line["words"])
    for spans in clusters:
        name = next((span for span in spans if not _is_pronoun(line, span)), None)
        if name is None:
            continue
        text = " ".join(line["words"][name[0] : name[1] + 1])
        for start, end in spans:
            if _is_pronoun(line, (start, end)) and not name[0] <= start <= name[1]:
                is_possessive = _is_possessive(line, start)
                words[start] = f"{text}'s" if is_possessive else text
    return _titled(line, words)


def _is_pronoun(line: DocumentLine, span: Span) -> bool:
    return span[0] == span[1] and line["words"][span[0]].lower() in PRONOUNS


def _is_possessive(line: DocumentLine, number: int) -> bool:
    """Whether a pronoun is possessive, judging by the next word: `her` can also be an object."""
    word = line["words"][number].lower()
    following = line["words"][number + 1 : number + 2]
    return word in POSSESSIVE and bool(following) and following[0][:1].isalnum()


def _titled(line: DocumentLine, words: list[str]) -> str:
    """Returns the name of a document and its sentences, one a line."""
    return "\n".join([_title(line), *_sentences(line, words), "", ""])


def _title(line: DocumentLine) -> str:
    return f"# {escape_controls(line['name'])}, part {line['part']}"


def _sentences(line: DocumentLine, words: list[str]) -> Iterator[str]:
    for start, end in itertools.pairwise([*line["sentence_starts"], len(words)]):
        yield " ".join(map(escape_controls, words[start:end]))
