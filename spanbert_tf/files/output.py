"""Outputs of commands: checked before the work, written aside, and renamed when complete.

While `OUT` is being written, all of its files lie in the directory `OUT.incomplete`. A mark in that
directory distinguishes it from a directory of the user, which is left alone. After a kill, the next
command that writes `OUT` removes `OUT.incomplete`, or goes on in it if it does the same work.
"""

import contextlib
import dataclasses
import fnmatch
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from typing import BinaryIO

from spanbert_tf.errors import BadInputError, reason
from spanbert_tf.files.lock import output_lock
from spanbert_tf.files.paths import (
    UNFINISHED,
    check_no_dangling_link,
    check_not_special,
    check_writable,
    without_slash,
)

_MARK = "unfinished-output-of-spanbert_tf"
# Names in `OUT.incomplete`.
NEW = "output"
_EARLIER = "earlier"  # the output that is replaced, between the two renames of `publish`
_WORK = "work"  # a file with the digest of the work that is done there
_MAX_DIGEST_BYTES = 1024


@dataclasses.dataclass(frozen=True)
class OutputKind:
    """Recognizes an earlier output directory that may be replaced.

    Attributes:
        name: name for messages, such as `"predictions"`.
        marker: a file that every output of the kind has.
        contents: patterns of paths of its other files. Each part of a path is matched by `fnmatch`.
            A directory with any other file is not replaced.
    """

    name: str
    marker: str
    contents: tuple[str, ...] = ()

    def describes(self, path: str) -> bool:
        """Whether a directory holds an output of this kind and nothing else."""
        names = _files_below(path)
        return self.marker in names and all(map(self._belongs, names))

    def _belongs(self, name: str) -> bool:
        """Whether a file can be part of an output of this kind."""
        return any(_fits(name, pattern) for pattern in (self.marker, *self.contents))


@dataclasses.dataclass(frozen=True)
class FileKind:
    """Recognizes an earlier output file that may be replaced.

    Attributes:
        name: name for messages, such as `"a vocabulary"`.
        describes: takes a path; returns whether the file there is an output of this kind.
    """

    name: str
    describes: Callable[[str], bool]


class Output:
    """A file or directory that is written aside and renamed when it is complete.

    If the path is a link to a directory, the target of the link is replaced and the link remains. A
    link to a file is replaced by the new file.

    Args:
        path: path of the output, as the user wrote it.
        kind: kind of outputs that may be replaced. `None`: the output is a part of a run or of
            another output, and replaces whatever has its name.
        overwrite: whether an earlier output of that kind may be replaced.

    Attributes:
        path: the path without slashes at its end.
        aside: the directory in which the output is written.
        new: path of the unfinished output in that directory.

    Example:
    ```python
    output = Output("answers", OutputKind("predictions", "answers.json"))
    output.check()
    ...  # hours of work
    with output.written() as directory:
        save_answers(directory)
    ```
    """

    def __init__(
        self,
        path: str | os.PathLike,
        kind: OutputKind | FileKind | None = None,
        *,
        overwrite: bool = False,
    ) -> None:
        self.path = without_slash(path)
        self._kind = kind
        self._overwrite = overwrite
        self._target = self.path
        if not os.path.isfile(self.path):
            self._target = os.path.realpath(self.path)
        self.aside = f"{self._target}{UNFINISHED}"
        self.new = os.path.join(self.aside, NEW)

    def check(self) -> str:
        """Checks that the output does not exist, is empty, or may be replaced.

        Returns:
            `self.path`.

        Raises:
            BadInputError: the path has something else, or an earlier output without `overwrite`, or
                cannot be written or renamed.
        """
        self._restore_earlier()
        check_not_special(self.path)
        check_no_dangling_link(self.path)
        if not os.path.lexists(self.path):
            check_writable(self.path)
            return self.path
        if self._kind is None:
            return self.path
        if isinstance(self._kind, FileKind):
            if os.path.isdir(self.path):
                raise BadInputError(f"{self.path}: is a directory; name a file")
        else:
            _check_can_be_moved(self.path)
            if os.path.isdir(self.path) and not os.listdir(self.path):
                return self.path
        if not self._kind.describes(self.path):
            raise BadInputError(
                f"{self.path}: exists already and holds other things than {self._kind.name}; name "
                "another output"
            )
        if not self._overwrite:
            raise BadInputError(
                f"{self.path}: exists already and holds {self._kind.name}; name another output, "
                "or give --overwrite"
            )
        return self.path

    @contextlib.contextmanager
    def written(self) -> Iterator[str]:
        """Yields an empty directory to fill. It becomes the output at the end of the context.

        After an error, an earlier output is unchanged.

        Raises:
            BadInputError: the output cannot be written (see also `check`), or another command
                writes it.
        """
        with output_lock(self.path, "a program"), self.named_errors():
            self.check()
            with self.unfinished():
                os.mkdir(self.new)
                yield self.new
                self.publish()

    @contextlib.contextmanager
    def opened(self) -> Iterator[BinaryIO]:
        """Yields a new file to write to. It becomes the output at the end of the context.

        Raises:
            BadInputError: the file cannot be written. An earlier output is unchanged.
        """
        with self.named_errors(), self.file() as file:
            yield file

    @contextlib.contextmanager
    def file(self) -> Iterator[BinaryIO]:
        """Opens the file like `opened`, but raises `OSError` if it cannot be written."""
        with self.unfinished():
            with open(self.new, "wb") as file:
                yield file
            self.publish()

    @contextlib.contextmanager
    def unfinished(self) -> Iterator[str]:
        """Creates and yields the directory `aside`, and removes it at the end; see `create`."""
        try:
            self.create()
            yield self.aside
        finally:
            self.discard()

    def create(self, *names: str) -> None:
        """Makes the directory `aside`, and first removes one that a killed command left.

        Args:
            *names: names of directories to make in it.

        Raises:
            BadInputError: a directory of the user has its name.
            OSError: it cannot be made.
        """
        self.discard()
        os.makedirs(os.path.dirname(self.aside) or os.curdir, exist_ok=True)
        try:
            os.mkdir(self.aside)
        except FileExistsError:
            raise BadInputError(
                f"{self.aside}: exists already, and is no directory that a command left "
                "unfinished; move it away, or name another output"
            ) from None
        for name in (_MARK, *names):
            os.mkdir(os.path.join(self.aside, name))

    def note_work(self, digest: str) -> None:
        """Notes in the directory `aside` what is done there, so that it goes on after a kill.

        Args:
            digest: stands for the options and the inputs of the work.

        Raises:
            OSError: it cannot be written.
        """
        with open(os.path.join(self.aside, _WORK), "wb") as file:
            _write(file, digest)

    def left_work(self, *names: str) -> str | None:
        """Returns the digest that a killed command noted; `None` if it left nothing to go on with.

        The directory may come from somebody else. Then it may have links, through which this
        command would write, or which would become part of the output.

        Args:
            *names: directories of the work in `aside`. They must be whole, and without links.
        """
        self._restore_earlier()
        if not self._is_marked():
            return None
        if not all(_has_own_files(os.path.join(self.aside, name)) for name in names):
            return None
        try:
            with open(os.path.join(self.aside, _WORK), "rb") as file:
                return file.read(_MAX_DIGEST_BYTES).decode(errors="replace")
        except OSError:
            return None

    def publish(self) -> None:
        """Renames the finished output from `new` to its path.

        Raises:
            BadInputError: the path has something else by now, see `check`.
            OSError: it cannot be renamed. An earlier output is unchanged.
        """
        if self._kind is not None:
            self.check()
        if not os.path.isdir(self._target) or not os.listdir(self._target):
            os.replace(self.new, self._target)
            return
        earlier = os.path.join(self.aside, _EARLIER)
        os.rename(self._target, earlier)
        try:
            os.rename(self.new, self._target)
        except OSError:
            os.rename(earlier, self._target)
            raise

    def discard(self) -> None:
        """Removes the directory `aside` if it has the mark or is empty.

        A command that is killed before it makes the mark, or after it removes the mark, leaves an
        empty directory. The mark is removed last, so no kill leaves files without it, and the
        digest of the work first, so no kill leaves it without its files.
        """
        if self._is_marked():
            self._restore_earlier()
            _remove(os.path.join(self.aside, _WORK))
            for name in os.listdir(self.aside):
                if name != _MARK:
                    _remove(os.path.join(self.aside, name))
            if os.listdir(self.aside) == [_MARK]:
                _remove(os.path.join(self.aside, _MARK))
        with contextlib.suppress(OSError):  # it does not exist, or is not empty
            os.rmdir(self.aside)

    def _is_marked(self) -> bool:
        has_mark = os.path.isdir(os.path.join(self.aside, _MARK))
        return has_mark and not os.path.islink(self.aside)

    def _restore_earlier(self) -> None:
        """Restores the earlier output after a kill between the two renames of `publish`."""
        earlier = os.path.join(self.aside, _EARLIER)
        if self._is_marked() and os.path.isdir(earlier) and not os.path.lexists(self._target):
            os.rename(earlier, self._target)

    @contextlib.contextmanager
    def named_errors(self) -> Iterator[None]:
        """Turns an `OSError` into a `BadInputError` that names the output."""
        try:
            yield
        except OSError as error:
            raise BadInputError(
                f"{self.path}: cannot be written ({reason(error)}); free some space or name "
                "another output"
            ) from error


def _remove(path: str) -> None:
    """Removes a file, a link or a directory, as far as that is possible."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
        return
    with contextlib.suppress(OSError):
        os.unlink(path)


def _has_own_files(directory: str) -> bool:
    """Whether a path is a directory of this user that has nothing but regular files."""
    try:
        found = os.lstat(directory)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            return False
        with os.scandir(directory) as entries:
            return all(entry.is_file(follow_symlinks=False) for entry in entries)
    except OSError:
        return False


def _check_can_be_moved(directory: str) -> None:
    """Raises `BadInputError` for a mount point, and for the working directory."""
    if os.path.ismount(os.path.realpath(directory)):
        raise BadInputError(
            f"{directory}: is a mount point, to which nothing can be renamed; name a directory "
            f"below it, such as {os.path.join(directory, 'output')}"
        )
    with contextlib.suppress(OSError):  # the working directory may be gone
        if os.path.samefile(directory, os.curdir):  # it would be renamed and removed
            raise BadInputError(f"{directory}: is the directory you are in; name another output")


def _files_below(directory: str) -> list[str]:
    """Lists the relative paths of all files and links below a directory."""
    found = []
    for parent, directories, files in os.walk(directory):
        for name in (*files, *directories):
            path = os.path.join(parent, name)
            if os.path.islink(path) or not os.path.isdir(path):
                found.append(os.path.relpath(path, directory))
    return found


def _fits(name: str, pattern: str) -> bool:
    parts = name.split("/")
    patterns = pattern.split("/")
    return len(parts) == len(patterns) and all(map(fnmatch.fnmatchcase, parts, patterns))


def whole_file(path: str | os.PathLike) -> contextlib.AbstractContextManager[BinaryIO]:
    """Yields a new file to write to, which is a part of a run or of another output.

    It is renamed to `path` at the end. After an error or a kill, an earlier file is unchanged.

    Args:
        path: path of the file.

    Raises:
        OSError: the file cannot be written.
    """
    return Output(path).file()


def write_text(path: str | os.PathLike, text: str) -> None:
    """Writes a text file, which is a part of a run or of another output, by `whole_file`.

    Args:
        path: path of the file.
        text: written as UTF-8. Halves of surrogate pairs, which JSON may have, become `?`.

    Raises:
        OSError: the file cannot be written.
    """
    with whole_file(path) as file:
        _write(file, text)


def write_output(path: str | os.PathLike, text: str) -> None:
    """Writes a text file that the user named. Its path was checked by `Output.check`.

    Args:
        path: path of the file.
        text: as for `write_text`.

    Raises:
        BadInputError: the file cannot be written.
    """
    with Output(path).opened() as file:
        _write(file, text)


def _write(file: BinaryIO, text: str) -> None:
    file.write(text.encode("utf-8", errors="replace"))
    file.flush()
    os.fsync(file.fileno())


@contextlib.contextmanager
def os_errors() -> Iterator[None]:
    """Turns errors of TensorFlow, such as that of a full disk, into `OSError`."""
    import tensorflow as tf

    try:
        yield
    except tf.errors.OpError as error:
        raise OSError(error.message) from error
