"""The lines that a command prints at its end: what it wrote, its size, and the next commands."""

import os
import shlex
from collections.abc import Sequence

from spanbert_tf.files.paths import is_work_file
from spanbert_tf.terminal import print_line

_KILO = 1_000
_MEGA = 1_000_000


def print_written(path: str, *commands: Sequence[str], contents: str = "") -> None:
    """Prints the contents and the size of an output, and the commands that can follow.

    Args:
        path: file or directory that was written.
        *commands: the words of each command. The user replaces words in capitals.
        contents: description of the contents; by default the number of files of a directory.
    """
    files = _files_of(path)
    size = sum(os.path.getsize(file) for file in files)
    if not contents and os.path.isdir(path):
        contents = "1 file" if len(files) == 1 else f"{len(files):,} files"
    shown = describe_size(size)
    if contents:
        shown = f"{contents}, {shown}"
    print_line(f"{path}: {shown}")
    if commands:
        print_line("Next:")
    for words in commands:
        print_line(f"  {shlex.join(words)}")


def describe_size(num_bytes: int) -> str:
    """Formats a number of bytes in MB, or in kB if it is less than a tenth of a MB."""
    if num_bytes < _MEGA / 10:
        return f"{num_bytes / _KILO:.1f} kB"
    return f"{num_bytes / _MEGA:,.1f} MB"


def _files_of(path: str) -> list[str]:
    """Lists the file itself, or all files below a directory without links, locks and the like."""
    if not os.path.isdir(path):
        return [path]
    files = []
    for directory, _, names in os.walk(path):
        for name in names:
            file = os.path.join(directory, name)
            if not is_work_file(name) and not os.path.islink(file):
                files.append(file)
    return files
