"""What a command says at its end: what it has written, how large it is, and what to type next."""

import os
import shlex
from collections.abc import Sequence

from spanbert_tf.files.paths import is_work_file
from spanbert_tf.terminal import print_line

_KILO, _MEGA = 1_000, 1_000_000


def print_written(path: str, *commands: Sequence[str], contents: str = "") -> None:
    """Prints what lies at a path, and commands that go on from there.

    Args:
        path: file or directory that was written.
        *commands: the words of each command; words in capitals are for the reader to fill in.
        contents: what is in a directory, in words; by default how many files.
    """
    files = _files_of(path)
    size = sum(os.path.getsize(file) for file in files)
    if not contents and os.path.isdir(path):
        contents = "1 file" if len(files) == 1 else f"{len(files):,} files"
    shown = [contents, describe_size(size)] if contents else [describe_size(size)]
    print_line(f"{path}: {', '.join(shown)}")
    if commands:
        print_line("Next:")
    for words in commands:
        print_line(f"  {shlex.join(words)}")


def describe_size(num_bytes: int) -> str:
    """A number of bytes as people read it: in MB, and in kB where it is less than a tenth."""
    if num_bytes < _MEGA / 10:
        return f"{num_bytes / _KILO:.1f} kB"
    return f"{num_bytes / _MEGA:,.1f} MB"


def _files_of(path: str) -> list[str]:
    """The file itself, or all files below a directory; links are not followed."""
    if not os.path.isdir(path):
        return [path]
    return [
        os.path.join(directory, name)
        for directory, _, names in os.walk(path)
        for name in names
        if not is_work_file(name) and not os.path.islink(os.path.join(directory, name))
    ]
