"""Large files are cut at documents: the records do not depend on the cuts."""

import gzip
import itertools
import json
import pathlib
import random

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from data_prep.beam.writing import write_pretraining_records
from data_prep.text import cutting, scanning
from data_prep.text.corpus import DocumentReader, find_format
from data_prep.text.cutting import cut_file, cut_parquet, ranges_of, read_part
from data_prep.text.formats import plain_text_parts
from data_prep.text.scanning import scan_range
from data_prep.text.storage import find_files
from spanbert_tf.errors import BadInputError

OPTIONS = {"sequence_length": 64, "num_shards": 2, "validation_fraction": 0.1}


def cut(path, separator=None, text_columns=()):
    (file,) = find_files(str(path))
    text_format = find_format(file.path, text_columns)
    if text_format == "parquet":
        return cut_parquet(file)
    scans = [scan_range(file, text_format, separator, *bounds) for bounds in ranges_of(file)]
    return cut_file(file, text_format, scans)


def patch_group(patch, group):
    for module in (cutting, scanning):
        patch.setattr(module, "GROUP", group)


def read(parts, *options):
    """The documents of a file in parts, by number: paragraphs, and whether they have a title."""
    found = {}
    for part in parts:
        number = part.first_document
        paragraphs = []
        for text in read_part(part, *options):
            paragraphs += text.paragraphs
            if text.ends_document:
                assert number not in found
                found[number] = paragraphs, text.has_title
                number += 1
                paragraphs = []
    return found


def read_whole(path, *options):
    documents = []
    paragraphs = []
    for text in DocumentReader(str(path), *options):
        paragraphs += text.paragraphs
        if text.ends_document:
            documents.append((paragraphs, text.has_title))
            paragraphs = []
    return dict(enumerate(documents))


ENDS_OF_JSON_LINES = st.sampled_from(["\n", "\r\n", "\n\n", "\n \u2028\n", "\n\u00a0\r\n"])
LINE_ENDS = st.just("\r") | ENDS_OF_JSON_LINES
TEXTS = st.text("ab\u00e9\u6f22\n <>{}", max_size=12)


@st.composite
def json_lines(draw):
    text = draw(st.sampled_from(["", "\ufeff", "\ufeff\n"])) + '{"text": "first"}'
    for _ in range(draw(st.integers(0, 12))):
        document = {"text": draw(TEXTS), "title": draw(st.sampled_from(["", "a"]))}
        line = json.dumps(document, ensure_ascii=draw(st.booleans()))
        text += draw(ENDS_OF_JSON_LINES) + draw(st.sampled_from(["", " "])) + line
    return text + draw(st.sampled_from(["", "\n", "\r\n"]))


@st.composite
def wikipedia(draw):
    text = draw(st.sampled_from(["", "\ufeff", "\n"]))
    for number in range(draw(st.integers(1, 12))):
        end = draw(LINE_ENDS)
        text += f'<doc id="{number}" title="{draw(st.sampled_from("ab"))}">{end}'
        for _ in range(draw(st.integers(0, 3))):
            text += draw(TEXTS).replace("\n", "") + end
        if draw(st.integers(0, 4)):  # the parser does not ask for it but at the end
            text += f"</doc>{end}"
    return text + "</doc>\n"


CELLS = st.text('ab\u00e9\u6f22\u3000 \n\r",;<', max_size=8)
QUOTED_DELIMITERS = st.sampled_from(",;|")


def quoted_cell(draw, delimiter, has_marks_inside):
    cell = draw(CELLS)
    needs_marks = cell.startswith('"') or set(cell) & {delimiter, *"\r\n"}
    if needs_marks or (not has_marks_inside and '"' in cell) or draw(st.booleans()):
        doubled = cell.replace('"', '""')
        return f'"{doubled}"'
    return cell


@st.composite
def quoted_table(draw, has_marks_inside=False):
    """CSV with a column `text`, empty lines, and any line ends.

    Args:
        has_marks_inside: whether cells without quotation marks around them may have some.
    """
    delimiter = draw(QUOTED_DELIMITERS)
    ends = st.sampled_from(["\n", "\r\n", "\r", "\n\n", "\r\r\n"])
    text = draw(st.sampled_from(["", "\ufeff"]))
    text += draw(st.sampled_from([f"text{delimiter}title", f'"text"{delimiter}"title"']))
    text += f"\nfirst{delimiter}"  # a file without any text is refused
    for _ in range(draw(st.integers(1, 14))):
        cells = [quoted_cell(draw, delimiter, has_marks_inside) for _ in range(2)]
        text += draw(ends) + delimiter.join(cells)
    return text + draw(st.sampled_from(["", "\n", "\r\n\r\n"]))


@st.composite
def unquoted_table(draw):
    """TSV with a column `text`; lines of white space are rows, if other rows follow."""
    text = draw(st.sampled_from(["", "\ufeff"])) + "text\ttitle\nfirst\t"
    rows = st.sampled_from(["\t", " \t ", "\u3000\t\u3000", "\u6f22\t", "a\tb", '"\t"', "\ta b\r"])
    for row in draw(st.lists(rows, min_size=1, max_size=14)):
        text += draw(st.sampled_from(["\n", "\r\n"])) + row
    return text + draw(st.sampled_from(["", "\n", "\n\t\n"]))


@st.composite
def plain_text(draw, separator):
    """Lines of text, and of the separator with white space behind it, which may be all before."""
    lines = st.sampled_from(["", " ", "a", "\u6f22 b", "\ufeff", f"x{separator}", f"{separator}x"])
    separators = st.sampled_from([separator, f"{separator} \u00a0", f"{separator}\u3000\x1c"])
    text = draw(st.sampled_from(["", "\ufeff"]))
    for line in draw(st.lists(st.one_of(lines, separators), min_size=1, max_size=30)):
        text += line + draw(st.sampled_from(["\n", "\n", "\r\n", "\r"]))
    return text + "end\n" + draw(st.sampled_from(["", separator, f"{separator}\n\n"]))


@pytest.mark.parametrize("size", [20, 150])
@pytest.mark.parametrize("group", [1, 3])
@settings(max_examples=40, deadline=None)
@given(text=st.one_of(json_lines(), wikipedia()))
@example(text='\ufeff<doc id="1">\na\n</doc>\n<doc id="2">\nb\n</doc>\n<doc id="3">\nc\n</doc>\n')
def test_parts_have_the_documents_of_the_whole(text, size, group, tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text"
    path.write_bytes(text.encode())
    expected = read_whole(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cutting, "RANGE_BYTES", size)
        patch_group(patch, group)
        parts = cut(path)
    assert read(parts) == expected
    for part, following in itertools.pairwise(parts):
        assert part.stop == following.start
        assert following.first_document % group == 0


TABLES = {
    "csv": quoted_table(),
    "tsv": unquoted_table(),
    "csv with marks inside": quoted_table(has_marks_inside=True),
}


@pytest.mark.parametrize("name", TABLES)
@settings(max_examples=150, deadline=None)
@given(data=st.data(), size=st.sampled_from([5, 20, 150]), group=st.sampled_from([1, 3]))
def test_parts_of_tables_have_the_rows_of_the_whole(name, data, size, group, tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text"
    path.write_bytes(data.draw(TABLES[name]).encode())
    options = (None, ("text",))
    expected = read_whole(path, *options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cutting, "RANGE_BYTES", size)
        patch_group(patch, group)
        parts = cut(path, *options)
    assert read(parts, *options) == expected
    assert all(part.first_document % group == 0 for part in parts)


@pytest.mark.parametrize("size", range(6, 15))
def test_parts_begin_at_rows_and_not_at_lines_of_cells_that_look_like_rows(
    size, tmp_path, monkeypatch
):
    """Read from inside of the quotation marks, the file has other rows."""
    path = tmp_path / "text"
    path.write_text("text\n" + '"\na\n"\n' * 20)
    options = (None, ("text",))
    expected = read_whole(path, *options)
    monkeypatch.setattr(cutting, "RANGE_BYTES", size)
    patch_group(monkeypatch, 1)
    parts = cut(path, *options)
    assert len(parts) > 5
    assert read(parts, *options) == expected


@pytest.mark.parametrize("separator", ["--", "", "\u2028", "a "])
@settings(max_examples=100, deadline=None)
@given(data=st.data(), size=st.sampled_from([4, 20, 150]), group=st.sampled_from([1, 3]))
def test_parts_of_plain_text_have_the_documents_of_the_whole(
    separator, data, size, group, tmp_path_factory
):
    path = tmp_path_factory.mktemp("text") / "text"
    path.write_bytes(data.draw(plain_text(separator)).encode())
    expected = read_whole(path, separator)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cutting, "RANGE_BYTES", size)
        patch_group(patch, group)
        parts = cut(path, separator)
    assert read(parts, separator) == expected
    assert all(part.first_document % group == 0 for part in parts)


@pytest.mark.parametrize("size", [1, 300])
@settings(max_examples=40, deadline=None)
@given(
    texts=st.lists(st.none() | st.text("ab\n", max_size=9), min_size=1, max_size=60),
    group_sizes=st.lists(st.integers(0, 20), min_size=1, max_size=9),
    group=st.sampled_from([1, 3, 7]),
)
def test_parts_of_parquet_have_the_rows_of_the_whole(
    texts, group_sizes, group, size, tmp_path_factory
):
    path = tmp_path_factory.mktemp("text") / "text"
    texts[0] = "first"  # a file without any text is refused
    schema = pyarrow.schema({"text": pyarrow.string()})
    with pyarrow.parquet.ParquetWriter(path, schema) as writer:
        first = 0
        for num_rows in [*group_sizes, len(texts)]:
            table = pyarrow.table({"text": texts[first : first + num_rows]}, schema)
            writer.write_table(table, row_group_size=max(num_rows, 1))
            first += num_rows
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cutting, "RANGE_BYTES", size)
        patch_group(patch, group)
        parts = cut(path)
    assert read(parts) == read_whole(path)
    whole = DocumentReader(str(path))
    readers = list(map(read_part, parts))
    for reader in [whole, *readers]:
        list(reader)
    for name in ("bytes_read", "num_without_text"):
        assert sum(getattr(reader, name) for reader in readers) == getattr(whole, name)
    for part, following in itertools.pairwise(parts):
        assert part.row_range.stop == following.row_range.start == following.first_document
        assert following.first_document % group == 0


SEPARATOR = "-----"


def made_up_corpus(name, num_documents, source):
    """Short documents, some of them of one sentence, which disturb the balance of pairs."""
    lines = []
    for number in range(num_documents):
        sentences = [
            f"{'abcdefgh'[source.randrange(8)]} {'word ' * source.randint(1, 9)}ends."
            for _ in range(source.choice([1, 1, 2, 3, 9]))
        ]
        text = " ".join(sentences)
        if name == "json_lines":
            lines.append(json.dumps({"text": text, "title": ""}))
        elif name == "csv":
            quoted = text.replace(" word ", ' ""word"",\n')
            lines.append(f'{number},"{quoted}"')
        elif name == "plain":
            lines += [text, SEPARATOR]
        else:
            lines.append(f'<doc id="{number}" title="T">\nT\n\n{text}\n\n</doc>')
    header = ["id,text"] if name == "csv" else []
    return "\n".join(header + lines) + "\n"


def write_text(path, name):
    """Writes a corpus of 400 documents."""
    if name != "parquet":
        path.write_text(made_up_corpus(name, 400, random.Random(2)))
        return
    lines = made_up_corpus("json_lines", 400, random.Random(2)).splitlines()
    table = pyarrow.Table.from_pylist([json.loads(line) for line in lines])
    pyarrow.parquet.write_table(table, path, row_group_size=50)


@pytest.mark.quick_cases(5)
@pytest.mark.parametrize("sequences", ["single", "pair"])
@pytest.mark.parametrize("name", ["json_lines", "wikipedia", "parquet", "csv", "plain"])
def test_cuts_do_not_change_the_records(name, sequences, letters_vocabulary, tmp_path, monkeypatch):
    text = tmp_path / "text"
    write_text(text, name)
    others = OPTIONS | {"vocabulary": letters_vocabulary, "sequences": sequences}
    separator = SEPARATOR if name == "plain" else None
    written = []
    for number, size in enumerate((2**24, 9_000, 300)):
        monkeypatch.setattr(cutting, "RANGE_BYTES", size)
        output = tmp_path / str(number)
        write_pretraining_records(
            str(text), output=str(output), document_separator=separator, **others
        )
        written.append({path.name: path.read_bytes() for path in output.iterdir()})
    assert len(cut(text, separator)) == 400 // cutting.GROUP + 1
    assert written[0] == written[1] == written[2]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["json_lines", "csv"])
def test_processes_and_a_runner_of_beam_share_a_file(
    name, letters_vocabulary, tmp_path, monkeypatch
):
    """Whole files are as small for them as for this process: cuts are in the arguments of steps."""
    text = tmp_path / "text"
    text.write_text(made_up_corpus(name, 400, random.Random(3)))
    others = OPTIONS | {"vocabulary": letters_vocabulary, "deduplicate": "paragraphs"}
    monkeypatch.setattr(cutting, "RANGE_BYTES", 5_000)
    written = []
    ways = [{}, {"num_processes": 2}, {"num_processes": 3}]
    ways.append({"beam_arguments": ["--runner=FnApiRunner"]})
    for number, way in enumerate(ways):
        output = tmp_path / str(number)
        write_pretraining_records(str(text), output=str(output), **way, **others)
        written.append({path.name: path.read_bytes() for path in output.iterdir()})
    assert all(each == written[0] for each in written)


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("json_lines", b"{", "line 301: not JSON"),
        ("json_lines", b"\xff", "line 301: cannot be read as UTF-8 text"),
        ("wikipedia", b"\xff", "line 1501: not UTF-8 at byte"),
        ("csv", b"1,2,3", "line 301: has 3 columns, 2 are expected"),
        ("csv", b'1,"\xff"', "line 301: cannot be read as UTF-8 text"),
        ("plain", b"\xff", "line 601: not UTF-8 at byte"),
        ("wikipedia", b"</doc>\nOutside.", "line 1502: text outside of <doc"),
    ],
)
def test_errors_name_the_place_in_the_whole_file(
    name, damage, message, letters_vocabulary, tmp_path, monkeypatch
):
    text = tmp_path / "text"
    lines = made_up_corpus(name, 400, random.Random(4)).encode().splitlines()
    if name == "csv":  # one line a row
        lines = [b"id,text", *(b'%d,"words, words"' % number for number in range(400))]
    place = {"wikipedia": 300 * 5, "plain": 600}.get(name, 300)
    lines[place:place] = [damage]
    text.write_bytes(b"\n".join(lines) + b"\n")
    if message.endswith("byte"):
        message += f" {len(b''.join(lines[:place])) + place} "
    monkeypatch.setattr(cutting, "RANGE_BYTES", 2_000)
    separator = SEPARATOR if name == "plain" else None
    assert len(cut(text, separator)) > 3
    with pytest.raises(BadInputError, match=f"^{text}: {message}"):
        write_pretraining_records(
            str(text),
            vocabulary=letters_vocabulary,
            output=str(tmp_path / "out"),
            document_separator=separator,
            **OPTIONS,
        )
    assert [path.name for path in tmp_path.iterdir()] == ["text"]


@pytest.mark.parametrize("name", ["json_lines", "csv", "plain"])
def test_a_file_that_shrinks_after_it_was_cut_is_told(name, tmp_path, monkeypatch):
    text = tmp_path / "text"
    text.write_text(made_up_corpus(name, 400, random.Random(4)))
    separator = SEPARATOR if name == "plain" else None
    monkeypatch.setattr(cutting, "RANGE_BYTES", 2_000)
    parts = cut(text, separator)
    assert len(parts) > 3
    with text.open("r+b") as file:
        file.truncate(parts[-1].start - 1)
    with pytest.raises(BadInputError, match=f"^{text}: became shorter while it was read"):
        read(parts, separator)
    (file,) = find_files(str(text))
    for bounds in ranges_of(parts[0].file):  # of the size before
        scan_range(file, find_format(file.path), separator, *bounds)


def test_errors_in_a_part_of_parquet_name_the_row(letters_vocabulary, tmp_path, monkeypatch):
    path = tmp_path / "text"
    texts = [b"Some words."] * 400
    texts[300] = b"\xff"
    column = pyarrow.array(texts, pyarrow.binary()).view(pyarrow.string())
    pyarrow.parquet.write_table(pyarrow.table({"text": column}), path, row_group_size=50)
    monkeypatch.setattr(cutting, "RANGE_BYTES", 1)
    assert len(cut(path)) > 3
    with pytest.raises(BadInputError, match=f"^{path}: row 301: cannot be read as UTF-8 text"):
        write_pretraining_records(
            str(path), vocabulary=letters_vocabulary, output=str(tmp_path / "out"), **OPTIONS
        )


def few_rows_of_parquet():
    sink = pyarrow.BufferOutputStream()
    texts = [random.Random(number).randbytes(9).hex() for number in range(99)]
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), sink)
    return sink.getvalue().to_pybytes()


QUOTED_INSIDE = "id,text\n" + '1,some "words" here\n' * 99
NOT_CUT = {
    "plain text is one document without --document-separator": ("Some words. " * 20).encode(),
    "it is compressed": gzip.compress(random.Random(0).randbytes(99).hex().encode()),
    "JSON arrays and Arrow are not cut": json.dumps([{"text": "Some words."}] * 99).encode(),
    "its rows are in one group": few_rows_of_parquet(),
    "or a cell with quotation marks that does not have them around it": QUOTED_INSIDE.encode(),
    "it has few documents, since it is cut before each 64th only": b'{"text": "a b"}\n' * 64,
}


@pytest.mark.parametrize("reason", NOT_CUT)
def test_files_that_cannot_be_cut_are_told(
    reason, letters_vocabulary, tmp_path, monkeypatch, capsys
):
    """Each reason, and the first of the largest files."""
    names = list(NOT_CUT)
    other = names[names.index(reason) - 1]
    (tmp_path / "a").write_bytes(NOT_CUT[other])
    for name in "bc":
        (tmp_path / name).write_bytes(NOT_CUT[reason])
    monkeypatch.setattr(cutting, "RANGE_BYTES", 100)
    monkeypatch.setattr("data_prep.beam.writing.on_this_machine", _in_this_process)
    write_pretraining_records(
        str(tmp_path / "[abc]"),
        vocabulary=letters_vocabulary,
        output=str(tmp_path / "out"),
        num_processes=2,
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{tmp_path}/a: one process reads all of it: ")
    assert lines[0].endswith(other)
    assert lines[1].startswith(f"{tmp_path}/b: one process reads all of it (2 such files): ")
    assert lines[1].endswith(reason)
    assert pathlib.Path(tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["json_lines", "plain"])
def test_a_file_with_a_long_line_is_not_cut(name, tmp_path, monkeypatch):
    text = tmp_path / "text"
    lines = made_up_corpus(name, 400, random.Random(4)).splitlines()
    monkeypatch.setattr(cutting, "RANGE_BYTES", 2_000)
    monkeypatch.setattr(scanning, "MOST_BYTES", 9_000)
    monkeypatch.setattr(scanning, "MOST_LINE_BYTES", 4_500)
    separator = SEPARATOR if name == "plain" else None
    for size, is_cut in ((8_000, name != "plain"), (9_100, False)):
        text.write_text("\n".join([*lines[:200], '{"text": "' + "a" * size + '"}', *lines[200:]]))
        assert (len(cut(text, separator)) > 1) == is_cut


@settings(max_examples=60, deadline=None)
@given(
    lines=st.lists(st.sampled_from(["", "a", "bb", "ccc ccc", "ddd\u6f22 "]), max_size=40),
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=9),
)
def test_long_paragraphs_do_not_depend_on_blocks(lines, sizes):
    """They are cut at line ends, wherever the blocks of whole lines end in which a file is read."""
    text = "".join(f"{line}\n" for line in lines) + "end\n"
    blocks = []
    rest = text
    for size in itertools.cycle(sizes):
        end = rest.find("\n", size) + 1 or len(rest)
        blocks.append(rest[:end])
        rest = rest[end:]
        if not rest:
            break
    limit = 10  # no line is longer
    found, whole = (
        [
            paragraph.strip()  # spaces at its ends are in no record
            for part in plain_text_parts(iter(each), "path", None, limit)
            for paragraph in part.paragraphs
        ]
        for each in (blocks, [text])
    )
    assert found == whole
    assert all(len(paragraph) <= limit for paragraph in found)


def _in_this_process(job, num_processes, show):
    from data_prep.beam.processes import on_this_machine

    return on_this_machine(job, 1, show)
