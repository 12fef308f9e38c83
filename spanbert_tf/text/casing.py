"""What `--lowercase` costs a language: marks that BERT's uncased models strip, and Turkish `I`.

BERT's uncased tokenizers decompose text and drop all nonspacing marks. In English these are a few
accents. In Hindi and Thai they are vowel signs, in Japanese the marks of voiced sounds, in Russian
a part of `й`. They also lower-case each letter by Unicode's table, which knows no language: `I`
becomes `i` in Turkish, too.
"""

import collections

from spanbert_tf.text.languages import LANGUAGES
from spanbert_tf.text.vocabulary import TextRules, has_accents

# Languages in whose scripts marks are vowels, consonants or tones. Shares of the characters that
# have such marks, as measured: Thai 20.1 %, Hindi 18.8 %, Japanese 7.2 %, Arabic 4.0 %.
_VOWEL_SIGNS = "as bn bo dv dz gu hi km kn lo ml mr my ne new or pa sa si ta te th"
_OTHER_MARKS = "ar azb fa ja ks ps sd ug ur vi yi"
_WITH_MARKS = frozenset(f"{_VOWEL_SIGNS} {_OTHER_MARKS}".split())
# Languages that write i with a dot and without one, and so its capital.
_WITH_DOTLESS_I = frozenset({"az", "tr"})
_DOTLESS_I = "\u0131"
_DOTTED_CAPITAL_I = "\u0130"
_LEAST_MARKED = 0.01  # share of a text: German has 1.4 %, Russian 1.7 %, English less than 0.01 %
_LEAST_TURKISH = 0.001
_SHOWN = 5


def advice_on_language(text_rules: TextRules) -> str | None:
    """Returns a line that says what the casing does to a language; `None` if it is usual."""
    language = LANGUAGES[text_rules.language]
    if text_rules.strip_accents and text_rules.language in _WITH_MARKS:
        return (
            f"--lowercase strips the marks on {language} letters, such as vowel signs, as BERT's "
            "uncased models do; --keep-accents keeps them"
        )
    if text_rules.lowercase and text_rules.language in _WITH_DOTLESS_I:
        return _advice_on_dotless_i(text_rules)
    return None


def advice_on_text(characters: "collections.Counter[str]", text_rules: TextRules) -> str | None:
    """Returns a line that says what the casing does to a text; `None` if that is little.

    Args:
        characters: how often the text has each character.
        text_rules: the casing.
    """
    total = sum(count for character, count in characters.items() if not character.isspace())
    marked = [character for character in characters if has_accents(character)]
    share = sum(characters[character] for character in marked) / max(total, 1)
    if text_rules.strip_accents and share > _LEAST_MARKED:
        marked.sort(key=lambda character: (-characters[character], character))
        # A mark by itself is shown on the circle that stands for any letter.
        shown = " ".join(_on_a_letter(character) for character in marked[:_SHOWN])
        return (
            f"--lowercase strips marks, as BERT's uncased models do, from {share:.1%} of the "
            f"characters of this text ({shown}); --keep-accents keeps them"
        )
    num_turkish = characters[_DOTLESS_I] + characters[_DOTTED_CAPITAL_I]
    if text_rules.lowercase and num_turkish > _LEAST_TURKISH * total:
        return _advice_on_dotless_i(text_rules)
    return None


def _advice_on_dotless_i(text_rules: TextRules) -> str:
    dotted = "i" if text_rules.strip_accents else "i and a combining dot"
    return (
        f"--lowercase makes i of I and {dotted} of {_DOTTED_CAPITAL_I}, as BERT's tokenizers do "
        f"in all languages; where I is {_DOTLESS_I}, lower-case the text before, or leave it cased"
    )


def _on_a_letter(character: str) -> str:
    return f"\u25cc{character}" if not character.isalnum() else character
