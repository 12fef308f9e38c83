"""What a file is by its first bytes, where it is no text. Nothing here needs TensorFlow."""

import os
from typing import NamedTuple

from spanbert_tf.errors import BadInputError

HEAD_SIZE = 512  # bytes that tell every kind
_TAR_MAGIC, _TAR_PLACE = b"ustar", 257
_ZIP_MAGIC, _GZIP_MAGIC, _XZ_MAGIC = b"PK\x03\x04", b"\x1f\x8b", b"\xfd7zXZ\0"
_COMPRESSED = (_GZIP_MAGIC, _XZ_MAGIC)  # as tar archives are
_LONGEST_RECORD = 2**32  # bytes; the length of a TFRecord's first record stands in 8


class _Kind(NamedTuple):
    magic: bytes
    name: str
    advice: str


def _as_json_lines(function: str) -> str:
    return (
        "write its rows as JSON lines, for example with "
        f"`pandas.{function}('FILE').to_json('rows.jsonl', orient='records', lines=True)`"
    )


_AS_TEXT = "write its text as plain UTF-8"
_UNPACK = "unpack it first"
_ARROW = (
    "write its rows as JSON lines, for example with "
    "`datasets.Dataset.from_file('FILE').to_json('rows.jsonl')`"
)
# From the formats' own specifications. What could begin a text (ORC's magic is "ORC") is left out.
_KINDS = (
    _Kind(b"PAR1", "Parquet", _as_json_lines("read_parquet")),
    _Kind(b"ARROW1\0\0", "Arrow (Feather)", _as_json_lines("read_feather")),
    _Kind(b"\xff\xff\xff\xff", "Arrow, as `datasets` stores it", _ARROW),
    _Kind(b"Obj\x01", "Avro", "write its rows as JSON lines"),
    _Kind(b"SQLite format 3\0", "an SQLite database", "write its rows as JSON lines"),
    _Kind(b"\x89HDF\r\n\x1a\n", "HDF5", "name a file of text"),
    _Kind(b"\x93NUMPY", "a NumPy array", "name a file of text"),
    _Kind(b"\x28\xb5\x2f\xfd", "compressed by zstd", f"{_UNPACK}: `zstd -d FILE`, or use gzip"),
    _Kind(_XZ_MAGIC, "compressed by xz", f"{_UNPACK}: `xz -dk FILE`, or use gzip"),
    _Kind(b"BZh", "compressed by bzip2", f"{_UNPACK}: `bunzip2 -k FILE`, or use gzip"),
    _Kind(b"\x04\x22\x4d\x18", "compressed by lz4", f"{_UNPACK}: `lz4 -d FILE`, or use gzip"),
    _Kind(_GZIP_MAGIC, "compressed by gzip twice", f"{_UNPACK} once: `gunzip -k FILE`"),
    _Kind(b"\x1f\x9d", "compressed by compress", f"{_UNPACK}: `uncompress FILE`, or use gzip"),
    _Kind(
        _ZIP_MAGIC,
        "a ZIP archive (as docx, xlsx and epub are)",
        f"unzip it and name the files of text; of a document, {_AS_TEXT}",
    ),
    _Kind(b"7z\xbc\xaf\x27\x1c", "a 7z archive", "unpack it and name the files of text"),
    _Kind(b"Rar!\x1a\x07", "a RAR archive", "unpack it and name the files of text"),
    _Kind(b"%PDF-", "PDF", f"{_AS_TEXT}, for example with pdftotext"),
    _Kind(b"{\\rtf", "RTF", _AS_TEXT),
    _Kind(b"%!PS-Adobe", "PostScript", _AS_TEXT),
    _Kind(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "a document of Word or Excel 97", _AS_TEXT),
    _Kind(b"\x89PNG\r\n\x1a\n", "a PNG picture", "name a file of text"),
    _Kind(b"\xff\xd8\xff", "a JPEG picture", "name a file of text"),
    _Kind(b"\x7fELF", "a program", "name a file of text"),
)
_BZIP2_BLOCKS = (b"1AY&SY", b"\x17rE8P\x90")  # after its level: a first block, or none at all


def refuse_known_binary(path: str, head: bytes, *, unpacked: bool = False) -> None:
    """Refuses content whose format is known and is no text.

    Args:
        path: path of the file, for the error.
        head: the first `HEAD_SIZE` bytes, or all there are.
        unpacked: whether they were taken out of gzip, which is then named.

    Raises:
        BadInputError: it is such content; the message names the format and says what to do.
    """
    found = _known_binary(head)
    if found is None or (found.magic == _GZIP_MAGIC and not unpacked):
        return
    inside = ", inside gzip," if unpacked and found.magic != _GZIP_MAGIC else ""
    raise BadInputError(
        f"{path}: is {found.name}{inside} and not read here; "
        f"{found.advice.replace('FILE', os.path.basename(path))}"
    )


def archive_kind(head: bytes) -> str | None:
    """`"zip"`, or `"tar"`, which may be compressed; `None` for what is no archive.

    Args:
        head: the first `HEAD_SIZE` bytes, or all there are.
    """
    if head.startswith(_ZIP_MAGIC):
        return "zip"
    is_tar = head.startswith(_COMPRESSED) or head[_TAR_PLACE:].startswith(_TAR_MAGIC)
    return "tar" if is_tar or _is_bzip2(head) else None


def _known_binary(head: bytes) -> _Kind | None:
    for kind in _KINDS:
        if head.startswith(kind.magic) and (kind.magic != b"BZh" or _is_bzip2(head)):
            return kind
    if head[_TAR_PLACE:].startswith(_TAR_MAGIC):
        return _Kind(b"", "a tar archive", "unpack it (`tar -xf FILE`) and name the files of text")
    if len(head) >= 16 and 0 < int.from_bytes(head[:8], "little") < _LONGEST_RECORD:
        return _Kind(b"", "TFRecord (or other binary data)", "name a file of text")
    return _utf_16(head)


def _is_bzip2(head: bytes) -> bool:
    return head.startswith(b"BZh") and head[3:4].isdigit() and head[4:10] in _BZIP2_BLOCKS


def _utf_16(head: bytes) -> _Kind | None:
    """UTF-16 and UTF-32, with their byte order mark or by the NULs beside Latin letters."""
    has_mark = head.startswith((b"\xff\xfe", b"\xfe\xff", b"\0\0\xfe\xff"))
    if has_mark or 3 * head.count(0) > len(head):
        name = "UTF-16 or UTF-32"
        return _Kind(b"", name, "convert it: `iconv -f UTF-16 -t UTF-8 FILE`")
    return None
