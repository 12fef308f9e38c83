"""Files that are not what was written."""

import pytest

from spanbert_tf.errors import BadInputError
from spanbert_tf.files.contents import check_files, checksums


def flip(path):
    path.write_bytes(b"some Bytes")


def lengthen(path):
    path.write_bytes(b"some bytes and more")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (flip, r"second: is damaged or changed"),
        (lengthen, r"second: has 19 bytes, not the 10 that were written; copy it again"),
        (lambda path: path.unlink(), r"second: is missing"),
        (lambda path: (path.unlink(), path.mkdir()), r"second: "),
    ],
)
def test_damage_is_named(damage, words, tmp_path):
    for name in ("first", "second"):
        (tmp_path / name).write_bytes(b"some bytes")
    written = checksums(str(tmp_path), ["first", "second"])
    check_files(str(tmp_path), written)
    damage(tmp_path / "second")
    with pytest.raises(BadInputError, match=words) as caught:
        check_files(str(tmp_path), written)
    assert "\n" not in str(caught.value)
    check_files(str(tmp_path), {"first": written["first"]})
