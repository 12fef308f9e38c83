"""How CoNLL files name a document: `#begin document (NAME); part 003`."""

import re

from spanbert_tf.process.lines import escape_controls

# Python reads no number of thousands of digits; such a line is a bare name. White space is taken
# once and for all (`++`): giving it back bit by bit would take quadratic time.
_BEGIN = re.compile(r"#\s*+begin document(?:\s++\((.*?)\);\s*+part\s++0*(\d{1,18})\s*$|(.*))")


def read_header(line: str) -> tuple[str | None, str | None, str | None] | None:
    """Name and part, or all that stands there (GUM's), each `None` if it does not.

    Args:
        line: line of a file.

    Returns:
        `None`: it begins no document.
    """
    begin = _BEGIN.match(line)
    if begin is None:
        return None
    name, part, rest = begin.groups()
    return name, part, None if rest is None else rest.strip()


def document_title(name: str, part: int) -> str:
    """Name and part as CoNLL-2012's files spell them, in one line: controls are escaped.

    Args:
        name: name of the document.
        part: its number.
    """
    return f"({escape_controls(name)}); part {part:03}"
