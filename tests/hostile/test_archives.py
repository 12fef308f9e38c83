"""Archives that strangers made: nothing outside is written or read, little memory is taken."""

import bz2
import gzip
import io
import lzma
import os
import pathlib
import random
import resource
import tarfile
import tempfile

import pytest

from spanbert_tf.conversion.archives import opened_source
from spanbert_tf.errors import BadInputError

FILES = {"config.json": b"{}", "vocab.txt": b"[PAD]\n", "pytorch_model.bin": bytes(range(256)) * 9}


def member(name, kind=tarfile.REGTYPE, link="", size=0):
    found = tarfile.TarInfo(name)
    found.type, found.linkname, found.size = kind, link, size
    return found


@pytest.fixture
def pack(tmp_path):
    """Writes an archive of members, each with its content, and gives its path."""

    def packed(*members, name="model.tar.gz", mode="w:gz", **options):
        path = tmp_path / "archives" / name
        path.parent.mkdir(exist_ok=True)
        with tarfile.open(path, mode, **options) as archive:
            for manifest, content in members:
                manifest.size = manifest.size or len(content)
                archive.addfile(manifest, io.BytesIO(content))
        return str(path)

    return packed


@pytest.fixture(autouse=True)
def unpacking(tmp_path, monkeypatch):
    """Where archives are unpacked; it is empty again after each test."""
    directory = tmp_path / "unpacking"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    yield directory
    assert not os.listdir(directory)


def read(path):
    return pathlib.Path(path).read_bytes()


def content_of(path):
    """Name → bytes of what readers find."""
    with opened_source(path) as directory:
        assert all(entry.is_file(follow_symlinks=False) for entry in os.scandir(directory))
        return {entry.name: read(entry.path) for entry in os.scandir(directory)}


def refusal(path):
    """The one line that refuses an archive."""
    with pytest.raises(BadInputError) as caught, opened_source(path):
        pass
    line = str(caught.value)
    assert line.startswith(f"{path}: ") and line.isprintable() and len(line) < 1_000
    return line


def chain_of_links(outside):
    """CVE-2025-4517: links to directories whose whole path is longer than PATH_MAX.

    `os.path.realpath` stops resolving there, and `filter="data"` takes outside for inside.
    """
    long = "d" * 247
    parent = ""
    for step in "abcdefghijklmnop":
        yield member(os.path.join(parent, long), tarfile.DIRTYPE), b""
        yield member(os.path.join(parent, step), tarfile.SYMTYPE, long), b""
        parent = os.path.join(parent, long)
    last = "a/b/c/d/e/f/g/h/i/j/k/l/m/n/o/p/" + "l" * 254
    yield member(last, tarfile.SYMTYPE, "../" * 16), b""
    yield member("escape", tarfile.SYMTYPE, f"{last}/../../..{outside}"), b""
    yield member("config.json", tarfile.LNKTYPE, "escape/precious.txt"), b""
    yield member("config.json"), b"overwritten"
    yield member("escape/new.txt"), b"new"


@pytest.mark.parametrize("is_first", [True, False])
def test_a_chain_of_links_writes_nothing_outside(is_first, pack, tmp_path, unpacking):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious.txt").write_text("precious")
    plain = [(member(name), content) for name, content in FILES.items() if name != "config.json"]
    chain = list(chain_of_links("/../../../.." + str(outside)))
    path = pack(*(chain + plain if is_first else plain + chain))
    assert "is a link" in refusal(path)
    assert {file.name: file.read_text() for file in outside.iterdir()} == {
        "precious.txt": "precious"
    }


@pytest.mark.parametrize(
    "kind, link, words",
    [
        (tarfile.SYMTYPE, "/etc/passwd", "is a link"),
        (tarfile.SYMTYPE, "vocab.txt", "is a link"),  # of `tar` without --dereference
        (tarfile.LNKTYPE, "vocab.txt", "is a link"),
        (tarfile.LNKTYPE, "/etc/passwd", "is a link"),
        (tarfile.FIFOTYPE, "", "is no plain file"),
        (tarfile.CHRTYPE, "", "is no plain file"),
        (tarfile.BLKTYPE, "", "is no plain file"),
        (tarfile.GNUTYPE_SPARSE, "", "is no plain file"),
        (b"Z", "", "is no plain file"),
    ],
)
def test_what_is_no_plain_file_is_refused(kind, link, words, pack):
    path = pack((member("vocab.txt"), b"[PAD]\n"), (member("config.json", kind, link), b""))
    assert f"'config.json': {words}" in refusal(path)


@pytest.mark.parametrize(
    "name", ["/tmp/config.json", "../config.json", "a/../../config.json", "..", "a/..", "//x/y"]
)
@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.DIRTYPE])
def test_names_that_lead_outside_are_refused(name, kind, pack, tmp_path):
    assert "leads outside" in refusal(pack((member(name, kind), b"")))
    assert {entry.name for entry in tmp_path.iterdir()} == {"archives", "unpacking"}


def test_a_file_that_is_there_twice_is_refused(pack):
    twice = [(member("model/config.json"), b"{}"), (member("./model//config.json"), b"[]")]
    assert "'model/config.json' twice" in refusal(pack(*twice))


def test_a_file_and_a_directory_of_one_name(pack):
    path = pack((member("config.json/config.json"), b"{}"), (member("config.json"), b"[]"))
    assert content_of(path) == {"config.json": b"[]"}


@pytest.mark.parametrize(
    "name", ["con\x1b[2Jfig", "line\nend", "\u202egnp", "\udcff\udcfe", "é" * 200]
)
def test_odd_names_are_shown_escaped(name, pack):
    path = pack((member(f"../{name}"), b""), encoding="utf-8", errors="surrogateescape")
    assert refusal(path).isascii()


@pytest.mark.parametrize(
    "name", ["\x1b[2J.bin", "a\nb.bin", "\u202enib.bin", "\udcff.bin", "._m.bin"]
)
def test_files_of_odd_names_are_not_taken(name, pack):
    members = [(member(name), b"odd"), (member("pytorch_model.bin"), b"plain")]
    path = pack(*members, encoding="utf-8", errors="surrogateescape")
    assert content_of(path) == {"pytorch_model.bin": b"plain"}


@pytest.mark.parametrize("directory", ["", "./", "model/", "./model/"])
@pytest.mark.parametrize(
    "suffix, mode", [("gz", "w:gz"), ("bz2", "w:bz2"), ("xz", "w:xz"), ("", "w")]
)
def test_plain_archives_give_what_readers_ask_for(directory, suffix, mode, pack):
    members = [(member(f"{directory}{name}"), content) for name, content in FILES.items()]
    others = [(member(f"{directory}{name}"), b"x") for name in ("run.sh", "checkpoint", ".bashrc")]
    deeper = [(member(f"{directory}a/b/c/config.json"), b"deeper")]
    folder = [(member(directory, tarfile.DIRTYPE), b"")] if directory else []
    path = pack(*folder, *others, *members, *deeper, name=f"model.tar.{suffix}", mode=mode)
    assert content_of(path) == FILES


@pytest.mark.parametrize("layout", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_each_layout_of_tar_is_read(layout, pack):
    name = "modèle-" + "x" * 90 + "/" + "y" * 80 + ".safetensors"
    path = pack((member(name), b"weights"), format=layout, mode="w:xz")
    assert content_of(path) == {name.split("/")[1]: b"weights"}


def test_several_directories_are_not_chosen_from(pack):
    path = pack((member("base/config.json"), b"{}"), (member("large/config.json"), b"{}"))
    assert "holds checkpoints in 2 directories" in refusal(path)


@pytest.mark.parametrize("name", ["config.json", "not_needed", "a/b/c/d"])
@pytest.mark.parametrize("opener", [gzip.open, bz2.open, lzma.open])
def test_a_bomb_is_refused_before_it_unpacks(opener, name, tmp_path):
    """A member that says 8 GiB; what is not needed would have to be unpacked, too."""
    path = str(tmp_path / "bomb.tar.gz")
    with opener(path, "wb") as file:
        file.write(member(name, size=8 << 30).tobuf(tarfile.GNU_FORMAT))
        file.writelines([bytes(1 << 20)] * 2)
    assert "unpacks to more than 6" in refusal(path)  # 64 MiB, and a little for its size


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
def test_long_headers_are_not_read(kind, tmp_path):
    """`tarfile` makes one string of such a header, and searches that of pax in quadratic time."""
    path = str(tmp_path / "header.tar.gz")
    with gzip.open(path, "wb") as file:
        file.write(member("config.json", kind, size=48 << 20).tobuf(tarfile.GNU_FORMAT))
        file.writelines([b"9" * (1 << 20)] * 48)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert "the headers are too long" in refusal(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 16 << 10  # KiB


def test_many_members_are_not_listed(tmp_path):
    path = str(tmp_path / "many.tar.gz")
    with gzip.open(path, "wb", compresslevel=1) as file:
        for number in range(3_000):
            file.write(member(f"{number}").tobuf())
    assert "too many" in refusal(path)


def test_many_small_files_are_bounded_together(pack):
    """Each is below the limit; the third is not written."""
    zeros = bytes(30 << 20)
    path = pack(*((member(f"{number}.bin"), zeros) for number in range(3)))
    assert "unpacks to more than" in refusal(path)


@pytest.mark.parametrize("opener", [open, gzip.open, lzma.open])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_truncated_archives_are_refused(opener, share, pack, tmp_path):
    members = [(member(name), os.urandom(50_000)) for name in ("a.bin", "b.bin", "config.json")]
    whole = read(pack(*members, mode="w")).rstrip(b"\0") + bytes(1024)
    path = str(tmp_path / "cut.tar.gz")
    if opener is open:
        content = whole[: int(share * (len(whole) - 1023))]
    else:
        with opener(path, "wb") as file:
            file.write(whole)
        content = read(path)
        content = content[: int(share * len(content))]
    pathlib.Path(path).write_bytes(content)
    assert "cut off" in (line := refusal(path)) or "damaged" in line


@pytest.mark.parametrize("size", [-512, -1, 2**62])
@pytest.mark.parametrize("layout", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_sizes_that_lead_backwards_end(size, layout, tmp_path):
    """CVE-2025-8194: a negative size leads `tarfile` round and round for ever."""
    manifest = member("config.json", size=size)
    if layout == tarfile.PAX_FORMAT:
        manifest.size, manifest.pax_headers = 0, {"size": str(size)}
    path = str(tmp_path / "backwards.tar")
    with open(path, "wb") as file:
        file.write(manifest.tobuf(layout) + bytes(1024))
    refusal(path)


def test_changed_bytes_are_read_or_refused(pack, tmp_path):
    """What `tarfile` makes of damaged headers, it says in one line."""
    random_bytes = random.Random(0)
    pax = member("modèle/config.json")
    pax.pax_headers = {"comment": "x" * 300}
    whole = read(pack((pax, b"{}"), (member("y" * 150), b"z"), mode="w"))[:6_000]
    path = str(tmp_path / "changed.tar")
    for _ in range(150):
        content = bytearray(whole)
        for _ in range(random_bytes.randint(1, 4)):
            content[random_bytes.randrange(len(content))] = random_bytes.choice(
                b"\0\xff 09=\n-xgLKS1"
            )
        for start in range(0, len(content) - 511, 512):  # checksums that fit
            block = content[start : start + 512]
            block[148:156] = b" " * 8
            if content[start + 257 : start + 262] == b"ustar":
                content[start + 148 : start + 156] = b"%06o\0 " % sum(block)
        pathlib.Path(path).write_bytes(content)
        try:
            with opened_source(path):
                pass
        except BadInputError as error:
            assert str(error).isprintable()
