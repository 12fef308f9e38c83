"""What is no corpus is refused by its content; prose never is, whatever it looks like."""

import bz2
import csv
import gzip
import io
import itertools
import os
import pydoc_data.topics
import random
import re
import struct
import tarfile
import zipfile

import pytest

from data_prep.text.corpus import DocumentReader
from spanbert_tf.errors import BadInputError
from spanbert_tf.files.text_files import read_text_file

PARAGRAPHS = [text for text in pydoc_data.topics.topics.values() if text.strip()]
SENTENCES = [" ".join(text.split())[:200] for text in PARAGRAPHS]


def written_csv(rows, delimiter=",", quoting=csv.QUOTE_MINIMAL):
    file = io.StringIO()
    csv.writer(file, delimiter=delimiter, quoting=quoting).writerows(rows)
    return file.getvalue()


def archive(kind):
    file = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(file, "w") as written:
            written.writestr("text.txt", "Some text.")
    else:
        with tarfile.open(fileobj=file, mode="w") as written:
            written.add(__file__, "text.txt")
    return file.getvalue()


TEXT = "\n\n".join(SENTENCES[:20])
# What the libraries write, or, where none is installed, the beginning that the format prescribes.
BINARY = {
    "ZIP": archive("zip"),
    "tar": archive("tar"),
    "PDF": b"%PDF-1.7\n1 0 obj << >> endobj",
    "RTF": rb"{\rtf1\ansi Some text.}",
    "TFRecord": struct.pack("<QI", 20, 1234567) + bytes(24),
    "UTF-16": TEXT.encode("utf-16"),
    "UTF-16 or": TEXT.encode("utf-16-le"),
}


# `DocumentReader` reads them as tables.
TABLES_OF_COLUMNS = {
    "Parquet": b"PAR1\x15\x04\x15\x10" + bytes(40) + b"PAR1",
    "Feather": b"ARROW1\0\0" + bytes(40),
    "Arrow": b"\xff\xff\xff\xff\xf0\x01\0\0\x10\0\0\0" + bytes(40),
}


@pytest.mark.parametrize("name", TABLES_OF_COLUMNS)
def test_tables_of_columns_are_named_where_text_is_read(tmp_path, name):
    path = tmp_path / "texts.conll"
    path.write_bytes(TABLES_OF_COLUMNS[name])
    with pytest.raises(BadInputError, match=f"is .*{name}.* and not read here; write its rows as"):
        read_text_file(str(path))
    with pytest.raises(BadInputError, match=f"^{re.escape(str(path))}: is broken"):
        next(iter(DocumentReader(str(path))))


def test_what_is_compressed_twice_is_named(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_bytes(gzip.compress(bz2.compress(TEXT.encode())))
    for read in (lambda path: next(iter(DocumentReader(path))), read_text_file):
        with pytest.raises(BadInputError, match=r"is compressed twice \(bzip2\); unpack it once"):
            read(str(path))


@pytest.mark.parametrize("is_compressed", [False, True])
@pytest.mark.parametrize("name", BINARY)
def test_binary_formats_are_named(tmp_path, name, is_compressed):
    path = tmp_path / "corpus.txt"
    path.write_bytes(gzip.compress(BINARY[name]) if is_compressed else BINARY[name])
    for read in (lambda path: next(iter(DocumentReader(path))), read_text_file):
        with pytest.raises(BadInputError) as error:
            read(str(path))
        message = str(error.value)
        assert message.startswith(f"{path}: is ") and "\n" not in message
        assert name in message and "not read here; " in message
        assert ("inside a compressed file" in message) == is_compressed
        if name == "Parquet":  # pandas would not read one that is compressed again
            assert ("; unpack corpus.txt and name" in message) == is_compressed
            assert ("pandas.read_parquet('corpus.txt')" in message) != is_compressed


ROWS = [[number, sentence, number % 2] for number, sentence in enumerate(SENTENCES[:50])]
HEADER = ["id", "body", "label"]
TABLES = {
    "header": (written_csv([HEADER, *ROWS]), "CSV"),
    "two lines": (written_csv([HEADER, ROWS[0]]), "CSV"),
    "unquoted": ("review,label\nA good film,1\nA bad one,0\n", "CSV"),
    "row numbers of pandas": (written_csv([["", *HEADER[1:]], *ROWS]), "CSV"),
    "all quoted": (written_csv(ROWS, quoting=csv.QUOTE_ALL), "CSV"),
    "no header": (written_csv(ROWS), "CSV"),
    "lines in cells": (
        written_csv([HEADER, *([1, text, 0] for text in PARAGRAPHS[:9])]),
        "CSV",
    ),
    "a broken row": (written_csv([HEADER, *ROWS, ["a", "b"]]), "CSV"),
    "one column": (
        written_csv([["review"], *([text] for text in SENTENCES[:50])]),
        "CSV of one column",
    ),
    "semicolons": (written_csv([HEADER, *ROWS], ";"), "CSV with semicolons"),
    "tabs": (written_csv([HEADER, *ROWS], "\t"), "TSV"),
    "tabs and quotes": ('body\tlabel\n"I said\tno\n', "TSV"),
    "numbered sentences": (written_csv([row[:2] for row in ROWS], "\t"), "TSV"),
    "parallel text": (written_csv(itertools.pairwise(SENTENCES[:13]), "\t"), "TSV"),
}
PAGE = "<head><title>A page</title></head><body><p>Some text.</p></body></html>"
MARKUP = {
    "doctype": (f"<!DOCTYPE html>\n<html>{PAGE}", "HTML"),
    "old doctype": (f'\ufeff\n<!doctype HTML PUBLIC "-//W3C//DTD HTML 4.01//EN">{PAGE}', "HTML"),
    "comment first": (f"<!-- saved from\nsomewhere -->\n<HTML lang=en>{PAGE}", "HTML"),
    "XHTML": (f'<?xml version="1.0"?>\n<html xmlns="…">{PAGE}', "HTML"),
    "piece": ('<div class="text"><p>One.</p>\n<p>Two, and <b>three</b>.</p></div>', "HTML"),
    "dump": ('<mediawiki xml:lang="en">\n<page><title>A</title></page>', "MediaWiki's XML"),
    "XML": ('<?xml version="1.0"?>\n<TEI><text>Some</text></TEI>', "XML"),
}


@pytest.mark.parametrize("is_compressed", [False, True])
@pytest.mark.parametrize("name", TABLES)
def test_tables_without_a_known_column_are_named(tmp_path, name, is_compressed):
    text, kind = TABLES[name]
    path = tmp_path / "corpus.txt"
    path.write_bytes(gzip.compress(text.encode()) if is_compressed else text.encode())
    with pytest.raises(BadInputError) as error:
        next(iter(DocumentReader(str(path))))
    message = str(error.value)
    assert message.startswith(f"{path}: is {kind} without a column 'text'; its first line has ")
    assert message.endswith("name the column of its text with --text-column")
    has_header = not {"all quoted", "no header", "numbered sentences", "parallel text"} & {name}
    assert ("write the names of its columns in its first line" in message) != has_header


@pytest.mark.parametrize("column", ["body", "id"])
@pytest.mark.parametrize("is_compressed", [False, True])
@pytest.mark.parametrize("name", MARKUP)
def test_pages_are_named_whatever_column_is_asked_for(tmp_path, name, is_compressed, column):
    text, kind = MARKUP[name]
    path = tmp_path / "corpus.csv"
    path.write_bytes(gzip.compress(text.encode()) if is_compressed else text.encode())
    with pytest.raises(BadInputError) as error:
        next(iter(DocumentReader(str(path), text_columns=(column,))))
    assert str(error.value).startswith(f"{path}: is {kind}, which would be read as text; ")


@pytest.mark.parametrize("is_compressed", [False, True])
@pytest.mark.parametrize("name", MARKUP)
def test_pages_are_named(tmp_path, name, is_compressed):
    text, kind = MARKUP[name]
    path = tmp_path / "corpus.txt"
    path.write_bytes(gzip.compress(text.encode()) if is_compressed else text.encode())
    with pytest.raises(BadInputError) as error:
        next(iter(DocumentReader(str(path))))
    assert str(error.value).startswith(f"{path}: is {kind}")
    assert "which would be read as text; " in str(error.value)


def test_a_table_is_known_by_its_first_megabyte(tmp_path):
    """Its last row there is cut anywhere, inside of quotes, too."""
    path = tmp_path / "corpus.txt"
    rows = [[number, text] for number, text in enumerate(PARAGRAPHS * 5)]
    path.write_text(written_csv([HEADER[:2], *rows]))
    assert path.stat().st_size > 2 << 20
    with pytest.raises(BadInputError, match="is CSV"):
        next(iter(DocumentReader(str(path))))


PROSE = {
    "a line of names": "Smith, John\nDoe, Jane\nRoe, Richard",
    "verse with a comma a line": "Roses are red,\nViolets are blue,\nSugar is sweet,",
    "verse with one in each": "One, two\nbuckle my shoe, three, four\nknock, knock",
    "Chinese verse, ASCII commas": "床前明月光,疑是地上霜\n举头望明月,低头思故乡\n一,二",
    "dialogue": '"Well," said he, "go."\n"No," said she, "I stay."\n"Then stay," said he, "so."',
    "quoted lines": '"Yes."\n"No."\n"Perhaps, or not."',
    "tabs before lines": "\tCall me Ishmael.\n\tSome years ago.\n\tNever mind how long.",
    "contents": "Contents\nChapter 1\t1\nChapter 2\t17\n\nOnce upon a time.",
    "numbers": "1,5\n2,5\n3,5\n4,5",
    "code": "import os,sys\nimport re,json\n\ndef f(a,b):\n    return a,b",
    "C": "int a;\nint b;\nint c;",
    "lisp": "; one\n; two\n; three",
    "about HTML": "The element <p> begins a paragraph, </p> ends it, </div> </div> a part.",
    "COCA": "<p> It was the best of times . <p> It was the worst of times .",
    "a title and text": "text\n\nSome prose, with commas.",
    "the word text": 'text\nis "a word, after all", and so on, too',
    "WikiText": " = Valkyria Chronicles III = \n\n Senjō no <unk> @-@ 3 , a game",
    "bzip's name": "BZh is how its files begin.",
    "Parma": "PARMA, a city. PAR 1.",
    "wiki table": "{|\n|a||b\n|c||d\n|}",
}


@pytest.mark.parametrize("name", PROSE)
def test_prose_is_read(tmp_path, name):
    path = tmp_path / "corpus.txt"
    path.write_text(PROSE[name], encoding="utf-8")
    assert list(DocumentReader(str(path)))
    assert read_text_file(str(path)) == PROSE[name]


def test_sources_of_python_are_read():
    """Code and documentation, with every kind of punctuation: none is taken for something else."""
    directory = os.path.dirname(os.__file__)
    names = sorted(name for name in os.listdir(directory) if name.endswith((".py", ".txt")))
    for name in random.Random(0).sample(names, 60):
        path = os.path.join(directory, name)
        if os.path.getsize(path):
            assert next(iter(DocumentReader(path)))
