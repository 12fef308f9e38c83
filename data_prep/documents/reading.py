"""Finds and reads documents in any of the formats: one file, many, or a directory of them."""

import glob
import os
import re
from collections.abc import Sequence

from data_prep.documents.conll import is_conll, read_conll
from data_prep.documents.document import Document, check_documents
from data_prep.documents.json_lines import read_json_documents
from spanbert_tf.errors import BadInputError, reason
from spanbert_tf.files.below import each_once, files_inside, is_inside, refuse_links
from spanbert_tf.files.text_files import read_text_file

_BEFORE_WILDCARD = re.compile(r"[^*?[]*")
_ENDINGS = ("_conll", ".conll", ".jsonlines", ".jsonl")


def read_documents(
    patterns: str | os.PathLike | Sequence[str | os.PathLike],
    *,
    follow_links: bool = False,
) -> list[Document]:
    """The documents of all files, those of a file in its order.

    Args:
        patterns: a path, or a pattern of paths, or several of them; of a directory all files
            below, through links to directories, too, whose names end in `_conll`, `.conll`,
            `.jsonlines` or `.jsonl`, compressed by gzip or not.
        follow_links: whether links may lead out of such a directory, or of the one before a
            pattern's first wildcard.

    Raises:
        BadInputError: nothing fits a pattern, a link leads out, a file cannot be read, or no
            records can be made of the documents.
    """
    if isinstance(patterns, str | os.PathLike):
        patterns = [patterns]
    patterns = list(map(os.fspath, patterns))
    documents: list[Document] = []
    for path in (path for pattern in patterns for path in _files(pattern, follow_links)):
        text = read_text_file(path)
        if is_conll(text):
            documents += read_conll(path, text)
        elif text.lstrip().startswith("{"):
            documents += read_json_documents(path, text)
        else:
            raise BadInputError(
                f"{path}: is neither CoNLL (`#begin document …`) nor JSON lines with `doc_key`"
            )
    check_documents(", ".join(patterns), documents)
    return documents


def _files(pattern: str, follow_links: bool) -> list[str]:
    is_named = os.path.exists(pattern)  # what the user names may be a link
    found = [pattern] if is_named else sorted(glob.glob(pattern, recursive=True))
    if not found:
        raise BadInputError(f"{pattern}: no such file; quote patterns")
    if not (is_named or follow_links):
        folder = os.path.dirname(_BEFORE_WILDCARD.match(pattern)[0]) or "."
        refuse_links([path for path in found if not is_inside(path, folder)], folder)
    files = []
    for path in found:
        files += _files_below(path, follow_links) if os.path.isdir(path) else [path]
    return files


def _files_below(directory: str, follow_links: bool) -> list[str]:
    def is_taken(path: str) -> bool:
        return path.removesuffix(".gz").endswith(_ENDINGS)

    try:
        paths = sorted(files_inside(directory, is_taken, follow_links=follow_links))
    except OSError as error:
        raise BadInputError(f"{directory}: cannot be searched ({reason(error)})") from error
    found = each_once(paths)
    if not found:
        raise BadInputError(f"{directory}: holds no file that ends in {', '.join(_ENDINGS)}")
    return found
