"""Counts the word pieces of texts, so that batches are made of tokens.

A text is tokenized in the graph of an export, together with others. Which ones is decided before,
and needs no more than the number of its pieces, which the vocabulary tells.
"""

import functools
import re
import string
import unicodedata

from spanbert_tf.serving.description import Description
from spanbert_tf.text.vocabulary import CONTINUATION_PREFIX

SPECIAL_TOKENS = 2  # [CLS], [SEP]
_REMEMBERED_WORDS = 2**16
_MAX_WORD = 100  # bytes; the tokenizer takes a longer word as one unknown piece
# A character of Chinese is a word of its own, as BERT's tokenizer has it.
_IDEOGRAPH = re.compile(
    "[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0002a6df\U0002a700-\U0002ceaf\U0002f800-\U0002fa1f]"
)


class TokenCounter:
    """Counts the word pieces of a text as the tokenizer of an export makes them.

    Args:
        description: what an export says of itself.
    """

    def __init__(self, description: Description) -> None:
        rules = description.text_rules
        self._lowercase = rules.lowercase
        self._strips_accents = rules.lowercase and rules.strip_accents
        self._spaced = _SpacedCharacters(self._strips_accents)
        self._pieces = description.token_ids
        self._longest = max(map(len, self._pieces), default=1)
        self._remembered = functools.lru_cache(_REMEMBERED_WORDS)(self._count_pieces)

    def __call__(self, text: str) -> int:
        """Returns the number of word pieces, with [CLS] and [SEP]."""
        if self._lowercase:
            text = text.lower()
        if self._strips_accents and not text.isascii():
            text = unicodedata.normalize("NFKD", text)
        words = text.translate(self._spaced).split()
        return sum(map(self._count, words)) + SPECIAL_TOKENS

    def _count(self, word: str) -> int:
        return self._remembered(word) if len(word) <= _MAX_WORD else 1

    def _count_pieces(self, word: str) -> int:
        """Cuts a word into its longest pieces, from left to right."""
        if len(word.encode("utf-8", "replace")) > _MAX_WORD:
            return 1
        count, start = 0, 0
        while start < len(word):
            prefix = CONTINUATION_PREFIX if start else ""
            end = min(len(word), start + self._longest)
            while end > start and prefix + word[start:end] not in self._pieces:
                end -= 1
            if end == start:
                return 1  # [UNK] stands for the whole word
            count, start = count + 1, end
        return count


class _SpacedCharacters(dict[int, str]):
    """Character → the same with spaces around it if it is a word of its own; for `str.translate`.

    Args:
        strips_accents: whether accents and signs of formatting are left out.
    """

    def __init__(self, strips_accents: bool) -> None:
        super().__init__()
        self._strips_accents = strips_accents

    def __missing__(self, code: int) -> str:
        self[code] = self._spaced(chr(code))
        return self[code]

    def _spaced(self, character: str) -> str:
        category = unicodedata.category(character)
        if character in string.punctuation or category[0] == "P" or _IDEOGRAPH.match(character):
            return f" {character} "
        if character.isspace():
            return " "
        if category in ("Cc", "Cf"):
            return "" if self._strips_accents else " "
        return "" if self._strips_accents and category == "Mn" else character
