"""JSON lines of e2e-coref and of the original SpanBERT code, a document each.

`sentences` holds words, or with `subtoken_map` word pieces of some other vocabulary, of which the
words are put together again.
"""

import itertools
import re
from typing import NotRequired

from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12

from data_prep.documents.document import Document, clean_clusters
from spanbert_tf.errors import BadInputError
from spanbert_tf.files.json_values import parse_json
from spanbert_tf.text.vocabulary import CONTINUATION_PREFIX, END_TOKEN, START_TOKEN

_PART = re.compile(r"(.*)_(0|[1-9][0-9]*)")  # as keys are written; `article_007` is a name
_NO_SPEAKER = ("-", "[SPL]")


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
