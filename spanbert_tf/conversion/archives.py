"""Opens .tar.gz archives of checkpoints."""

import contextlib
import os
import tarfile
import tempfile
import zlib
from collections.abc import Iterator

from spanbert_tf.errors import BadInputError

# Endings of files that people give in place of the directory.
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".h5", ".index", ".ckpt", ".json")


@contextlib.contextmanager
def opened_source(path: str) -> Iterator[str]:
    """The directory of a checkpoint: the path itself, or an archive's content while it is open.

    Args:
        path: a directory or a tar archive, compressed or not.

    Yields:
        A directory; where an archive holds a single directory, that one.

    Raises:
        BadInputError: there is nothing, the archive is damaged, or a member would be written
            outside of the directory or is no plain file.
    """
    if os.path.isdir(path):
        yield path
        return
    if not os.path.isfile(path):
        raise BadInputError(f"{path}: no such directory or archive; download the model first")
    if path.endswith(_WEIGHTS):
        directory = os.path.dirname(path) or "."
        raise BadInputError(
            f"{path}: is a file of weights; name the directory that holds it with its "
            f"configuration: {directory}"
        )
    with tempfile.TemporaryDirectory() as directory:
        _extract(path, directory)
        entries = os.listdir(directory)
        inner = os.path.join(directory, entries[0]) if len(entries) == 1 else directory
        yield inner if os.path.isdir(inner) else directory


def _extract(path: str, directory: str) -> None:
    try:
        with tarfile.open(path) as archive:
            # Refuses absolute paths, "..", links that lead outside, and devices.
            archive.extractall(directory, filter="data")
    except tarfile.FilterError as error:
        raise BadInputError(f"{path}: {error}; such an archive is not opened") from error
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        reason = str(error).splitlines()[0]
        raise BadInputError(f"{path}: is no archive, or damaged ({reason})") from error
