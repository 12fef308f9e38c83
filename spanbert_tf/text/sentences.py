"""Where the sentences of a text begin: the one rule of records, tasks and raw text.

The rule is Punkt (Kiss and Strunk 2006, "Unsupervised Multilingual Sentence Boundary Detection")
with the parameters that NLTK publishes. Exports cannot run it: `spanbert_tf.text.positions` has the
rule of graphs, which needs no more than regular expressions.
"""

import functools
import itertools
import json
import pathlib
import re
from collections.abc import Iterator
from typing import Literal, get_args

# The codes of `--language`; each has a file `punkt_<code>.json` beside this one.
Language = Literal["en"]
LANGUAGES: tuple[Language, ...] = get_args(Language)
DEFAULT_LANGUAGE: Language = "en"

_SENTENCE_ENDS = frozenset(".?!")
# What ends a word, and what a word does not begin with; escaped for a set of a regular expression.
_AFTER_WORD = r"""?!)";}\]*:@'({\[\u2018\u2019\u201c\u201d\xab\xbb"""
_NOT_FIRST = r"""("`{\[:;&#*@)}\]\-,"""
_CLOSING = frozenset("\"')]}\u2018\u2019\u201c\u201d\xab\xbb")
_INSIDE_SENTENCE = frozenset(";:,.!?")  # no sentence begins with these
# Where a sentence may end: what comes next is in a word of its own. White space is matched, too, so
# that a match ends where the next sentence would begin.
_BEFORE_TOKEN = rf"(?:\s++(?=\S)|(?=[{_AFTER_WORD}]))"
_CANDIDATE = re.compile(rf"[.?!]{_BEFORE_TOKEN}")
_FULL_STOP = re.compile(rf"\.{_BEFORE_TOKEN}")  # which is found ten times as fast as any of three
_SEVERAL_MARKS = r"--+|\.\.+|(?:\.\s){2,}\."
_WORD_END = rf"[{_AFTER_WORD}]|{_SEVERAL_MARKS}|,(?:\Z|\s|[{_AFTER_WORD}]|{_SEVERAL_MARKS})"
_TOKEN = re.compile(rf"{_SEVERAL_MARKS}|(?:[^\s{_NOT_FIRST}](?:(?!{_WORD_END})\S)*)|\S")
_CLOSING_MARKS = re.compile(rf"[{re.escape(''.join(sorted(_CLOSING)))}]++(?:\s++|(?=--)|\Z)")
_NUMBER = re.compile(r"-?[.,]?\d[\d,.-]*")
_NUMBER_TYPE = "##number##"
_INITIAL = re.compile(r"[^\W\d]\.")
_LETTERS_AT_END = re.compile(r"(?<![^\W\d_])[^\W\d_]{2,}+\Z")
_WHITE_SPACE = re.compile(r"\s")
# All white space of ASCII counts as a space. A paragraph has no line ends.
_OTHER_SPACES = "\t\n\r\v\f"
# Which forms of a word occurred in the text that the parameters were learned from: a sum of these.
_UPPER_CASE_INSIDE = 4  # inside of a sentence, with an upper-case first letter
_UPPER_CASE = 2 + 4 + 8  # at the start of a sentence, inside of one, or where that is unknown
_LOWER_CASE_AT_START = 16
_LOWER_CASE = 16 + 32 + 64
_NEVER = 0
_MOST_REMEMBERED = 2**16  # words, and contexts
_LONGEST_REMEMBERED = 64  # characters


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
        undecided = map(_LETTERS_AT_END.search, abbreviations | self._begins_collocation)
        self._undecided_letters = frozenset(letters[0] for letters in undecided if letters)
        remember = functools.lru_cache(maxsize=_MOST_REMEMBERED)
        self._is_certain_end = remember(self._find_certain_end)
        self._has_end = remember(self._find_end_in)

    def find_starts(self, paragraph: str) -> list[int]:
        """Finds where the sentences of a paragraph begin.

        The time is linear in the length of the paragraph, whatever is in it.

        Args:
            paragraph: a text; a line end in it is white space.

        Returns:
            The first character of each sentence, ascending; the first is 0. White space belongs to
            the sentence before it. An empty paragraph has no sentences.
        """
        if not paragraph:
            return []
        text = paragraph
        for character in _OTHER_SPACES:
            if character in text:  # a test of each is ten times as fast as `translate`
                text = text.replace(character, " ")
        ends = self._find_ends(text)
        if not ends:
            return [0]
        text_end = len(text.rstrip())
        limits = [end for end, _ in ends[1:]]
        limits.append(text_end)
        starts = [0]
        for (_, start), limit in zip(ends, limits, strict=True):
            if text[start] in _CLOSING:  # which belongs to the sentence before it
                marks = _CLOSING_MARKS.match(text, start, limit)
                start = marks.end() if marks else start
            starts.append(start)
        if starts[-1] >= text_end:  # the last one had nothing else
            starts.pop()
        return starts

    def _find_ends(self, text: str) -> list[tuple[int, int]]:
        """The place after each final mark of a sentence, and where the next token begins."""
        ends = []
        for word_start, candidate in _candidates(text):
            place, next_start = candidate.span()
            if (
                text[place] != "."
                or (
                    place - word_start <= _LONGEST_REMEMBERED
                    and self._is_certain_end(text[word_start:place])
                )
                or self._ends_in_context(text, word_start, candidate)
            ):
                ends.append((place + 1, next_start))
        return ends

    def _ends_in_context(self, text: str, word_start: int, candidate: re.Match[str]) -> bool:
        """Whether a sentence ends at a candidate; what comes next is looked at, too."""
        context = text[word_start : _context_end(text, candidate)]
        if len(context) > _LONGEST_REMEMBERED:
            return self._find_end_in(context)
        return self._has_end(context)

    def _find_certain_end(self, word: str) -> bool:
        """Whether a sentence ends at the full stop after a word, whatever comes next."""
        letters = _LETTERS_AT_END.search(word)
        if letters is not None and letters[0].lower() not in self._undecided_letters:
            return True
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


def _candidates(text: str) -> Iterator[tuple[int, re.Match[str]]]:
    """Where a sentence may end, and where the word of that mark begins.

    Of several marks in one word, such as those of `"Stop!!"`, the last one counts.
    """
    candidate: re.Match[str] | None = None
    place = 0
    word_start = 0
    mark = _CANDIDATE if "?" in text or "!" in text else _FULL_STOP
    for following in mark.finditer(text):
        space = text.rfind(" ", place + 1, following.start())
        next_word_start = space + 1 if space >= 0 else word_start
        if candidate is not None and next_word_start >= place:
            yield word_start, candidate
        candidate = following
        place = following.start()
        word_start = next_word_start
    if candidate is not None:
        yield word_start, candidate


def _context_end(text: str, candidate: re.Match[str]) -> int:
    """Where what comes after a candidate ends: one mark, or all up to the next white space."""
    if candidate.end() == candidate.start() + 1:
        return candidate.end() + 1
    space = _WHITE_SPACE.search(text, candidate.end())
    return space.start() if space else len(text)


def _word_type(token: str) -> str:
    """A token in lower case; all numbers are of one type."""
    if _NUMBER.fullmatch(token):
        return _NUMBER_TYPE
    return token.lower()


def _without_full_stop(word_type: str) -> str:
    if len(word_type) > 1:
        return word_type.removesuffix(".")
    return word_type


@functools.cache
def sentence_splitter(language: Language) -> PunktSplitter:
    """The splitter of a language, for all who ask."""
    path = pathlib.Path(__file__).with_name(f"punkt_{language}.json")
    parameters = json.loads(path.read_text(encoding="utf-8"))
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


def check_language(language: str) -> Language:
    """Returns a language, unless there is no rule for its sentences.

    Raises:
        ValueError: its code is none of `LANGUAGES`; names those.
    """
    if language not in LANGUAGES:
        raise ValueError(
            f"language {language}: has no rule for sentences; give {' or '.join(LANGUAGES)}"
        )
    return language


def find_sentence_starts(text: str, language: Language) -> list[int]:
    """Finds where the sentences of a text of any number of lines begin.

    Args:
        text: any; a line end ends a sentence.
        language: one of `LANGUAGES`.

    Returns:
        The first character of each sentence, ascending. Empty lines have none.
    """
    splitter = sentence_splitter(language)
    starts = []
    line_start = 0
    for line in text.split("\n"):
        starts += [line_start + start for start in splitter.find_starts(line)]
        line_start += len(line) + 1
    return starts
