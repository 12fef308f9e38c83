"""Finds and reads documents in any of the formats: one file, many, or a directory of them."""

import glob
import os
from collections.abc import Sequence

from data_prep.documents.conll import is_conll, read_conll
from data_prep.documents.document import Document, check_documents
from data_prep.documents.json_lines import read_json_documents
from spanbert_tf.errors import BadInputError, reason
from spanbert_tf.files.below import each_once, files_below
from spanbert_tf.files.text_files import read_text_file

_ENDINGS = ("_conll", ".conll", ".jsonlines", ".jsonl")


def read_documents(
    patterns: str | os.PathLike | Sequence[str | os.PathLike],
) -> list[Document]:
    """The documents of all files, those of a file in its order.

    Args:
        patterns: a path, or a pattern of paths, or several of them; of a directory all files
            below, through links to directories, too, whose names end in `_conll`, `.conll`,
            `.jsonlines` or `.jsonl`, compressed by gzip or not.

    Raises:
        BadInputError: nothing fits a pattern, a file cannot be read, or no records can be made of
            the documents.
    """
    if isinstance(patterns, str | os.PathLike):
        patterns = [patterns]
    patterns = list(map(os.fspath, patterns))
    documents: list[Document] = []
    for path in (path for pattern in patterns for path in _files(pattern)):
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


def _files(pattern: str) -> list[str]:
    found = [pattern] if os.path.exists(pattern) else sorted(glob.glob(pattern, recursive=True))
    if not found:
        raise BadInputError(f"{pattern}: no such file; quote patterns")
    files = []
    for path in found:
        files += _files_below(path) if os.path.isdir(path) else [path]
    return files


def _files_below(directory: str) -> list[str]:
    try:
        paths = sorted(files_below(directory))
    except OSError as error:
        raise BadInputError(f"{directory}: cannot be searched ({reason(error)})") from error
    found = each_once(path for path in paths if path.removesuffix(".gz").endswith(_ENDINGS))
    if not found:
        raise BadInputError(f"{directory}: holds no file that ends in {', '.join(_ENDINGS)}")
    return found
