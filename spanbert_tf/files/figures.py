"""Figures, written as pictures in fonts that have their letters."""

import warnings
from collections.abc import Iterable
from typing import Any, BinaryIO

from spanbert_tf.terminal import print_line

_DOTS_PER_INCH = 120
_SHOWN = 10


def save_figure(figure: Any, file: str | BinaryIO) -> None:
    """Writes a figure as a PNG, and prints a line if no font has some of its letters.

    Matplotlib's own font has the letters of Latin, Greek, Cyrillic, Arabic and others. For letters
    that it lacks, such as those of Chinese and Thai, fonts of this machine are added.

    Args:
        figure: a `matplotlib.figure.Figure`.
        file: path of the picture, or an open file.
    """
    from matplotlib.text import Text

    texts = [item for item in figure.findobj(Text) if item.get_text()]
    letters = {letter for item in texts for letter in item.get_text() if not letter.isspace()}
    families, missing = fonts_with(letters)
    if families:
        for item in texts:
            item.set_fontfamily([*item.get_fontfamily(), *families])
    if missing:
        shown = " ".join(sorted(missing)[:_SHOWN])
        print_line(f"no font of this machine has these letters of the picture: {shown}")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(file, dpi=_DOTS_PER_INCH, format="png")


def fonts_with(letters: Iterable[str]) -> tuple[list[str], set[str]]:
    """Finds fonts for letters that matplotlib's own font does not have.

    Args:
        letters: single characters.

    Returns:
        Names of further fonts, each with more of the letters than any other that was left; and the
        letters that no font has.
    """
    from matplotlib.font_manager import FontProperties, findfont, findSystemFonts, fontManager

    missing = set(letters) - _letters_of(findfont(FontProperties()))
    # The machine is asked: matplotlib's list may be older than its fonts.
    paths = sorted(findSystemFonts()) if missing else []
    letters_of = {path: missing & _letters_of(path) for path in paths}
    families: list[str] = []
    while missing and letters_of:
        path = max(letters_of, key=lambda path: len(letters_of[path] & missing))
        if not letters_of[path] & missing:
            break
        fontManager.addfont(path)
        families.append(FontProperties(fname=path).get_name())
        missing -= letters_of[path]
    return families, missing


def _letters_of(path: str) -> set[str]:
    """Returns the characters that a font has."""
    from matplotlib.ft2font import FT2Font

    try:
        return {chr(code) for code in FT2Font(path).get_charmap()}
    except (OSError, RuntimeError):  # removed since matplotlib looked for it, or damaged
        return set()
