"""Text files that are read as a whole: questions and their answers."""

import gzip
import zlib

from spanbert_tf.errors import BadInputError

GZIP_MAGIC = b"\x1f\x8b"


def read_text_file(path: str) -> str:
    """The text of a UTF-8 file, compressed by gzip or not.

    Raises:
        BadInputError: the file cannot be read.
    """
    try:
        with open(path, "rb") as file:
            content = file.read()
        if content.startswith(GZIP_MAGIC):
            content = gzip.decompress(content)
        return content.decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise BadInputError(f"{path}: cannot be read as UTF-8 text ({error})") from error
