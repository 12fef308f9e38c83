"""Finds and reads documents: CoNLL's files, and JSON lines; one file, many, or a directory of them.

JSON lines are those of e2e-coref and of the original SpanBERT code, a document each: `sentences`
holds words, or with `subtoken_map` word pieces of some other vocabulary, of which the words are put
together again.
"""

import glob
import itertools
import os
import re
from collections.abc import Sequence
from typing import NotRequired

from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12

from spanbert_tf.errors import BadInputError, reason
from spanbert_tf.files.contents import each_once, files_inside, is_inside, refuse_links
from spanbert_tf.files.text_files import parse_json, read_text_file
from spanbert_tf.tasks.coreference.conll import (
    Document,
    check_documents,
    clean_clusters,
    is_conll,
    read_conll,
)
from spanbert_tf.text.vocabulary import CONTINUATION_PREFIX, END_TOKEN, START_TOKEN

_BEFORE_WILDCARD = re.compile(r"[^*?[]*")
_ENDINGS = ("_conll", ".conll", ".jsonlines", ".jsonl")
_PART = re.compile(r"(.*)_(0|[1-9][0-9]*)")  # as keys are written; `article_007` is a name
_NO_SPEAKER = ("-", "[SPL]")


def read_documents(
    patterns: str | os.PathLike | Sequence[str | os.PathLike],
    *,
    follow_links: bool = False,
) -> list[Document]:
    """The documents of all files, those of a file in its order.

    Args:
        patterns: a path, or a pattern of paths, or several of them; of a directory all files
            below, through links to directories, too, whose names end in `_conll`, `.conll`,
            `.jsonlines` or `.jsonl`, compressed by gzip or not.
        follow_links: whether links may lead out of such a directory, or of the one before a
            pattern's first wildcard.

    Raises:
        BadInputError: nothing fits a pattern, a link leads out, a file cannot be read, or no
            records can be made of the documents.
    """
    if isinstance(patterns, str | os.PathLike):
        patterns = [patterns]
    patterns = list(map(os.fspath, patterns))
    documents: list[Document] = []
    for path in (path for pattern in patterns for path in _files(pattern, follow_links)):
        text = read_text_file(path)
        if is_conll(text):
            documents += read_conll(path, text)
        elif text.lstrip().startswith("{"):
            documents += read_json_documents(path, text)
        else:
            raise BadInputError(
                f"{path}: is neither CoNLL (`#begin document …`) nor JSON lines with `doc_key`"
            )
    check_documents(", ".join(patterns), documents)
    return documents


def _files(pattern: str, follow_links: bool) -> list[str]:
    is_named = os.path.exists(pattern)  # what the user names may be a link
    found = [pattern] if is_named else sorted(glob.glob(pattern, recursive=True))
    if not found:
        raise BadInputError(f"{pattern}: no such file; quote patterns")
    if not (is_named or follow_links):
        folder = os.path.dirname(_BEFORE_WILDCARD.match(pattern)[0]) or "."
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
        raise BadInputError(f"{directory}: holds no file that ends in {', '.join(_ENDINGS)}")
    return found


class _Line(TypedDict):
    doc_key: str
    sentences: list[list[str]]
    speakers: NotRequired[list[list[str]]]
    clusters: list[list[list[int]]]
    sentence_map: NotRequired[list[int]]
    subtoken_map: NotRequired[list[int]]


def read_json_documents(path: str, text: str) -> list[Document]:
    """The documents of a file.

    Args:
        path: path of the file, for errors.
        text: a JSON object a line, with `doc_key`, `sentences`, `clusters` and mostly `speakers`;
            ends of mentions are inclusive.

    Raises:
        BadInputError: a line is wrong; the message names it.
    """
    return [
        _document(parse_json(line, _Line, place), place, path)
        for number, line in enumerate(text.split("\n"), start=1)
        if line.strip()
        for place in [f"{path}: line {number}"]
    ]


def _document(line: _Line, place: str, path: str) -> Document:
    tokens = list(itertools.chain.from_iterable(line["sentences"]))
    speakers = list(itertools.chain.from_iterable(line.get("speakers") or []))
    if speakers and len(speakers) != len(tokens):
        raise BadInputError(f"{place}: has {len(tokens)} tokens and {len(speakers)} speakers")
    for cluster in line["clusters"]:
        for span in cluster:
            if len(span) != 2 or not 0 <= span[0] <= span[1] < len(tokens):
                raise BadInputError(f"{place}: {span} is no mention in {len(tokens)} tokens")
    speakers = ["" if name in _NO_SPEAKER else name for name in speakers] or [""] * len(tokens)
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
    """Words, first words of sentences, speakers and clusters; special tokens are left out."""
    word_map, sentence_map = line["subtoken_map"], line.get("sentence_map")
    if sentence_map is None or not len(word_map) == len(sentence_map) == len(pieces):
        raise BadInputError(
            f"{place}: has {len(pieces)} pieces; subtoken_map and sentence_map must be as long"
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
        raise BadInputError(f"{place}: word {min(missing)} of subtoken_map has no piece")
    order = list(sentences.values())
    starts = [n for n, sentence in enumerate(order) if not n or sentence != order[n - 1]]
    clusters = [
        [(number[word_map[start]], number[word_map[end]]) for start, end in spans]
        for spans in line["clusters"]
    ]
    return list(words.values()), starts, list(names.values()), clusters
