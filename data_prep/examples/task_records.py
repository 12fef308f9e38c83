"""Writes the records of a task: rows, what they were made of, a vocabulary and a description."""

import os
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from spanbert_tf.data.rows_info import RowsInfo
from spanbert_tf.data.schema import VOCABULARY_FILE, token_id_dtype, vocabulary_hash
from spanbert_tf.files.contents import checksums
from spanbert_tf.files.outputs import OutputKind
from spanbert_tf.files.writing import write_directory, write_text
from spanbert_tf.text.vocabulary import END_TOKEN, START_TOKEN


class RowPacker:
    """Packs token ids as rows: `[CLS] first [SEP]`, or `[CLS] first [SEP] second [SEP]`.

    Args:
        pieces: the vocabulary.
    """

    def __init__(self, pieces: Sequence[str]) -> None:
        self._start, self._end = pieces.index(START_TOKEN), pieces.index(END_TOKEN)
        self._dtype = f"<{np.dtype(token_id_dtype(len(pieces))).str[1:]}"

    def __call__(self, first: np.ndarray, *second: np.ndarray) -> tuple[np.ndarray, int]:
        """A row in the type that it is stored as, and where its second segment begins.

        Args:
            first: token ids, int [T].
            *second: token ids of the second segment, if there is one.
        """
        parts = [[self._start]]
        for segment in (first, *second):
            parts += [segment, [self._end]]
        return np.concatenate(parts).astype(self._dtype), 2 + len(first)


def write_task_records(
    output: str,
    kind: OutputKind,
    pieces: Sequence[str],
    write_files: Callable[[str], Mapping[str, int]],
    describe: Callable[..., RowsInfo],
    *,
    overwrite: bool = False,
) -> RowsInfo:
    """Writes a directory of records; it appears whole or not at all.

    Args:
        output: directory, new or empty.
        kind: kind of the records.
        pieces: the vocabulary.
        write_files: writes the rows (`RowWriter`) and the task's other files into a directory;
            returns the description's `counts`.
        describe: the class of the description, with all but `vocabulary_hash`,
            `vocabulary_size`, `counts` and `files` given already.
        overwrite: whether earlier records of the kind may be replaced.

    Returns:
        The description that was written.

    Raises:
        BadInputError: the output exists or cannot be written.
    """

    def write(unfinished: str) -> None:
        counts = write_files(unfinished)
        vocabulary = "".join(f"{piece}\n" for piece in pieces)
        write_text(os.path.join(unfinished, VOCABULARY_FILE), vocabulary)
        info = describe(
            vocabulary_hash=vocabulary_hash(pieces),
            vocabulary_size=len(pieces),
            counts=dict(counts),
            files=checksums(unfinished, sorted(os.listdir(unfinished))),
        )
        written.append(info)
        write_text(os.path.join(unfinished, info.file_name()), info.to_json())

    written: list[RowsInfo] = []
    write_directory(output, write, kind, overwrite=overwrite)
    return written[0]
