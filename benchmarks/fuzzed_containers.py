"""Damage of files: of any bytes, of JSON's values, and in the own form of a container.

Each function takes the bytes of a file and gives those of a damaged one. What is damaged in its own
form has the right framing, so that readers come to what is inside. `special_files` makes what lies
in place of a file and is none.
"""

import contextlib
import io
import json
import os
import pathlib
import random
import socket
import struct
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import h5py

_NUMBERS = (0, -1, 3, 2**70, 1.5, float("nan"))
_VALUES = (None, True, *_NUMBERS, "", "x", "\ud800", [], [[]], {}, {"x": 1})
_BYTES = (b"\x00", b"\xff", b'"', b"{", b"]", b",", b"\\", b"9", b"\n")
_ODD_NAMES = ("../outside", "a/../../outside", "/outside", "", ".", "..", "a//b", "config.json")
_ODD_NAMES += ("x" * 300, "a/" * 400 + "x", "\x1b[2J", "line\nend", "vocab.txt/x", "\udcff")
_TAR_TYPES = (
    *(tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE),
    *(tarfile.BLKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.CONTTYPE),
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.GNUTYPE_SPARSE),
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, b"Z", b"\xff"),
)
_SIZES = (0, 1, 3, 511, 513, 2**33, 2**62, -1)
_YAML = (
    *("&a [1]", "*a", "!!python/object/apply:os.system [true]", "!!binary x", "!x y", "<<: {a: 1}"),
    *("? [a]", "? {a: b}", "- ", "|", ">", "%YAML 9.9", "---", "...", "0x" + "f" * 100, "1:10"),
    *("2001-01-01", "2001-99-99", ".inf", "-.inf", ".nan", "~", "'", '"', "\t", "{", "[", "}"),
    *("\x00", "\u2028", "\ufeff", "9" * 70_000, "1e999", "0b2", "0o9", "yes", "=", "[" * 50),
    *("{a: " * 50, '"\\ud800"', '"\\x1b[2J"', "a: b: c", "#", "@", "`", "x" * 100_000),
)
_DTYPES = ("<f4", ">f8", "<f2", "|O", "<U9", "|S0", "<c16", "|V8", "<M8[s]", "|b1", "<i8")
_DTYPES += ([("a", "<f4")], "nonsense")
_SHAPES = ((), (0,), (8, 2), (2, 8), (1,) * 64, (-1,), (2**40,), (2**62, 2**62), (2**63, 0))
_LENGTHS = (0, 1, 2**31, 2**40, 2**63, 2**64 - 1)


def mutated(content: bytes, source: random.Random) -> bytes:
    """A damaged copy: another value in JSON where it is that, else other bytes."""
    if source.random() < 0.7:
        try:
            return _mutated_json(content, source)
        except ValueError:
            pass
    start = source.randrange(len(content) + 1)
    kind = source.randrange(4)
    if kind == 0:
        return content[:start]
    if kind == 1:
        return content[:start] + source.choice(_BYTES) + content[start + 1 :]
    if kind == 2:
        return content[:start] + content[start + source.randrange(40) :]
    return content[:start] + content[max(start - 30, 0) :]


def _mutated_json(content: bytes, source: random.Random) -> bytes:
    """One value, of one line if each line is one, is replaced, removed or doubled."""
    lines = content.decode().splitlines()
    try:
        document, number = json.loads(content), None
    except ValueError:
        number = source.randrange(len(lines))
        document = json.loads(lines[number])
    places = list(_places(document))
    if not places:
        return json.dumps(source.choice(_VALUES)).encode()
    owner, key = source.choice(places)
    kind = source.randrange(5)
    if kind == 0:
        del owner[key]
    elif kind == 1 and isinstance(owner, list):
        owner.insert(key, owner[key])
    elif kind == 1:
        owner[f"{key}x"] = owner.pop(key)
    else:
        owner[key] = source.choice(_VALUES)
    text = json.dumps(document)
    if number is not None:
        text = "\n".join([*lines[:number], text, *lines[number + 1 :]]) + "\n"
    return text.encode()


def _places(value: object) -> Iterator[tuple[dict | list, str | int]]:
    """Each place in a document, as (object or list, key or index); lists of many only in part."""
    entries = value.items() if isinstance(value, dict) else []
    entries = enumerate(value[:20]) if isinstance(value, list) else entries
    for key, inner in entries:
        yield value, key
        yield from _places(inner)


def mutated_archive(content: bytes, source: random.Random) -> bytes:
    """A tar archive, packed as before, with an odd member among its own."""
    packed, target = io.BytesIO(content), io.BytesIO()
    with tarfile.open(fileobj=packed) as before:
        mode = "w:gz" if content[:2] == b"\x1f\x8b" else "w"
        members = [(member, before.extractfile(member).read()) for member in before]
    for _ in range(source.randint(1, 3)):
        odd = tarfile.TarInfo(source.choice(_ODD_NAMES))
        odd.type, odd.linkname = source.choice(_TAR_TYPES), source.choice(_ODD_NAMES)
        odd.size = source.choice(_SIZES[:5])
        members.insert(source.randint(0, len(members)), (odd, bytes(odd.size)))
    form = source.choice((tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT))
    options = {"format": form, "encoding": "utf-8", "errors": "surrogateescape"}
    with tarfile.open(fileobj=target, mode=mode, **options) as after:
        for member, inside in members:
            try:
                header = member.tobuf(form, "utf-8", "surrogateescape")
            except ValueError:  # this form cannot say it
                continue
            if source.random() < 0.1:
                header = _with_size(header, source.choice(_SIZES))
            after.fileobj.write(header + inside + bytes(-len(inside) % tarfile.BLOCKSIZE))
    return target.getvalue()


def _with_size(header: bytes, size: int) -> bytes:
    """A tar header that tells of another size, its checksum right."""
    field = b"%011o\0" % size if 0 <= size < 8**11 else b"\xff" + size.to_bytes(11, signed=True)
    header = header[:124] + field + header[136:148] + b" " * 8 + header[156:]
    total = sum(header[: tarfile.BLOCKSIZE])
    return header[:148] + b"%06o\0 " % total + header[156:]


def mutated_yaml(content: bytes, source: random.Random) -> bytes:
    """YAML in which a word is replaced by an odd one, or has one before it."""
    words = content.decode().split(" ")
    place = source.randrange(len(words))
    words[place] = source.choice(_YAML) + source.choice(("", " ", "\n", f" {words[place]}"))
    return " ".join(words).encode(errors="surrogatepass")


def mutated_arrays(content: bytes, source: random.Random) -> bytes:
    """An .npz file with one array, or its name, replaced."""
    with zipfile.ZipFile(io.BytesIO(content)) as before:
        members = [(name, before.read(name)) for name in before.namelist()]
    place = source.randrange(len(members))
    name, inside = members[place]
    kind = source.randrange(4)
    if kind == 0:
        name = source.choice((*filter(None, _ODD_NAMES[:8]), name[: -len(".npy")], f"x{name}"))
    elif kind == 1:
        inside = inside[: source.randrange(len(inside) + 1)]
    else:
        inside = _array(source) + source.randbytes(source.choice((0, 16, 64, 128)))
    members[place : place + source.randint(0, 1)] = [(name, inside)]
    target = io.BytesIO()
    method = source.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA))
    with zipfile.ZipFile(target, "w", method) as after:
        for member in members:
            after.writestr(*member)
    return target.getvalue()


def _array(source: random.Random) -> bytes:
    """The head of an .npy file."""
    fields = {"descr": source.choice(_DTYPES), "fortran_order": source.random() < 0.5}
    text = repr(fields | {"shape": source.choice(_SHAPES)})
    text = source.choice((text, text, text, text[:-1], "(" * 5_000, "__import__('os')"))
    version, form = source.choice(((1, "<H"), (2, "<I"), (3, "<I"), (9, "<H")))
    return np.lib.format.magic(version, 0) + struct.pack(form, len(text)) + text.encode()


def mutated_weights(content: bytes, source: random.Random) -> bytes:
    """An HDF5 file one data set or group of which is removed, or replaced."""
    import h5py

    target, names = io.BytesIO(content), []
    with h5py.File(target, "a") as file:
        file.visit(names.append)
        name = source.choice(sorted(names))
        was = file[name]
        if source.random() < 0.1:
            was.attrs[source.choice(("name", "x", "dtype"))] = source.choice((1, "bfloat16", "x"))
            return target.getvalue()
        shape = was.shape if isinstance(was, h5py.Dataset) else (2,)
        del file[name]
        with contextlib.suppress(ValueError, TypeError, OSError):  # h5py itself refuses some
            _put_odd(file, name, shape, source)
    return target.getvalue()


def _put_odd(file: "h5py.File", name: str, shape: tuple, source: random.Random) -> None:
    import h5py

    kind = source.randrange(8)
    if kind == 0:
        file[name] = h5py.SoftLink(source.choice((f"/{name}", "/", "/nowhere", "..")))
    elif kind == 1:
        file[name] = h5py.ExternalLink(source.choice(("/etc/passwd", "/dev/zero")), name)
    elif kind == 2:
        external = [("/etc/passwd", 0, h5py.h5f.UNLIMITED)]
        file.create_dataset(name, shape or (2,), "f4", external=external)
    elif kind == 3:
        big = source.choice(((2**40,), (2**29,), (2**30, 8), (*shape, 1), shape[:-1]))
        file.create_dataset(name, big, "f4", chunks=tuple(min(size, 8) for size in big) or None)
    elif kind == 4:
        kinds = ("i8", "f8", "f2", "S9", "c8", h5py.string_dtype(), h5py.ref_dtype, "V8", "?")
        file.create_dataset(name, shape, source.choice(kinds))
    elif kind == 5:
        file.create_group(name)
    elif kind == 6:
        file.create_dataset(name, shape, "f4", fillvalue=source.choice((np.nan, np.inf, 1e38)))
    else:
        file.create_dataset(name, data=h5py.Empty("f4"))


def mutated_frames(content: bytes, source: random.Random) -> bytes:
    """A TFRecord file one frame of which is another; all checksums are right."""
    from spanbert_tf.data.tfrecords import masked_checksum

    frames, place = [], 0
    while place < len(content):
        (length,) = struct.unpack_from("<Q", content, place)
        frames.append((length, content[place + 12 : place + 12 + length]))
        place += length + 16
    number = source.randrange(len(frames))
    length, record = frames[number]
    kind = source.randrange(3)
    if kind == 0:
        frames[number] = source.choice(_LENGTHS), record
    elif kind == 1 and record:
        start = source.randrange(len(record))
        changed = record[:start] + source.randbytes(source.randrange(4)) + record[start + 1 :]
        frames[number] = len(changed), changed
    else:
        frames[number : number + source.randint(0, 1)] = [source.choice(frames)]
    parts = []
    for length, record in frames:
        stated = struct.pack("<Q", length)
        parts += [stated, masked_checksum(stated), record, masked_checksum(record)]
    return b"".join(parts)


def _socket(path: pathlib.Path) -> None:
    """A socket of a file system; its path, which may have 107 bytes, is given from its folder."""
    before = os.getcwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(before)


def special_files(*, endless: bool) -> dict[str, Callable[[pathlib.Path], object]]:
    """What may lie in place of a file: name → what makes it at a path where nothing is.

    Args:
        endless: among them what waits, or has no end.
    """
    links = ("/dev/null", "/proc/self/mem", "/etc/shadow", "/", "nowhere")
    links += ("/dev/zero", "/dev/full", "/dev/stdin") if endless else ()
    return {
        **({"a pipe": os.mkfifo} if endless else {}),
        "a socket": _socket,
        "a directory": pathlib.Path.mkdir,
        "an empty file": pathlib.Path.touch,
        "a link to itself": lambda path: path.symlink_to(path.name),
        **{f"a link to {link}": lambda path, link=link: path.symlink_to(link) for link in links},
    }
