"""Adds words of a text to the vocabulary of a preset: `spanbert-tf vocabulary extend`.

The words that save the most pieces are added. A word that occurs n times in the text and that the
preset's tokenizer cuts into k pieces saves n · (k - 1) pieces.
"""

import collections
import heapq
import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import rich.table

from data_prep.text.formats import describe_cells_without_text
from data_prep.text.storage import find_files
from data_prep.text.vocabulary import Paragraphs, split_words
from spanbert_tf.console import table_console
from spanbert_tf.conversion.converted_presets import converted_preset
from spanbert_tf.errors import BadInputError, ConfigurationError
from spanbert_tf.files.output import Output
from spanbert_tf.files.preset import PRESET_KIND
from spanbert_tf.files.text_files import read_text_file
from spanbert_tf.models import SpanBertTokenizer
from spanbert_tf.presets.extension import extend_preset, tokenizer_to_extend
from spanbert_tf.presets.preset import Preset
from spanbert_tf.presets.writing import published_name
from spanbert_tf.terminal import print_line
from spanbert_tf.text.tokenization import WordPieceTokenizer
from spanbert_tf.text.vocabulary import (
    CONTINUATION_PREFIX,
    NUM_MARKERS,
    SPECIAL_TOKENS,
    UNKNOWN_TOKEN,
    TextRules,
)

_MOST_WORDS = 2_000_000  # a gigabyte of text has a million or two; each takes about 120 bytes
_LEAST_COUNT = 2
_SHOWN_WORDS = 20


class WordOfText(NamedTuple):
    """A word of a text.

    Attributes:
        word: the word, normalized by the rules of the tokenizer.
        num_occurrences: how often the word occurs in the text.
        pieces: the word pieces into which the tokenizer cuts the word.
    """

    word: str
    num_occurrences: int
    pieces: list[str]

    @property
    def num_saved(self) -> int:
        """By how many pieces the text becomes shorter if the word becomes one piece."""
        return self.num_occurrences * (len(self.pieces) - 1)


def extend_vocabulary(
    preset: str | os.PathLike,
    output: str,
    *,
    input_pattern: Sequence[str] = (),
    language: str | None = None,
    size: int | None = None,
    words_file: str | None = None,
    num_markers: int = NUM_MARKERS,
    document_separator: str | None = None,
    text_columns: Sequence[str] = (),
    follow_links: bool = False,
    overwrite: bool = False,
) -> int:
    """Writes a preset with words of a text or of a list added to its vocabulary.

    Args:
        preset: directory or name of the preset.
        output: directory of the new preset.
        input_pattern: glob patterns of text files, whose words are counted.
        language: see `converted_preset`.
        size: maximum number of words to add. Only words that occur at least twice and are cut into
            pieces are added.
        words_file: path of a list of words, one a line, in place of `size`.
        num_markers: as in `extend_preset`.
        document_separator: see `DocumentReader`.
        text_columns: see `DocumentReader`.
        follow_links: see `find_files`.
        overwrite: whether an earlier preset may be replaced.

    Returns:
        The number of words that were added.

    Raises:
        BadInputError: a file, the preset or a word of the list cannot be used.
        ConfigurationError: both `size` and `words_file` are given, or neither; or `size` is given
            without `input_pattern`.
    """
    if (size is None) == (words_file is None):
        raise ConfigurationError("give either --size, with --input, or --words")
    if size is not None and not input_pattern:
        raise ConfigurationError("--size: needs --input, the text whose words are counted")
    Output(output, PRESET_KIND, overwrite=overwrite).check()
    opened = Preset(converted_preset(os.fspath(preset), language=language))
    tokenizer = tokenizer_to_extend(opened)
    counts: Mapping[str, int] = {}
    num_without_text = 0
    if input_pattern:
        files = find_files(input_pattern, follow_links=follow_links)
        paragraphs = Paragraphs(files, document_separator, text_columns)
        counts = count_words(paragraphs, tokenizer.text_rules)
        num_without_text = paragraphs.num_without_text
    if words_file is not None:
        listed = read_words(words_file, tokenizer)
        chosen = [
            WordOfText(word, counts.get(word, 0), pieces)
            for word, pieces in zip(listed, cut_words(listed, tokenizer), strict=True)
        ]
    else:
        assert size is not None
        chosen = choose_words(counts, tokenizer, size)
        if not chosen:
            raise BadInputError(f"{', '.join(input_pattern)}: {_why_none(counts, tokenizer)}")
    new_tokenizer = extend_preset(
        opened,
        [word.word for word in chosen],
        output,
        num_markers=num_markers,
        facts={"Vocabulary extended": f"{len(chosen):,} words, from {published_name(str(preset))}"},
        overwrite=overwrite,
    )
    _print_summary(output, chosen, counts, tokenizer, new_tokenizer)
    if num_without_text:
        print_line(describe_cells_without_text(output, num_without_text))
    if size is not None and len(chosen) < size:
        print_line(
            f"{output}: these are fewer than the {size:,} that were asked for: the text has no "
            "more words that occur twice and are cut into pieces"
        )
    return len(chosen)


def count_words(paragraphs: Paragraphs, text_rules: TextRules) -> dict[str, int]:
    """Counts how often each word of a text occurs. The text is normalized and split as in records.

    Words without a letter do not count. If there are too many different words for the memory, those
    that have occurred least so far are dropped, so the counts of rare words may be too low.

    Args:
        paragraphs: the text.
        text_rules: normalization of the text.

    Raises:
        BadInputError: a file cannot be used.
    """
    counts: collections.Counter[str] = collections.Counter()
    for words in split_words(paragraphs.read("counting words"), text_rules):
        counts.update(words)
        if len(counts) > _MOST_WORDS:
            counts = _without_rare_words(counts)
    return {word: count for word, count in counts.items() if any(map(str.isalpha, word))}


def _without_rare_words(counts: Mapping[str, int]) -> collections.Counter[str]:
    """Drops words, the rarest first, so that at most half of `_MOST_WORDS` stay.

    So many words fit again that the next call comes only after a lot of text.
    """
    by_frequency = sorted(counts.values(), reverse=True)
    most_dropped = by_frequency[_MOST_WORDS // 2]
    return collections.Counter(
        {word: count for word, count in counts.items() if count > most_dropped}
    )


def cut_words(words: Sequence[str], tokenizer: SpanBertTokenizer) -> list[list[str]]:
    """Returns the pieces into which a tokenizer cuts each word."""
    if not words:
        return []
    entries = tokenizer.get_vocabulary()
    ids_of_words = tokenizer.tokenize(list(words))  # of a list of texts it returns a list
    return [[entries[index] for index in ids] for ids in ids_of_words]


def choose_words(
    counts: Mapping[str, int], tokenizer: SpanBertTokenizer, size: int
) -> list[WordOfText]:
    """Chooses the words of a text that save the most pieces if they are added to a vocabulary.

    A word with a letter that is not in the vocabulary is `[UNK]`, which is one piece, so it saves
    none.

    Args:
        counts: maps each word to the number of its occurrences.
        tokenizer: tokenizer of the vocabulary.
        size: maximum number of words.

    Returns:
        Words that occur at least twice, ordered from the most saved pieces to the fewest.
    """
    frequent = [word for word, count in counts.items() if count >= _LEAST_COUNT]
    candidates: list[WordOfText] = []
    for word, pieces in zip(frequent, cut_words(frequent, tokenizer), strict=True):
        if len(pieces) > 1 and _is_whole(word, pieces):
            candidates.append(WordOfText(word, counts[word], pieces))
    return heapq.nsmallest(size, candidates, key=lambda word: (-word.num_saved, word.word))


def _is_whole(word: str, pieces: Sequence[str]) -> bool:
    """Whether the pieces make up the word. A tokenizer may split at a rare character."""
    return word == "".join(piece.removeprefix(CONTINUATION_PREFIX) for piece in pieces)


def read_words(path: str, tokenizer: SpanBertTokenizer) -> list[str]:
    """Reads a list of words, one per line, and normalizes them by the rules of a tokenizer.

    Raises:
        BadInputError: the file cannot be read or has no word; or a word is a special token, is
            already in the vocabulary, is twice in the list, consists of several words for the
            tokenizer, or would never become one piece.
    """
    entries = set(tokenizer.get_vocabulary())
    lines: dict[str, int] = {}
    texts = [line.strip() for line in read_text_file(path).splitlines()]
    parts_of_texts = split_words(texts, tokenizer.text_rules)
    for number, (word, parts) in enumerate(zip(texts, parts_of_texts, strict=True), start=1):
        if not word:
            continue
        place = f"{path}: line {number}: {word!r}"
        if word in SPECIAL_TOKENS:
            raise BadInputError(f"{place}: is a special token; remove the line")
        if len(parts) != 1:
            raise BadInputError(
                f"{place}: is {len(parts)} words ({' '.join(parts)}): text is split at spaces, "
                "punctuation and ideographs first; give the words alone"
            )
        (normalized,) = parts
        if normalized in entries:
            raise BadInputError(f"{place}: is in the vocabulary already; remove the line")
        if normalized in lines:
            raise BadInputError(f"{place}: stands in line {lines[normalized]} already; remove it")
        lines[normalized] = number
    if not lines:
        raise BadInputError(f"{path}: has no words; write one a line")
    words = list(lines)
    if in_pieces := words_in_pieces(words, tokenizer):
        word = in_pieces[0]
        raise BadInputError(
            f"{path}: line {lines[word]}: {word!r}: would never become one piece, since it is too "
            "long or has a character at which text is split; remove the line"
        )
    return words


def words_in_pieces(words: Sequence[str], tokenizer: SpanBertTokenizer) -> list[str]:
    """Returns those of some words that a tokenizer would not make one piece if it had them all."""
    entries = [*tokenizer.get_vocabulary(), *words]
    ids = WordPieceTokenizer(entries, tokenizer.text_rules).tokenize(words).to_list()
    return [
        word
        for word, (first, *more) in zip(words, ids, strict=True)
        if more or entries[first] != word
    ]


def _print_summary(
    output: str,
    chosen: Sequence[WordOfText],
    counts: Mapping[str, int],
    before: SpanBertTokenizer,
    after: SpanBertTokenizer,
) -> None:
    """Prints the words that save the most pieces, and the pieces per word before and after."""
    table = rich.table.Table()
    table.add_column("word")
    table.add_column("in the text", justify="right")
    table.add_column("pieces before")
    for word in chosen[:_SHOWN_WORDS]:
        table.add_row(word.word, f"{word.num_occurrences:,}", " ".join(word.pieces))
    table_console().print(table)
    if len(chosen) > _SHOWN_WORDS:
        print_line(f"and {len(chosen) - _SHOWN_WORDS:,} more")
    print_line(f"{output}: {len(chosen):,} words added, {after.vocabulary_size():,} entries")
    if counts:
        rate_before, _ = _pieces_per_word(counts, before)
        rate, unknown_share = _pieces_per_word(counts, after)
        print_line(f"pieces per word of the text: {rate_before:.3f} before, {rate:.3f} now")
        if unknown_share:
            print_line(f"{output}: {_describe_unknown(unknown_share)}")


def _pieces_per_word(
    counts: Mapping[str, int], tokenizer: SpanBertTokenizer
) -> tuple[float, float]:
    """Returns the mean number of pieces of a word, and the share of words that are `[UNK]`."""
    words = list(counts)
    num_pieces = 0
    num_unknown = 0
    for word, pieces in zip(words, cut_words(words, tokenizer), strict=True):
        num_pieces += counts[word] * len(pieces)
        if pieces == [UNKNOWN_TOKEN]:
            num_unknown += counts[word]
    num_words = sum(counts.values())
    return num_pieces / num_words, num_unknown / num_words


def _describe_unknown(share: float) -> str:
    return (
        f"{share:.1%} of the words of the text are {UNKNOWN_TOKEN}, which counts as one piece: the "
        "vocabulary lacks their letters"
    )


def _why_none(counts: Mapping[str, int], tokenizer: SpanBertTokenizer) -> str:
    """Says why a text has no words to add."""
    if not counts:
        return "has no words with a letter; there is nothing to add"
    _, unknown_share = _pieces_per_word(counts, tokenizer)
    if unknown_share:
        return (
            f"no word that occurs twice is cut into pieces; {_describe_unknown(unknown_share)}; "
            "take an encoder for the language of the text"
        )
    return "every word that occurs twice is one piece already; there is nothing to add"
