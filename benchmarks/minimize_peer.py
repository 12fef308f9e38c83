"""CoNLL to JSON lines as the original's `minimize.py` goes about it, as a peer.

Written here from what that file does: each row is split and each word tokenized in Python, a row is
kept beside the first piece of its word, and speakers, maps, pronouns and clusters are made of those
rows, segment by segment.
"""

import collections
import itertools
import json
import re
from typing import Protocol

_BEGIN = re.compile(r"#begin document \((.*)\); part (\d+)")
_WORD, _TAG, _SPEAKER = 3, 4, 9
_MEANT = {"/.": ".", "/?": "?"}
_SPECIAL_SPEAKER = "[SPL]"

Rows = list[list | None]  # of each piece: the columns and the number of pieces, for a first one


class Tokenizer(Protocol):
    """What is needed of BERT's `FullTokenizer`."""

    def tokenize(self, text: str) -> list[str]:
        """The word pieces of a text."""


def minimize(text: str, tokenizer: Tokenizer, segment_length: int) -> list[str]:
    """A line of JSON for each document.

    Args:
        text: a CoNLL-2012 file.
        tokenizer: BERT's.
        segment_length: positions of a segment.
    """
    documents: list[tuple[str, list[str]]] = []
    for line in text.split("\n"):
        if begin := _BEGIN.match(line):
            documents.append((f"{begin[1]}_{int(begin[2])}", []))
        elif documents and not line.startswith("#end document"):
            documents[-1][1].append(line)
    return [
        json.dumps(_document(key, lines, tokenizer, segment_length)) for key, lines in documents
    ]


def _document(key: str, lines: list[str], tokenizer: Tokenizer, segment_length: int) -> dict:
    pieces: list[str] = []
    rows: Rows = []
    words: list[int] = []
    ends_sentence: list[bool] = []
    ends_word: list[bool] = []
    word = -1
    for line in lines:
        row = line.split()
        if row:
            assert len(row) >= 12
            word += 1
            found = tokenizer.tokenize(_MEANT.get(row[_WORD], row[_WORD]))
            ends_word += [False] * (len(found) - 1) + [True]
            for number, piece in enumerate(found):
                pieces.append(piece)
                rows.append([*row, len(found)] if number == 0 else None)
                ends_sentence.append(False)
                words.append(word)
        elif ends_sentence:
            ends_sentence[-1] = True
    bounds = _segments(ends_sentence, ends_word, segment_length - 2)
    segments = [["[CLS]", *pieces[start:end], "[SEP]"] for start, end in bounds]
    row_segments = [[None, *rows[start:end], None] for start, end in bounds]
    speakers, pronouns = _speakers(row_segments)
    word_map = _word_map(words, bounds)
    sentence_map = _sentence_map(segments, ends_sentence)
    num_positions = sum(map(len, segments))
    assert num_positions == len(word_map) == len(sentence_map) == sum(map(len, speakers))
    return {
        "doc_key": key,
        "sentences": segments,
        "speakers": speakers,
        "constituents": [],
        "ner": [],
        "clusters": _merged(_clusters(row_segments)),
        "sentence_map": sentence_map,
        "subtoken_map": word_map,
        "pronouns": pronouns,
    }


def _segments(
    ends_sentence: list[bool], ends_word: list[bool], limit: int
) -> list[tuple[int, int]]:
    """First piece and the piece after the last of each segment."""
    bounds, first = [], 0
    while first < len(ends_sentence):
        end = min(first + limit, len(ends_sentence)) - 1
        for borders in (ends_sentence, ends_word):
            cut = end
            while cut >= first and not borders[cut]:
                cut -= 1
            if cut >= first:
                break
        bounds.append((first, cut + 1))
        first = cut + 1
    return bounds


def _speakers(segments: list[Rows]) -> tuple[list[list[str]], list[int]]:
    """The speaker of each position, and the positions of pronouns."""
    position, all_speakers, pronouns = 0, [], []
    for rows in segments:
        speakers: list[str] = []
        for place, row in enumerate(rows):
            if row is not None:
                speakers.append(row[_SPEAKER])
                if row[_TAG] == "PRP":
                    pronouns.append(position)
            elif place in (0, len(rows) - 1):
                speakers.append(_SPECIAL_SPEAKER)
            else:
                speakers.append(speakers[-1])
            position += 1
        all_speakers.append(speakers)
    return all_speakers, pronouns


def _word_map(words: list[int], bounds: list[tuple[int, int]]) -> list[int]:
    found, last = [], 0
    for start, end in bounds:
        found += [last, *words[start:end], words[end - 1]]
        last = words[end - 1]
    return found


def _sentence_map(segments: list[list[str]], ends_sentence: list[bool]) -> list[int]:
    found, current, piece = [], 0, 0
    for segment in segments:
        found.append(current)
        for _ in range(len(segment) - 2):
            found.append(current)
            current += int(ends_sentence[piece])
            piece += 1
        found.append(current)
    return found


def _clusters(segments: list[Rows]) -> list[list[tuple[int, int]]]:
    clusters = collections.defaultdict(list)
    open_mentions = collections.defaultdict(list)
    for first, row in enumerate(itertools.chain.from_iterable(segments)):
        if row is None or row[-2] == "-":
            continue
        last = first + row[-1] - 1
        for part in row[-2].split("|"):
            if part[0] != "(":
                cluster = int(part[:-1])
                clusters[cluster].append((open_mentions[cluster].pop(), last))
            elif part[-1] == ")":
                clusters[int(part[1:-1])].append((first, last))
            else:
                open_mentions[int(part[1:])].append(first)
    return list(clusters.values())


def _merged(clusters: list[list[tuple[int, int]]]) -> list[list[tuple[int, int]]]:
    """Those that share a mention as one."""
    merged: list[set[tuple[int, int]]] = []
    for mentions in clusters:
        shared = (known for mention in mentions for known in merged if mention in known)
        existing = next(shared, None)
        if existing is None:
            merged.append(set(mentions))
        else:
            existing.update(mentions)
    mentions = list(itertools.chain.from_iterable(merged))
    assert len(mentions) == len(set(mentions))
    return [list(spans) for spans in merged]
