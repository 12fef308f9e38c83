"""Files and directories that appear whole or not at all."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator

from spanbert_tf.errors import BadInputError, reason
from spanbert_tf.files.outputs import REPLACED, OutputKind, check_output, without_slash

_CHUNK = bytes(1 << 20)


def write_directory(
    directory: str | os.PathLike,
    write: Callable[[str], None],
    kind: OutputKind | None,
    *,
    overwrite: bool = False,
) -> None:
    """Writes a directory aside and renames it to its name.

    Args:
        directory: its final name.
        write: is called with the name of an empty directory, and fills it.
        kind: what may lie there already, see `check_output`; `None` where the directory is the
            caller's own, whatever it holds.
        overwrite: whether an earlier output of that kind may be replaced.

    Raises:
        BadInputError: it cannot be written, or holds what may not be replaced; it stays as it was.
    """
    directory = without_slash(directory)
    if kind is not None:
        check_output(directory, kind, overwrite=overwrite)
    unfinished = f"{os.path.realpath(directory)}.incomplete"
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        os.makedirs(unfinished)
        write(unfinished)
        put_in_place(unfinished, directory, kind, overwrite=overwrite)
    except OSError as error:
        raise BadInputError(
            f"{directory}: cannot be written ({reason(error)}); free some space or name another "
            "output"
        ) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def put_in_place(
    source: str, directory: str, kind: OutputKind | None, *, overwrite: bool = False
) -> None:
    """Gives a finished directory its name, in place of what may be replaced.

    Args:
        source: the finished directory, on the same file system.
        directory: its name.
        kind: as for `write_directory`.
        overwrite: as for `write_directory`.

    Raises:
        BadInputError: the name was taken in the meantime.
        OSError: it cannot be renamed; what was there stays.
    """
    if kind is not None:
        check_output(directory, kind, overwrite=overwrite)
    target = os.path.realpath(directory)
    if not os.path.isdir(target) or not os.listdir(target):
        os.rename(source, target)
        return
    earlier = f"{target}{REPLACED}"
    shutil.rmtree(earlier, ignore_errors=True)
    os.rename(target, earlier)
    try:
        os.rename(source, target)
    except OSError:
        os.rename(earlier, target)
        raise
    shutil.rmtree(earlier, ignore_errors=True)


@contextlib.contextmanager
def whole_file(path: str) -> Iterator[str]:
    """A name to write a file under, which is renamed to its own at the end.

    Args:
        path: path of the file; its directory must exist.

    Yields:
        The name to write. After an error, or a kill, the file is as it was before.
    """
    unfinished = f"{path}.incomplete"
    try:
        yield unfinished
        os.replace(unfinished, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.remove(unfinished)


def write_text(path: str, text: str) -> None:
    """Writes a text file so that it is there whole or, after an error or a kill, as it was before.

    Args:
        path: path of the file; its directory must exist.
        text: is written as UTF-8, with `?` for halves of surrogate pairs, which JSON may have.

    Raises:
        OSError: it cannot be written.
    """
    with (
        whole_file(path) as unfinished,
        open(unfinished, "w", encoding="utf-8", errors="replace") as file,
    ):
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def check_space(directory: str | os.PathLike, num_bytes: int) -> None:
    """Writes a file of a size, and removes it.

    HDF5 ends the process with a segmentation fault when it cannot write what it has buffered, and
    a file system's own count of free bytes knows nothing of quotas and limits.

    Args:
        directory: where the file is written; must exist.
        num_bytes: its size.

    Raises:
        OSError: there is no room for it.
    """
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, max(num_bytes, 1))
            return
        for start in range(0, num_bytes, len(_CHUNK)):
            file.write(_CHUNK[: num_bytes - start])
