"""How CoNLL files name a document: `#begin document (NAME); part 003`."""

NAME_AND_PART = r"\((.*?)\);\s*part\s+(\d+)"  # of a regular expression


def document_title(name: str, part: int) -> str:
    """Name and part as CoNLL-2012's files spell them.

    Args:
        name: name of the document.
        part: its number.
    """
    return f"({name}); part {part:03}"
