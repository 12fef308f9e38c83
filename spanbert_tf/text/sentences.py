"""Where the sentences of a text begin: the one rule of records, tasks and raw text.

The rule is Punkt (Kiss and Strunk 2006, "Unsupervised Multilingual Sentence Boundary Detection")
with the parameters that NLTK publishes, for the 19 languages that have some. Text of another
language is split by the rule of Unicode (Standard Annex 29), as ICU has it. Exports cannot run
either: `spanbert_tf.text.positions` has the rule of graphs, which needs no more than regular
expressions.
"""

import functools
import itertools
import json
import pathlib
import re
import string
import unicodedata
from collections.abc import Iterable
from typing import NamedTuple, Protocol

import numpy as np
from icu4py.breakers import SentenceBreaker

from spanbert_tf.text.languages import LANGUAGES

_PARAMETERS = pathlib.Path(__file__).with_name("punkt")
PUNKT_LANGUAGES = frozenset(path.stem for path in _PARAMETERS.glob("*.json"))

_SENTENCE_ENDS = frozenset(".?!")
# What ends a word, and what a word does not begin with; escaped for a set of a regular expression.
_AFTER_WORD = r"""?!)";}\]*:@'({\[\u2018\u2019\u201c\u201d\xab\xbb"""
_NOT_FIRST = r"""("`{\[:;&#*@)}\]\-,"""
_CLOSING = frozenset("\"')]}\u2018\u2019\u201c\u201d\xab\xbb")
_INSIDE_SENTENCE = frozenset(";:,.!?")  # no sentence begins with these
_SEVERAL_MARKS = r"--+|\.\.+|(?:\.\s){2,}\."
_WORD_END = rf"[{_AFTER_WORD}]|{_SEVERAL_MARKS}|,(?:\Z|\s|[{_AFTER_WORD}]|{_SEVERAL_MARKS})"
_TOKEN = re.compile(rf"{_SEVERAL_MARKS}|(?:[^\s{_NOT_FIRST}](?:(?!{_WORD_END})\S)*)|\S")
_CLOSING_MARKS = re.compile(rf"[{re.escape(''.join(sorted(_CLOSING)))}]++(?:\s++|(?=--)|\Z)")
_NUMBER = re.compile(r"-?[.,]?\d[\d,.-]*")
_NUMBER_TYPE = "##number##"
_INITIAL = re.compile(r"[^\W\d]\.")
_WHITE_SPACE = re.compile(r"\s")
_NO_SPACE = re.compile(r"\S")
_LINE_SEPARATORS = re.compile("[\r\x0b\x0c\x85\u2028\u2029]")
_SURROGATES = re.compile("[\ud800-\udfff]")
_REPLACEMENT_CHARACTER = "\ufffd"
_OPENING_CATEGORIES = ("Ps", "Pi")  # opening brackets and quotation marks
# Which forms of a word occurred in the text that the parameters were learned from: a sum of these.
_UPPER_CASE_INSIDE = 4  # inside of a sentence, with an upper-case first letter
_UPPER_CASE = 2 + 4 + 8  # at the start of a sentence, inside of one, or where that is unknown
_LOWER_CASE_AT_START = 16
_LOWER_CASE = 16 + 32 + 64
_NEVER = 0
_MOST_REMEMBERED = 2**16  # words, and contexts
_LONGEST_REMEMBERED = 64  # characters

# What a character is: a sum of these.
_IS_SPACE = 1
_IS_CLOSING = 2
_IS_AFTER_WORD = 4  # ends a word, as white space does
_LAST_SPECIAL = 0x3000  # a wide space, the last character that is any of these
_LINE_END = ord("\n")
_OTHER_LETTER = 27


class SentenceSplitter(Protocol):
    """Splits text into sentences."""

    def find_starts(self, text: str) -> list[int]:
        """Finds where the sentences of a text begin.

        The time is linear in the length of the text, whatever is in it.

        Args:
            text: any; a line end ends a sentence.

        Returns:
            The first character of each sentence, ascending. White space belongs to the sentence
            before it. Empty lines have no sentences.
        """


class PunktSplitter:
    """Splits paragraphs into sentences with the parameters of a language.

    Args:
        abbreviations: words in lower case without their final full stop.
        collocations: pairs of word types; no sentence ends between the two.
        sentence_starters: word types that often begin a sentence.
        orthographic_contexts: word type → the forms that it occurred in, see `_UPPER_CASE`.
    """

    def __init__(
        self,
        abbreviations: frozenset[str],
        collocations: frozenset[tuple[str, str]],
        sentence_starters: frozenset[str],
        orthographic_contexts: dict[str, int],
    ) -> None:
        self.abbreviations = abbreviations
        self.collocations = collocations
        self.sentence_starters = sentence_starters
        self.orthographic_contexts = orthographic_contexts
        self._begins_collocation = frozenset(first for first, _ in collocations)
        self._plain_endings = _find_plain_endings(abbreviations | self._begins_collocation)
        remember = functools.lru_cache(maxsize=_MOST_REMEMBERED)
        self._is_certain_end = remember(self._find_certain_end)
        self._has_end = remember(self._find_end_in)

    def find_starts(self, text: str) -> list[int]:
        """See `SentenceSplitter`.

        All lines are searched at once, with arrays of the text's characters.
        """
        codes = np.frombuffer(f"{text}\n".encode("utf-32-le", "surrogatepass"), "<u4")
        line_ends = np.flatnonzero(codes == _LINE_END)
        line_starts = np.append(0, line_ends[:-1] + 1)
        starts = line_starts[line_starts < line_ends]
        candidates = _find_candidates(text, codes, line_starts, line_ends)
        if len(candidates.places):
            ends = candidates.select(self._are_ends(text, codes, candidates))
            text_ends = _find_text_ends(text, codes, line_starts, line_ends)
            starts = np.sort(np.append(starts, _starts_after(text, codes, text_ends, ends)))
        return starts.tolist()

    def _are_ends(self, text: str, codes: np.ndarray, candidates: "_Candidates") -> np.ndarray:
        """Whether a sentence ends at each candidate, bool [C]."""
        is_end = codes[candidates.places] != ord(".")
        is_end |= self._plain_endings[
            _letter_numbers(codes[candidates.places - 3]),
            _letter_numbers(codes[candidates.places - 2]),
            _letter_numbers(codes[candidates.places - 1]),
        ]
        undecided = np.flatnonzero(~is_end)
        columns = [column.tolist() for column in candidates.select(undecided)]
        is_end[undecided] = [self._ends_at(text, *each) for each in zip(*columns, strict=True)]
        return is_end

    def _ends_at(self, text: str, word_start: int, place: int, next_start: int) -> bool:
        """Whether a sentence ends at a full stop.

        Args:
            text: the text.
            word_start: where the word before the full stop begins.
            place: where the full stop is.
            next_start: where the next token begins.
        """
        if place - word_start <= _LONGEST_REMEMBERED and self._is_certain_end(
            text[word_start:place]
        ):
            return True
        if next_start == place + 1:
            context_end = next_start + 1  # one mark
        else:
            space = _WHITE_SPACE.search(text, next_start)
            context_end = space.start() if space else len(text)
        context = text[word_start:context_end]
        if len(context) > _LONGEST_REMEMBERED:
            return self._find_end_in(context)
        return self._has_end(context)

    def _find_certain_end(self, word: str) -> bool:
        """Whether a sentence ends at the full stop after a word, whatever comes next."""
        if _WHITE_SPACE.search(word):  # not ASCII's; the full stop may be part of `. . .`
            return False
        tokens = _TOKEN.findall(f"{word}.")
        if any(itertools.starmap(self._ends_between, itertools.pairwise(tokens))):
            return True
        token = tokens[-1]
        word_type = _without_full_stop(_word_type(token))
        is_plain = self._ends_alone(token) and not _INITIAL.fullmatch(token)
        is_number = word_type == _NUMBER_TYPE
        return is_plain and not is_number and word_type not in self._begins_collocation

    def _find_end_in(self, context: str) -> bool:
        """Whether a sentence ends inside of a candidate's word and the next token."""
        tokens = _TOKEN.findall(context)
        return any(itertools.starmap(self._ends_between, itertools.pairwise(tokens)))

    def _ends_alone(self, token: str) -> bool:
        """Whether a token looks like the end of a sentence by itself (the type-based stage)."""
        if token in _SENTENCE_ENDS:
            return True
        return token.endswith(".") and not token.endswith("..") and not self._is_abbreviation(token)

    def _is_abbreviation(self, token: str) -> bool:
        """Whether a token with a final full stop is a known abbreviation, also after a hyphen."""
        word = token[:-1].lower()
        return word in self.abbreviations or word.rpartition("-")[2] in self.abbreviations

    def _ends_between(self, token: str, following: str) -> bool:
        """Whether a sentence ends between two tokens (the token-based stage, section 4)."""
        ends_alone = self._ends_alone(token)
        if not token.endswith("."):
            return ends_alone
        word_type = _without_full_stop(_word_type(token))
        following_type = _word_type(following)
        if self._ends_alone(following):
            following_type = _without_full_stop(following_type)
        if (word_type, following_type) in self.collocations:
            return False
        begins_sentence = self._begins_sentence(following, following_type)
        is_initial = _INITIAL.fullmatch(token) is not None
        is_upper_case = following[0].isupper()
        if not ends_alone and not is_initial:  # an abbreviation or an ellipsis
            is_starter = is_upper_case and following_type in self.sentence_starters
            return begins_sentence is True or is_starter
        if is_initial or word_type == _NUMBER_TYPE:
            if begins_sentence is False:
                return False
            forms = self.orthographic_contexts.get(following_type, _NEVER)
            if begins_sentence is None and is_initial and is_upper_case and not forms & _LOWER_CASE:
                return False
        return ends_alone

    def _begins_sentence(self, token: str, word_type: str) -> bool | None:
        """Whether a token begins a sentence by the case of its first letter; `None`: unknown."""
        if token in _INSIDE_SENTENCE:
            return False
        forms = self.orthographic_contexts.get(word_type, _NEVER)
        if token[0].isupper() and forms & _LOWER_CASE and not forms & _UPPER_CASE_INSIDE:
            return True
        is_known = forms & _UPPER_CASE or not forms & _LOWER_CASE_AT_START
        if token[0].islower() and is_known:
            return False
        return None


class _Candidates(NamedTuple):
    """Final marks at which a sentence may end: what comes next is in a word of its own.

    C candidates in ascending order.

    Attributes:
        word_starts: int [C], where the word before each mark begins.
        places: int [C], where the marks are.
        next_starts: int [C], where the tokens after them begin.
    """

    word_starts: np.ndarray
    places: np.ndarray
    next_starts: np.ndarray

    def select(self, chosen: np.ndarray) -> "_Candidates":
        """Returns some of the candidates, by their indices or by bool [C]."""
        return _Candidates(*(column[chosen] for column in self))


def _find_candidates(
    text: str, codes: np.ndarray, line_starts: np.ndarray, line_ends: np.ndarray
) -> _Candidates:
    """Finds the candidates of a text.

    Args:
        text: the text.
        codes: int [characters + 1], its characters and a line end.
        line_starts: where the lines begin.
        line_ends: where they end.
    """
    is_mark = (codes == ord(".")) | (codes == ord("?")) | (codes == ord("!"))
    places = np.flatnonzero(is_mark)
    following = codes[places + 1]
    may_follow = _has_kind(following, _IS_SPACE | _IS_AFTER_WORD) & (following != _LINE_END)
    places = places[may_follow]
    has_space = _has_kind(following[may_follow], _IS_SPACE)
    next_starts = places + 1 + has_space
    for index in np.flatnonzero(has_space & _has_kind(codes[next_starts], _IS_SPACE)).tolist():
        token = _NO_SPACE.search(text, int(next_starts[index]))
        next_starts[index] = token.start() if token else len(text)
    is_in_line = next_starts < line_ends[np.searchsorted(line_ends, places)]
    places = places[is_in_line]
    next_starts = next_starts[is_in_line]

    # Words end with white space of ASCII. At the start of a line it belongs to the first word, as
    # in NLTK.
    is_tab_or_line_end = (codes >= ord("\t")) & (codes <= ord("\r"))
    is_space = is_tab_or_line_end | (codes == ord(" "))
    is_space[line_starts] = line_starts == line_ends
    spaces = np.append(-1, np.flatnonzero(is_space))
    word_starts = spaces[np.searchsorted(spaces, places) - 1] + 1
    # Of several marks in one word, such as those of `"Stop!!"`, the last one counts.
    is_last = np.append(word_starts[1:] >= places[:-1], True)[: len(places)]
    return _Candidates(word_starts, places, next_starts).select(is_last)


def _find_text_ends(
    text: str, codes: np.ndarray, line_starts: np.ndarray, line_ends: np.ndarray
) -> np.ndarray:
    """Finds where the text of each line ends, without the white space behind it."""
    text_ends = line_ends.copy()
    has_space = _has_kind(codes[line_ends - 1], _IS_SPACE) & (line_starts < line_ends)
    for line in np.flatnonzero(has_space).tolist():
        start = int(line_starts[line])
        text_ends[line] = start + len(text[start : line_ends[line]].rstrip())
    return text_ends


def _starts_after(
    text: str, codes: np.ndarray, text_ends: np.ndarray, ends: _Candidates
) -> np.ndarray:
    """Finds where the next sentences begin.

    Args:
        text: the text.
        codes: int [characters + 1], its characters and a line end.
        text_ends: where the text of each line ends.
        ends: the candidates at which sentences end.
    """
    starts = ends.next_starts.copy()
    # The sentences after the last ends of lines end with the text of those lines.
    last = text_ends[np.searchsorted(text_ends, ends.places)]
    limits = np.minimum(last, np.append(ends.places[1:] + 1, len(text)))
    for index in np.flatnonzero(_has_kind(codes[starts], _IS_CLOSING)).tolist():
        # These marks belong to the sentence before them.
        marks = _CLOSING_MARKS.match(text, int(starts[index]), int(limits[index]))
        if marks:
            starts[index] = marks.end()
    return starts[starts < last]  # otherwise the sentence would have nothing else


def _has_kind(codes: np.ndarray, kind: int) -> np.ndarray:
    """Whether characters are of a kind, bool."""
    return (_kinds_of_characters().take(codes, mode="clip") & kind) != 0


@functools.cache
def _kinds_of_characters() -> np.ndarray:
    """Returns what each character is up to `_LAST_SPECIAL`, and then 0 for all others."""
    patterns = {
        _IS_SPACE: r"\s",
        _IS_CLOSING: rf"[{re.escape(''.join(_CLOSING))}]",
        _IS_AFTER_WORD: rf"[{_AFTER_WORD}]",
    }
    characters = "".join(map(chr, range(_LAST_SPECIAL + 1)))
    kinds = np.zeros(len(characters) + 1, np.uint8)
    for kind, pattern in patterns.items():
        for found in re.finditer(pattern, characters):
            kinds[found.start()] |= kind
    return kinds


def _letter_numbers(codes: np.ndarray) -> np.ndarray:
    """Returns the numbers of letters of ASCII, from 1 in either case; others are `_OTHER_LETTER`.

    0 stands for characters that are no letters.
    """
    return _numbers_of_letters().take(codes, mode="clip")


@functools.cache
def _numbers_of_letters() -> np.ndarray:
    """Returns the number of each character of ASCII, and `_OTHER_LETTER` for all others."""
    numbers = np.zeros(129, np.uint8)
    numbers[128] = _OTHER_LETTER
    for number, letter in enumerate(string.ascii_lowercase, start=1):
        numbers[[ord(letter), ord(letter.upper())]] = number
    return numbers


def _find_plain_endings(undecided: Iterable[str]) -> np.ndarray:
    """Finds the words that end a sentence before a full stop in any case, by their last letters.

    Args:
        undecided: words that do not.

    Returns:
        bool by the numbers of the last three letters. The first one may be no letter.
    """
    is_plain = np.ones((_OTHER_LETTER + 1,) * 3, bool)
    is_plain[:, 0] = is_plain[:, :, 0] = False
    is_plain[_OTHER_LETTER] = is_plain[:, _OTHER_LETTER] = is_plain[:, :, _OTHER_LETTER] = False
    for word in undecided:
        last_letters = f"{word:>3}"[-3:]
        codes = np.array([ord(letter) for letter in last_letters])
        is_plain[tuple(_letter_numbers(codes))] = False
    return is_plain


def _word_type(token: str) -> str:
    """Returns a token in lower case; all numbers are of one type."""
    if _NUMBER.fullmatch(token):
        return _NUMBER_TYPE
    return token.lower()


def _without_full_stop(word_type: str) -> str:
    if len(word_type) > 1:
        return word_type.removesuffix(".")
    return word_type


class UnicodeSplitter:
    """Splits text into sentences by Unicode's rule, as ICU has it.

    The rule takes all quotation marks and brackets after a final mark for closing ones. Here those
    that open, and stand directly before the next sentence, belong to it: `。「` is parted.

    Args:
        language: code of the language.
    """

    def __init__(self, language: str) -> None:
        self._language = language

    def find_starts(self, text: str) -> list[int]:
        """See `SentenceSplitter`."""
        text = _LINE_SEPARATORS.sub(" ", text)  # which ends no line here
        text = _SURROGATES.sub(_REPLACEMENT_CHARACTER, text)  # ICU takes Unicode alone
        starts: list[int] = []
        line_start = 0
        for line in text.split("\n"):
            starts += [line_start + start for start in self._find_starts_in_line(line)]
            line_start += len(line) + 1
        return starts

    def _find_starts_in_line(self, line: str) -> list[int]:
        starts: list[int] = []
        end = 0
        for sentence in SentenceBreaker(line, self._language):
            start = end
            if starts and unicodedata.category(line[start - 1]) in _OPENING_CATEGORIES:
                start = max(start - 1, starts[-1] + 1)
            starts.append(start)
            end += len(sentence)
        return starts


@functools.cache
def sentence_splitter(language: str) -> SentenceSplitter:
    """Returns the splitter of a language, the same one to all who ask.

    Args:
        language: one of `spanbert_tf.text.languages.LANGUAGES`.
    """
    if language in PUNKT_LANGUAGES:
        return punkt_splitter(language)
    return UnicodeSplitter(language)


@functools.cache
def punkt_splitter(language: str) -> PunktSplitter:
    """Returns the splitter of one of `PUNKT_LANGUAGES`."""
    parameters = json.loads((_PARAMETERS / f"{language}.json").read_text(encoding="utf-8"))
    contexts = {
        word: int(forms)
        for forms, words in parameters["orthographic_contexts"].items()
        for word in words.split(" ")
    }
    return PunktSplitter(
        frozenset(parameters["abbreviations"]),
        frozenset(map(tuple, parameters["collocations"])),
        frozenset(parameters["sentence_starters"]),
        contexts,
    )


def nltk_model(language: str) -> str | None:
    """Returns the name of NLTK's Punkt model of a language; `None` if it has none."""
    return LANGUAGES[language].lower() if language in PUNKT_LANGUAGES else None


def find_sentence_starts(text: str, language: str) -> list[int]:
    """Finds where the sentences of a text of any number of lines begin.

    Args:
        text: any; a line end ends a sentence.
        language: one of `spanbert_tf.text.languages.LANGUAGES`.

    Returns:
        The first character of each sentence, ascending. Empty lines have none.
    """
    return sentence_splitter(language).find_starts(text)
