"""The languages whose text can be split into sentences. Importing this module imports no others."""

from typing import Literal, get_args

# The codes of `--language`; each has a file `punkt_<code>.json` beside this one.
Language = Literal["en"]
LANGUAGES: tuple[Language, ...] = get_args(Language)
DEFAULT_LANGUAGE: Language = "en"


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
