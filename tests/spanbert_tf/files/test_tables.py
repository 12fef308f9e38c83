"""Tables of every format give back the rows that Python's and pyarrow's own writers put in them."""

import bz2
import csv
import gzip
import io
import json
import lzma
import os
import random
import re
import subprocess
import sys
import tracemalloc

import pandas
import pyarrow
import pyarrow.feather
import pyarrow.parquet
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typing_extensions import TypedDict

from spanbert_tf.errors import BadInputError
from spanbert_tf.files import tables
from spanbert_tf.files.compression import READ_SIZE, UnpackedFile
from spanbert_tf.files.tables import files_of_dataset, is_columnar, open_table, read_objects
from spanbert_tf.files.tables import read_rows as read_rows_of

COMPRESSIONS = {
    "none": bytes,
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstd": zstandard.compress,
}
# Of one to four bytes, and what means something in one of the formats; no NUL, which is refused.
CELLS = st.text("ab ß漢\U0001d518\"',;|\t\n\r{}[]\\:.-", min_size=1, max_size=12)
ROWS = st.lists(st.fixed_dictionaries({"id": CELLS, "text": CELLS}), min_size=1, max_size=8)


def delimited(rows, delimiter=",", **options):
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter, **options)
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue().encode()


def json_lines(rows):
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def json_array(rows, **options):
    return json.dumps(rows, ensure_ascii=False, **options).encode()


def arrow_stream(rows):
    file = io.BytesIO()
    table = pyarrow.Table.from_pylist(rows)
    with pyarrow.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=3)
    return file.getvalue()


def arrow_file(rows):
    file = io.BytesIO()
    pyarrow.feather.write_feather(pyarrow.Table.from_pylist(rows), file)
    return file.getvalue()


def parquet(rows, **options):
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file, row_group_size=3, **options)
    return file.getvalue()


TEXTS = {
    "CSV": delimited,
    "CSV of Windows": lambda rows: delimited(rows, lineterminator="\r\n"),
    "semicolons": lambda rows: delimited(rows, ";"),
    "TSV with quotes": lambda rows: delimited(rows, "\t", quoting=csv.QUOTE_ALL),
    "JSON lines": json_lines,
    "JSON array": json_array,
    "indented JSON array": lambda rows: json_array(rows, indent=2),
    "Arrow stream": arrow_stream,
}
COLUMNAR = {
    "Feather": arrow_file,
    "Parquet": parquet,
    "Parquet of zstd": lambda rows: parquet(rows, compression="zstd"),
}


def read_rows(path, *arguments):
    return [row.values for row in read_rows_of(str(path), *arguments)]


@pytest.mark.parametrize("name", [*TEXTS, *COLUMNAR])
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=ROWS, compression=st.sampled_from(sorted(COMPRESSIONS)))
def test_written_rows_are_read_back(tmp_path, name, rows, compression):
    content = {**TEXTS, **COLUMNAR}[name](rows)
    path = tmp_path / "table"  # its name tells nothing
    path.write_bytes(COMPRESSIONS[compression](content) if name in TEXTS else content)
    assert read_rows(path, ["id", "text"]) == rows
    assert read_rows(path, ["text"], ["id", "missing"]) == [
        {"text": row["text"], "id": row["id"]} for row in rows
    ]


def test_cells_of_tsv_are_texts_with_their_quotation_marks(tmp_path):
    path = tmp_path / "table"
    path.write_text('id\ttext\r\n1\t"He said\r\n2\tshe "left"\n\n\n')
    assert read_rows(path, ["text"]) == [{"text": '"He said'}, {"text": 'she "left"'}]


@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
@pytest.mark.parametrize("separator", list("\t;|,"))
def test_quoted_cells_lose_their_quotation_marks(tmp_path, monkeypatch, separator, quoting):
    """A cell with quotation marks alone would be read as it stands, with doubled ones."""
    path = tmp_path / "table"
    texts = ['He said "hi" to me', '"Yes"', "plain", 'ends "so"', ""]
    frame = pandas.DataFrame({"id": range(5), "text": texts})
    frame.to_csv(path, index=False, sep=separator, quoting=quoting)
    assert [row["text"] for row in read_rows(path, ["text"])] == texts
    table = path.read_bytes()
    for size in range(table.index(b"hi") + 4, len(table)):  # more than is looked at
        monkeypatch.setattr(tables, "READ_SIZE", size)
        found = tables.find_dialect("x", table[:size], ["text"])
        assert found == tables.Dialect(separator, has_quotes=True)


@pytest.mark.parametrize(
    "texts",
    [
        ['"Yes," he said ""', 'a ""b""'],
        ['"He said ""no', "b"],
        ['"Yes"', "b"],
        ['""', '"a ""b"" c'],
    ],
)
def test_texts_with_other_quotation_marks_stay(tmp_path, texts):
    path = tmp_path / "table"
    path.write_text("".join(f"{len(text)}\t{text}\n" for text in ["text", *texts]))
    assert [row["text"] for row in read_rows(path, ["text"])] == texts


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        ("text\nOne, two\nthree\n", ["One, two", "three"]),
        ('text\n"One, two"\n"a ""b"""\n', ["One, two", 'a "b"']),
        ('text\n"One\ntwo"\n', ["One\ntwo"]),
        ("text|n\na,b|1\nc|2\n", ["a,b", "c"]),
    ],
)
def test_the_separator_is_the_one_that_fits(tmp_path, content, texts):
    path = tmp_path / "table"
    path.write_text(content)
    assert read_rows(path, ["text"]) == [{"text": text} for text in texts]


NESTED = [
    {"meta": {"title": "A", "by": {"name": "x"}}, "text": "one"},
    {"meta": {"title": None, "by": None}, "text": "two"},
]


@pytest.mark.parametrize("write", [json_lines, json_array, parquet, arrow_file, arrow_stream])
def test_dots_lead_into_objects(tmp_path, write):
    path = tmp_path / "table"
    path.write_bytes(write(NESTED))
    columns = ["meta.title", "meta.by.name", "text"]
    assert read_rows(path, columns) == [
        {"meta.title": "A", "meta.by.name": "x", "text": "one"},
        {"meta.title": None, "meta.by.name": None, "text": "two"},
    ]
    assert read_rows(path) == NESTED
    with pytest.raises(BadInputError, match=r"has no column 'meta\.names'; it has meta, .*text"):
        read_rows(path, ["meta.names"])


def test_a_name_with_a_dot_is_found(tmp_path):
    for write in (json_lines, parquet, delimited):
        path = tmp_path / "table"
        path.write_bytes(write([{"a.b": "one", "c": "two"}]))
        assert read_rows(path, ["a.b"]) == [{"a.b": "one"}]


def test_rows_have_their_places(tmp_path):
    path = tmp_path / "table"
    rows = [{"text": f"a\nb {number}"} for number in range(5)]
    places = {
        delimited: [f"line {number}" for number in (2, 4, 6, 8, 10)],
        json_lines: [f"line {number}" for number in range(1, 6)],
        json_array: [f"entry {number}" for number in range(1, 6)],
        parquet: [f"row {number}" for number in range(1, 6)],
        arrow_stream: [f"row {number}" for number in range(1, 6)],
    }
    for write, expected in places.items():
        path.write_bytes(write(rows))
        found = [row.place for row in read_rows_of(str(path), ["text"])]
        assert found == [f"{path}: {place}" for place in expected]


def test_what_pandas_writes_is_read(tmp_path):
    frame = pandas.DataFrame({"text": ["a", None, 'b "c"\n'], "n": [1, 2, 3]})
    for name in ("x.csv", "x.parquet", "x.jsonl", "x.json", "x.tsv"):
        path = tmp_path / name
        if name.endswith("parquet"):
            frame.to_parquet(path)
        elif "json" in name:
            frame.to_json(path, orient="records", lines=name.endswith("l"))
        else:
            frame.to_csv(path, sep="\t" if name.endswith("tsv") else ",")
        nothing = "" if name.endswith(("csv", "tsv")) else None
        assert [row["text"] for row in read_rows(path, ["text"])] == ["a", nothing, 'b "c"\n']


# As `datasets` 4 writes them; `Sequence` was the type of lists before.
FEATURES = {
    "text": {"dtype": "string", "_type": "Value"},
    "label": {"names": ["neg", "pos"], "_type": "ClassLabel"},
    "tags": {"feature": {"names": ["O", "B-PER"], "_type": "ClassLabel"}, "_type": "Sequence"},
    "more": {"feature": {"dtype": "int64", "_type": "Value"}, "_type": "List"},
}
LABELLED = [
    {"text": "a", "label": 1, "tags": [0, 1], "more": [1]},
    {"text": "b", "label": -1, "tags": [], "more": [0]},
]


def table_of_datasets():
    table = pyarrow.Table.from_pylist(LABELLED)
    metadata = {"huggingface": json.dumps({"info": {"features": FEATURES}})}
    return table.replace_schema_metadata(metadata)


def test_numbers_of_classes_become_their_names(tmp_path):
    pyarrow.parquet.write_table(table_of_datasets(), tmp_path / "table")
    assert read_rows(tmp_path / "table") == [
        {"text": "a", "label": "pos", "tags": ["O", "B-PER"], "more": [1]},
        {"text": "b", "label": None, "tags": [], "more": [0]},
    ]


def save_to_disk(directory, num_files):
    """Writes the files that `datasets.Dataset.save_to_disk` writes."""
    directory.mkdir()
    names = [f"data-{number:05d}-of-{num_files:05d}.arrow" for number in range(num_files)]
    table = table_of_datasets()
    for name in names:
        with pyarrow.ipc.new_stream(str(directory / name), table.schema) as writer:
            writer.write_table(table)
    state = {"_data_files": [{"filename": name} for name in names], "_split": "train"}
    (directory / "state.json").write_text(json.dumps(state, indent=2))
    (directory / "dataset_info.json").write_text(json.dumps({"features": FEATURES}, indent=2))


def test_a_saved_data_set_is_read_whole(tmp_path):
    save_to_disk(tmp_path / "train", 3)
    path = str(tmp_path / "train")
    assert is_columnar(path)
    rows = list(read_rows_of(path, ["label"]))
    assert [row.values["label"] for row in rows] == ["pos", None] * 3
    assert rows[-1].place == f"{path}: row 6"
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train"]}')
    words = rf"is a data set with splits \(train\); name .* such as {re.escape(path)}$"
    with pytest.raises(BadInputError, match=words):
        read_rows(tmp_path)
    (tmp_path / "train" / "data-00001-of-00003.arrow").unlink()
    with pytest.raises(BadInputError, match=r"data-00001-of-00003\.arrow: no such file"):
        read_rows(path)


@pytest.mark.parametrize("name", ["../secret.arrow", "/etc/passwd", ""])
def test_a_data_set_names_no_files_outside_of_its_folder(tmp_path, name):
    (tmp_path / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
    with pytest.raises(BadInputError, match="names no files of the folder"):
        files_of_dataset(str(tmp_path))


class Pair(TypedDict):
    id: int
    words: list[str]


def test_objects_have_the_stated_type(tmp_path):
    path = tmp_path / "table"
    rows = [{"id": 1, "words": ["a"]}, {"id": 2, "words": []}]
    for write in (json_lines, json_array, parquet):
        path.write_bytes(write(rows))
        assert read_objects(str(path), Pair) == rows
    path.write_bytes(json_lines([rows[0], {"id": "2", "words": []}]))
    with pytest.raises(BadInputError, match="line 2: id: should be a valid integer"):
        read_objects(str(path), Pair)


ROW = b'{"text": "a"}\n'
GROUPS = parquet([{"text": f"{number} {'x' * 99}"} for number in range(9)], compression=None)


def second_group_damaged():
    """Parquet without the header of the page that begins the second of its three row groups."""
    metadata = pyarrow.parquet.ParquetFile(io.BytesIO(GROUPS)).metadata
    column = metadata.row_group(1).column(0)
    start = column.dictionary_page_offset or column.data_page_offset
    return GROUPS[:start] + b"\xff" * 30 + GROUPS[start + 30 :]


def cut_in_a_batch():
    content = arrow_stream([{"text": f"{number}" * 500} for number in range(9)])
    return content[: len(content) // 2]


def not_utf8():
    binary = pyarrow.array([b"fine", b"\xff"])
    array = pyarrow.StringArray.from_buffers(2, binary.buffers()[1], binary.buffers()[2])
    file = io.BytesIO()
    with pyarrow.ipc.new_stream(file, pyarrow.schema({"text": pyarrow.string()})) as writer:
        writer.write_batch(pyarrow.RecordBatch.from_arrays([array], ["text"]))
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"id,body\n1,a\n", "line 1: has no column 'text'; it has id, body"),
        (b"id\tbody\n1\ta\n", "line 1: has no column 'text'; it has id, body"),
        (b"Some prose, and\nmore of it.\n", "line 1: has no column 'text'; it has Some prose, and"),
        (b"text,text\na,b\n", "line 1: has more than one column 'text'"),
        (b"text,id\na\n", "line 2: has 1 columns, 2 are expected"),
        (b'text,id\na,1\n"b\nc,2\n', "line 3: is no CSV"),
        (b'text,id\n"a" b,1\n', "line 2: is no CSV"),
        (b"text,id\na,1\n\xe9,2\n", "line 3: cannot be read as UTF-8 .*byte 0 of the line, 0xe9"),
        (b"text,id\na\0,1\n", "line 2: holds a NUL"),
        (ROW + b"{", "line 2: not JSON"),
        (ROW + b"\n[1]\n", "line 3: is no JSON object"),
        (ROW + b'{"text": "\xe9"}', "line 2: cannot be read as UTF-8"),
        (ROW + b'{"body": "a"}\n', "line 2: has no column 'text'; it has body"),
        (
            b'[{"text": "a"},\n{"text": "\xe9"}]',
            "entry 1: near it: cannot be read as UTF-8|entry 0",
        ),
        (parquet([{"body": "a"}]), "has no column 'text'; it has body"),
        (GROUPS[:-20], "is broken"),
        (second_group_damaged(), r"row group 2 \(rows 4 to 6\): is broken"),
        (cut_in_a_batch(), "batch 2: is broken"),
        (not_utf8(), "row 2: cannot be read as UTF-8"),
        (
            gzip.compress(delimited([{"text": "a" * 999}]), mtime=0)[:-9],
            "broken gzip in the first 27 bytes ",
        ),
        (
            zstandard.compress(random.Random(1).randbytes(9999))[:-9],
            "broken zstd in the first 10,000 bytes ",
        ),
        (gzip.compress(GROUPS, mtime=0), "is Parquet, inside a compressed file, and not read here"),
        (b"PK\x03\x04" + bytes(90), "is an archive"),
    ],
)
def test_bad_tables_are_named_with_the_place(tmp_path, content, message):
    path = tmp_path / "bad"
    path.write_bytes(content)
    with pytest.raises(BadInputError, match=message) as raised:
        read_rows(path, ["text"])
    assert str(raised.value).startswith(f"{path}: ") and "\n" not in str(raised.value)


def in_objects(array):
    return pyarrow.StructArray.from_arrays([array], ["text"]), "meta.text"


@pytest.mark.parametrize(
    "change",
    [
        in_objects,
        lambda array: (in_objects(in_objects(array)[0])[0], "meta.text.text"),
        lambda array: (array.dictionary_encode(), "meta"),
        lambda array: (array.cast(pyarrow.string_view()), "meta"),
        lambda array: (array.cast(pyarrow.large_string()), "meta"),
    ],
)
def test_a_large_cell_of_any_type_of_text_is_refused(tmp_path, monkeypatch, change):
    """Before it becomes objects of Python, which take the memory again."""
    monkeypatch.setattr(tables, "MOST_BYTES", 2**20)
    array, name = change(pyarrow.array(["short", "x" * 2**21]))
    path = tmp_path / "table"
    with pyarrow.ipc.new_stream(str(path), pyarrow.schema({"meta": array.type})) as writer:
        writer.write_batch(pyarrow.RecordBatch.from_arrays([array], ["meta"]))
    with pytest.raises(BadInputError, match=f"a cell of '{name}' has more than 1 MiB"):
        read_rows(path, [name])


@pytest.mark.parametrize("write", [delimited, json_lines, json_array, parquet, arrow_stream])
def test_a_cell_that_is_too_large_is_refused(tmp_path, monkeypatch, write):
    monkeypatch.setattr(tables, "MOST_BYTES", 2**20)
    path = tmp_path / "table"
    path.write_bytes(write([{"text": "short"}, {"text": "x" * 2**21}]))
    place = {delimited: "line 3", json_array: "entry 2", json_lines: "line 2", parquet: "row group"}
    with pytest.raises(BadInputError, match=f"{place.get(write, 'batch 1')}.*more than 1 MiB"):
        read_rows(path, ["text"])


@pytest.mark.parametrize("write", [delimited, json_lines, json_array, parquet, arrow_stream])
def test_memory_does_not_grow_with_the_table(tmp_path, write):
    path = tmp_path / "table"
    path.write_bytes(write([{"text": f"{number} " + "word " * 1000} for number in range(4000)]))
    tracemalloc.start()
    before = pyarrow.total_allocated_bytes()
    largest = 0
    try:
        with open(path, "rb") as file:
            table = open_table(str(path), file, ["text"])
            row = None
            for row in table.rows(["text"]):  # noqa: B007
                largest = max(largest, pyarrow.total_allocated_bytes() - before)
        largest = max(largest, tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()
    assert row.values["text"].startswith("3999 ")
    assert table.position == path.stat().st_size
    assert table.num_bytes > 19 * 2**20
    assert largest < 12 * 2**20


def test_a_file_that_shrinks_is_told(tmp_path):
    path = tmp_path / "table"
    path.write_bytes(json_lines([{"text": "x" * 1000}] * 5000))
    with open(path, "rb") as file:
        rows = open_table(str(path), file).rows(["text"])
        next(rows)
        os.truncate(path, 3_000_000)
        with pytest.raises(BadInputError, match="became shorter while it was read: 3,000,000 of"):
            list(rows)


def test_a_pipe_is_read_once(tmp_path):
    content = gzip.compress(delimited([{"text": "a"}, {"text": "b"}]))
    with subprocess.Popen(["printf", "%b", "".join(f"\\x{byte:02x}" for byte in content)],
                          stdout=subprocess.PIPE) as process:  # fmt: skip
        rows = read_rows(f"/proc/self/fd/{process.stdout.fileno()}", ["text"])
    assert rows == [{"text": "a"}, {"text": "b"}]


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_members_of_a_compressed_file_are_read_one_after_another(compression):
    parts = [b"first " * 9999, b"second"]
    stored = b"".join(map(COMPRESSIONS[compression], parts))
    file = UnpackedFile("x", io.BytesIO(stored))
    assert file.peek(1)[:5] == b"first"
    assert file.read() == b"".join(parts)
    assert (file.position, file.num_unpacked) == (len(stored), len(b"".join(parts)))
    if compression != "none":
        with pytest.raises(BadInputError, match=f"x: broken {compression}"):
            UnpackedFile("x", io.BytesIO(stored[:-5])).read()


@pytest.mark.parametrize("nibble", range(16))
def test_a_frame_that_decompressors_skip_may_come_first(nibble):
    """As pzstd and seekable zstd write it."""
    skipped = bytes([0x50 + nibble, 0x2A, 0x4D, 0x18, 3, 0, 0, 0]) + b"abc"
    file = UnpackedFile("x", io.BytesIO(skipped + zstandard.compress(b"text")))
    assert file.compression == "zstd"
    assert file.read() == b"text"


@pytest.mark.parametrize("compress", [zstandard.compress, gzip.compress])
def test_damage_in_the_middle_of_a_large_file_has_a_place(compress):
    members = [compress(random.Random(number).randbytes(READ_SIZE)) for number in range(8)]
    stored = bytearray(b"".join(members))
    place = sum(map(len, members[:4])) + 5
    stored[place : place + 90] = bytes(90)
    with pytest.raises(BadInputError, match="broken") as raised:
        UnpackedFile("x", io.BytesIO(stored)).read()
    [found] = re.findall(r"first ([\d,]+) bytes", str(raised.value))
    assert place < int(found.replace(",", "")) < place + 3 * READ_SIZE


def test_the_reader_is_imported_without_tensorflow_and_pyarrow():
    code = "import sys, spanbert_tf.files.tables as t; print(*sorted(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"tensorflow", "keras", "pyarrow", "pandas"} & set(found.stdout.split())
