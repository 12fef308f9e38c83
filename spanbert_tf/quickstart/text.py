"""English text that comes with every CPython: its language reference and its docstrings."""

import ast
import os
import pathlib
import re
import sysconfig
from collections.abc import Iterator

_SKIPPED_DIRECTORIES = frozenset({"site-packages", "dist-packages", "test", "tests", "idlelib"})
_LEAST_WORDS = 6


def write_python_texts(directory: str) -> int:
    """Writes one plain text file for each topic of the reference and each documented module.

    Paragraphs are separated by an empty line. Code, headings and grammar are left out, and so is
    a paragraph that has been written before: topics quote one another, and a held-out text must
    not be a copy of a training text.

    Args:
        directory: a new directory.

    Returns:
        The number of files.
    """
    os.makedirs(directory)
    seen: set[str] = set()
    num_files = 0
    for name, text in (*_reference_topics(), *_module_docstrings()):
        joined = (" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text))
        prose = dict.fromkeys(filter(_is_prose, joined))  # each once, in order
        paragraphs = [paragraph for paragraph in prose if paragraph not in seen]
        if not paragraphs:
            continue
        seen.update(paragraphs)
        num_files += 1
        with open(os.path.join(directory, f"{name}.txt"), "w", encoding="utf-8") as file:
            file.write("\n\n".join(paragraphs) + "\n")
    return num_files


def _reference_topics() -> Iterator[tuple[str, str]]:
    """Chapters of the language reference, as `help()` shows them."""
    from pydoc_data.topics import topics

    for name, text in sorted(topics.items()):
        yield f"reference.{name}", text


def _module_docstrings() -> Iterator[tuple[str, str]]:
    """All docstrings of each module of the standard library, from its source."""
    library = pathlib.Path(sysconfig.get_path("stdlib"))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for path in sorted(library.rglob("*.py")):
        parts = path.relative_to(library).with_suffix("").parts
        if _SKIPPED_DIRECTORIES.intersection(parts):
            continue
        try:
            tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError):  # files that hold errors on purpose
            continue
        nodes = [node for node in ast.walk(tree) if isinstance(node, documented)]
        docstrings = [ast.get_docstring(node) for node in nodes]
        yield "module." + ".".join(parts), "\n\n".join(filter(None, docstrings))


def _is_prose(paragraph: str) -> bool:
    """Whether it reads like a sentence: some words, an end mark, no interpreter's prompt."""
    ends_like_prose = paragraph.endswith((".", ":", "!", "?", ")"))
    return ends_like_prose and len(paragraph.split()) >= _LEAST_WORDS and ">>>" not in paragraph
