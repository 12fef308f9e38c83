"""How an answer is compared with a gold answer: SQuAD's rule, MLQA's and CMRC 2018's.

SQuAD's rule parts words at spaces, and drops the English articles. Chinese has neither, and other
languages have other articles. Each rule here gives the numbers of its official script:

- `mlqa`: `mlqa_evaluation_v1.py` of facebookresearch/MLQA (Lewis et al., 2020);
- `cmrc2018`: `cmrc2018_evaluate.py` of ymcui/cmrc2018 (Cui et al., 2019).
"""

import collections
import difflib
import functools
import itertools
import re
import string
import sys
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from spanbert_tf.errors import BadInputError
from spanbert_tf.tasks.question_answering.records import METRICS
from spanbert_tf.text.languages import DEFAULT_LANGUAGE, LANGUAGES, LETTER_WITHOUT_SPACES
from spanbert_tf.text.sentences import sentence_splitter

SQUAD, MLQA, CMRC2018 = METRICS

# What the official script drops of each language: whole words, as a regular expression; of Arabic
# it drops the article wherever its letters stand, inside of words, too.
_MLQA_ARTICLES = {
    "ar": "ال",
    "de": r"\b(?:ein|eine|einen|einem|eines|einer|der|die|das|den|dem|des)\b",
    "en": r"\b(?:a|an|the)\b",
    "es": r"\b(?:un|una|unos|unas|el|la|los|las)\b",
    "hi": "",
    "vi": r"\b(?:của|là|cái|chiếc|những)\b",
    "zh": "",
}
_IDEOGRAPH = re.compile("[\u4e00-\u9fa5]")  # as both scripts have it
# The marks that CMRC's script drops. (It lists the ellipsis, too, as two characters, and compares
# with single ones, so that it stays.)
_CMRC_MARKS = frozenset("-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")  # noqa: RUF001
_KANA = re.compile("[\u3040-\u30ff]")


class AnswerScore(NamedTuple):
    """How well an answer agrees with a gold answer, each from 0 to 1."""

    exact_match: float
    f1: float


def score_answer(metric: str, golds: Iterable[str], answer: str, language: str) -> AnswerScore:
    """Returns the best scores of an answer over the gold answers, as the official scripts do.

    Args:
        metric: `mlqa` or `cmrc2018`.
        golds: the gold answers, at least one.
        answer: the answer.
        language: code of the language of the answers; `cmrc2018` is for Chinese alone.
    """
    compare = _compare_mlqa if metric == MLQA else _compare_cmrc2018
    scores = [compare(gold, answer, language) for gold in golds]
    return AnswerScore(*map(max, zip(*scores, strict=True)))


def check_metric(metric: str, language: str, data: str) -> None:
    """Checks that a metric can score answers of a language.

    Args:
        metric: one of `METRICS`.
        language: code of the language of the records.
        data: name of the records, for errors.

    Raises:
        BadInputError: MLQA's script does not know the language, or NLTK is missing, of which CMRC's
            script takes the words that are not Chinese.
    """
    if metric == MLQA and language not in _MLQA_ARTICLES:
        known = ", ".join(_MLQA_ARTICLES)
        raise BadInputError(
            f"{data}: metric mlqa is for {known}, and not for {language} ({LANGUAGES[language]}), "
            "the language of these records"
        )
    if metric == CMRC2018:
        try:
            _word_tokenizer()
        except ImportError as error:
            raise BadInputError(
                f"{data}: metric cmrc2018 needs NLTK; pip install 'spanbert_tf[cmrc2018]'"
            ) from error


def advice_on_metric(metric: str, golds: Sequence[str], language: str) -> str | None:
    """Returns a line that says so if a metric does not fit the answers; `None` if it does.

    Args:
        metric: one of `METRICS`.
        golds: gold answers of the records.
        language: code of the language of the records.
    """
    if metric == CMRC2018 and not _has_share(_IDEOGRAPH, golds):
        return "metric cmrc2018 is for Chinese, and most of these answers are not Chinese"
    if metric == CMRC2018 or (metric == MLQA and language == "zh"):
        return None
    if _has_share(LETTER_WITHOUT_SPACES, golds):
        return (
            f"metric {metric} parts words at spaces, which these answers do not have between their "
            f"words, so that its F1 is nearly exact match; {_for_unspaced(golds, language)}"
        )
    if metric == SQUAD and language in _MLQA_ARTICLES and language != DEFAULT_LANGUAGE:
        return (
            "metric squad drops the English articles; --metric mlqa (prediction.metric=mlqa) is "
            f"for {LANGUAGES[language]}"
        )
    return None


def _for_unspaced(golds: Sequence[str], language: str) -> str:
    """Returns what to score answers without spaces by."""
    is_chinese = _has_share(_IDEOGRAPH, golds) and not _has_share(_KANA, golds, share=0.1)
    if not is_chinese:
        return "no official metric here counts such words"
    advice = "--metric cmrc2018 (prediction.metric=cmrc2018) counts characters"
    if language == "zh":
        return f"{advice}, and so does mlqa"
    return f"{advice}, and so does mlqa for records with --language zh"


def _has_share(letters: re.Pattern, texts: Iterable[str], share: float = 0.5) -> bool:
    """Whether more than a share of the letters of some texts match."""
    found = 0
    total = 0
    for text in texts:
        found += len(letters.findall(text))
        total += sum(map(_is_letter, text))
    return found > share * total


def _is_letter(character: str) -> bool:
    """Whether a character is a letter or a mark on one."""
    return unicodedata.category(character)[0] in "LM"


def _compare_mlqa(gold: str, answer: str, language: str) -> AnswerScore:
    """Compares bags of words without articles, or of characters in Chinese."""
    gold_words = _mlqa_words(gold, language)
    words = _mlqa_words(answer, language)
    shared = collections.Counter(gold_words) & collections.Counter(words)
    f1 = _f1(shared.total(), len(words), len(gold_words))
    return AnswerScore(float(words == gold_words), f1)


def _mlqa_words(text: str, language: str) -> list[str]:
    """Returns the words that MLQA's script compares, in lower case, without punctuation."""
    text = "".join(itertools.filterfalse(_mlqa_punctuation().__contains__, text.lower()))
    articles = _MLQA_ARTICLES[language]
    if articles:
        text = re.sub(articles, " ", text)
    if language == "zh":
        return _segments(text, str.split)
    return text.split()


@functools.cache
def _mlqa_punctuation() -> frozenset[str]:
    """Returns all punctuation of Unicode, and the other marks of ASCII."""
    characters = map(chr, range(sys.maxunicode))
    marks = [mark for mark in characters if unicodedata.category(mark).startswith("P")]
    return frozenset(marks).union(string.punctuation)


def _compare_cmrc2018(gold: str, answer: str, language: str) -> AnswerScore:
    """Compares characters, and words of other scripts, by the longest run that both have."""
    gold_text = _cmrc_text(gold)
    text = _cmrc_text(answer)
    gold_segments = _cmrc_segments(gold_text)
    segments = _cmrc_segments(text)
    matcher = difflib.SequenceMatcher(None, gold_segments, segments, autojunk=False)
    longest = matcher.find_longest_match().size
    f1 = _f1(longest, len(segments), len(gold_segments))
    return AnswerScore(float(text == gold_text), f1)


def _cmrc_text(text: str) -> str:
    """Returns a text as CMRC's script compares it: in lower case, without marks."""
    return "".join(itertools.filterfalse(_CMRC_MARKS.__contains__, text.lower().strip()))


def _cmrc_segments(text: str) -> list[str]:
    """Returns the ideographs of a text, and NLTK's words between them."""
    return _segments(text, _nltk_words)


def _segments(text: str, split: Callable[[str], list[str]]) -> list[str]:
    """Returns the ideographs of a text one by one, and the words of the text between them.

    Args:
        text: any.
        split: text between ideographs → its words.
    """
    segments = []
    end = 0
    for ideograph in _IDEOGRAPH.finditer(text):
        segments += [*split(text[end : ideograph.start()]), ideograph.group()]
        end = ideograph.end()
    return segments + split(text[end:])


def _nltk_words(text: str) -> list[str]:
    """Returns the words of `nltk.word_tokenize`: those of the Penn Treebank in Punkt's sentences.

    NLTK would load Punkt's English parameters from data that are no part of its package; these are
    the same.
    """
    line = " ".join(text.split("\n"))  # a line end parts no sentences there
    starts = sentence_splitter(DEFAULT_LANGUAGE).find_starts(line)
    words = []
    for start, end in itertools.pairwise([*starts, len(line)]):
        words += _word_tokenizer().tokenize(line[start:end].strip())
    return words


@functools.cache
def _word_tokenizer() -> Any:
    """Returns NLTK's tokenizer of words."""
    from nltk.tokenize.destructive import NLTKWordTokenizer

    return NLTKWordTokenizer()


def _f1(num_shared: int, num_found: int, num_gold: int) -> float:
    """Returns the harmonic mean of precision and recall."""
    if not num_shared:
        return 0.0
    precision = num_shared / num_found
    recall = num_shared / num_gold
    return 2 * precision * recall / (precision + recall)
