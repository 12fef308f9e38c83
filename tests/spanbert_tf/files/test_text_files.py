"""What is read from JSON has the shape that is stated, or one line says where it has not."""

import dataclasses
import random
import re
from typing import Annotated, ClassVar

import pytest
from annotated_types import Ge
from typing_extensions import TypedDict

from benchmarks.fuzzed_containers import mutated
from spanbert_tf.errors import BadInputError
from spanbert_tf.files.text_files import parse_json, read_text_file


@dataclasses.dataclass
class Point:
    x: Annotated[int, Ge(0)]
    names: list[str]
    y: float = 0.5

    __pydantic_config__: ClassVar[dict] = {"extra": "forbid"}


class Line(TypedDict):
    text: str
    spans: list[list[int]]


def test_what_fits_is_read():
    assert parse_json('{"x": 3, "names": ["a"]}', Point, "p") == Point(3, ["a"])
    line = {"text": "\ud800", "spans": [[1, 2]]}
    assert parse_json('{"text": "\\ud800", "spans": [[1, 2]], "more": 1}', Line, "p") == line
    assert parse_json(b'"text"', str, "p") == "text"


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ('{"x": 3}', Point, "p: names: is missing; mend it"),
        ('{"x": "3", "names": []}', Point, "p: x: should be a valid integer; mend it"),
        ('{"x": true, "names": []}', Point, "p: x: should be a valid integer; mend it"),
        ('{"x": -1, "names": []}', Point, "p: x: should be greater than or equal to 0; mend it"),
        ('{"x": 1, "names": ["a", 2]}', Point, "p: names[1]: should be a valid string; mend it"),
        (
            '{"x": 1, "names": [], "a\\nb": 2}',
            Point,
            'p: "a\\nb": unexpected keyword argument; mend it',
        ),
        ("[]", Point, "p: should be an object; mend it"),
        ("3", Line, "p: should be a valid dictionary; mend it"),
        (
            '{"text": "", "spans": [[1], ["2"]]}',
            Line,
            "p: spans[1][0]: should be a valid integer; mend it",
        ),
    ],
)
def test_what_does_not_is_one_line_with_its_place(text, kind, message):
    with pytest.raises(BadInputError) as caught:
        parse_json(text, kind, "p", "mend it")
    assert str(caught.value) == message


@pytest.mark.parametrize("kind", [Point, Line, dict[str, int]])
def test_damaged_json_ends_in_one_line(kind):
    source = random.Random(1)
    content = b'{"x": 3, "names": ["a", "b"], "text": "c", "spans": [[1, 2], [3]]}'
    texts = [b"", b"\xff", b"[" * 100_000, b'{"x": 1e999}', b'{"x": NaN}']
    texts += [mutated(content, source) for _ in range(500)]
    refused = 0
    for text in texts:
        try:
            parse_json(text, kind, "p")
        except BadInputError as error:
            refused += 1
            assert "\n" not in str(error)
            str(error).encode()  # can be printed
    assert refused > 200


@pytest.mark.parametrize(("name", "advice"), [("a.txt", ""), ("*.txt", "; patterns are not taken")])
def test_a_missing_file_is_named_and_a_pattern_for_what_it_is(name, advice, tmp_path):
    path = tmp_path / name
    with pytest.raises(BadInputError, match=f"^{re.escape(f'{path}: no such file{advice}')}"):
        read_text_file(str(path))


@pytest.mark.parametrize("names", [(), ("b.conll", "a.conll", ".hidden")])
def test_a_folder_leads_to_a_file_in_it(names, tmp_path):
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(BadInputError) as error:
        read_text_file(str(tmp_path))
    example = f", such as {tmp_path / 'a.conll'}" if names else ""
    assert str(error.value) == f"{tmp_path}: is a directory; name a file of it{example}"
