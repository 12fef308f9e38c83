"""Files of any file system that Apache Beam knows, opened without regard to their names.

Importing Beam logs warnings about cloud packages that are not installed and not needed; this is
the one place that imports it first, and silently.
"""

import json
import logging
import os
from typing import Any, BinaryIO

_disabled_level = logging.root.manager.disable
logging.disable(logging.WARNING)
import apache_beam  # noqa: E402, F401
from apache_beam.io.filesystem import BeamIOError, CompressionTypes  # noqa: E402
from apache_beam.io.filesystems import FileSystems  # noqa: E402

from spanbert_tf.files.outputs import (  # noqa: E402
    NEW,
    UNFINISHED,
    OutputKind,
    check_output,
    discard_unfinished,
    make_unfinished,
    refuse_output,
    without_slash,
)
from spanbert_tf.files.writing import put_in_place  # noqa: E402

logging.disable(_disabled_level)

_REMOTE_MARK = "://"


def is_remote(path: str) -> bool:
    """Whether a path names a file system, such as `gs://`."""
    return _REMOTE_MARK in path


def open_to_read(path: str) -> BinaryIO:
    """Opens a file as bytes; raises `OSError` if it is not there."""
    return FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED)


def open_to_write(path: str) -> BinaryIO:
    """Creates or overwrites a file of bytes."""
    return FileSystems.create(path, compression_type=CompressionTypes.UNCOMPRESSED)


def match_files(pattern: str) -> dict[str, int]:
    """Sizes in bytes of the files that match a pattern, by their paths.

    Raises:
        OSError: the directory cannot be listed.
    """
    try:
        matches = FileSystems.match([pattern])[0].metadata_list
    except BeamIOError as error:
        raise OSError(str(error)) from error
    return {match.path: match.size_in_bytes for match in matches}


def rename(source: str, destination: str) -> None:
    """Renames a file."""
    FileSystems.rename([source], [destination])


def remove_file(path: str) -> None:
    """Removes a file if it is there."""
    if FileSystems.exists(path):
        FileSystems.delete([path])


class WorkDirectory:
    """The directory beside the output that workers share until the output is complete.

    Args:
        output: the final directory. The work directory is called `output.incomplete`.
        kind: kind of the output.
        overwrite: whether an earlier output of that kind may be replaced.
    """

    def __init__(
        self, output: str | os.PathLike, kind: OutputKind, *, overwrite: bool = False
    ) -> None:
        self._named = output = without_slash(output)
        self.output = output if is_remote(output) else os.path.realpath(output)
        self.path = f"{self.output}{UNFINISHED}"
        self._kind, self._overwrite = kind, overwrite

    def check(self) -> None:
        """Raises `BadInputError` unless the output is new, or an earlier one may be replaced."""
        if not is_remote(self.output):
            check_output(self._named, self._kind, overwrite=self._overwrite)
        elif names := self._published():
            is_earlier = self._kind.includes(names)
            refuse_output(self.output, self._kind, is_earlier=is_earlier, overwrite=self._overwrite)

    def _published(self) -> list[str]:
        """The files in the output on a remote system, seen from there."""
        paths = match_files(f"{self.output}/**")
        return [path.removeprefix(f"{self.output}/") for path in paths]

    def create(self) -> None:
        """Makes the directory, and removes what a run that was killed has left."""
        if is_remote(self.path):
            self.remove()
        else:
            make_unfinished(self.output, "spill", "progress", "results", NEW)

    def join(self, *names: str) -> str:
        """A path inside."""
        return FileSystems.join(self.path, *names)

    def write_result(self, name: str, value: Any) -> None:
        """Leaves a result, which JSON can hold, for other workers and for the parent."""
        with open_to_write(self.join("results", name)) as file:
            file.write(json.dumps(value).encode())

    def read_result(self, name: str) -> Any:
        """Reads what `write_result` wrote."""
        with open_to_read(self.join("results", name)) as file:
            return json.loads(file.read())

    def write_error(self, text: str) -> None:
        """Leaves the one-line message of an error that the user can mend."""
        with open_to_write(self.join("error")) as file:
            file.write(text.encode())

    def read_error(self) -> str | None:
        """The message that a worker left, if one did."""
        if not FileSystems.exists(self.join("error")):
            return None
        with open_to_read(self.join("error")) as file:
            return file.read().decode()

    def publish(self, names: list[str]) -> None:
        """Gives the finished files their place: at once, or the last one last on remote systems.

        Args:
            names: files in the new directory; the last one makes the directory valid.
        """
        if not is_remote(self.path):
            put_in_place(self.join(NEW), self.output, self._kind, overwrite=self._overwrite)
            return
        self.check()
        if earlier := self._published():
            # What makes the directory valid goes first.
            earlier.sort(key=lambda name: name != self._kind.marker)
            for name in earlier:
                remove_file(FileSystems.join(self.output, name))
        for name in names:
            rename(self.join(NEW, name), FileSystems.join(self.output, name))

    def remove(self) -> None:
        """Removes the directory and all that is in it."""
        if not is_remote(self.path):
            discard_unfinished(self.output)
        elif match_files(f"{self.path}/**"):
            FileSystems.delete([f"{self.path}/"])
