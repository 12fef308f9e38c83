"""How CoNLL files name a document: `#begin document (NAME); part 003`."""

# Of a regular expression. Python reads no number of thousands of digits; the line is a bare name.
NAME_AND_PART = r"\((.*?)\);\s*part\s+0*(\d{1,18})"


def document_title(name: str, part: int) -> str:
    """Name and part as CoNLL-2012's files spell them.

    Args:
        name: name of the document.
        part: its number.
    """
    return f"({name}); part {part:03}"
