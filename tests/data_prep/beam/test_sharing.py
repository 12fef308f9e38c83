"""Large files are cut at documents: the records do not depend on the cuts."""

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
from data_prep.text import cutting
from data_prep.text.corpus import DocumentReader, find_format
from data_prep.text.cutting import cut_file, cut_parquet, ranges_of, read_part, scan_range
from data_prep.text.storage import find_files
from spanbert_tf.errors import BadInputError

OPTIONS = {"sequence_length": 64, "num_shards": 2, "validation_fraction": 0.1}


def cut(path):
    (file,) = find_files(str(path))
    text_format = find_format(file.path)
    if text_format == "parquet":
        return cut_parquet(file)
    scans = [scan_range(file, text_format, *bounds) for bounds in ranges_of(file)]
    return cut_file(file, scans)


def read(parts):
    """The documents of a file in parts, by number: paragraphs, and whether they have a title."""
    found = {}
    for part in parts:
        number = part.first_document
        paragraphs = []
        for text in read_part(part):
            paragraphs += text.paragraphs
            if text.ends_document:
                assert number not in found
                found[number] = paragraphs, text.has_title
                number += 1
                paragraphs = []
    return found


def read_whole(path):
    documents = []
    paragraphs = []
    for text in DocumentReader(str(path)):
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
        patch.setattr(cutting, "GROUP", group)
        parts = cut(path)
    assert read(parts) == expected
    for part, following in itertools.pairwise(parts):
        assert part.stop == following.start
        assert following.first_document % group == 0


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
        patch.setattr(cutting, "GROUP", group)
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
        else:
            lines.append(f'<doc id="{number}" title="T">\nT\n\n{text}\n\n</doc>')
    return "\n".join(lines) + "\n"


def write_text(path, name):
    """Writes a corpus of 400 documents."""
    if name != "parquet":
        path.write_text(made_up_corpus(name, 400, random.Random(2)))
        return
    lines = made_up_corpus("json_lines", 400, random.Random(2)).splitlines()
    table = pyarrow.Table.from_pylist([json.loads(line) for line in lines])
    pyarrow.parquet.write_table(table, path, row_group_size=50)


@pytest.mark.parametrize("sequences", ["single", "pair"])
@pytest.mark.parametrize("name", ["json_lines", "wikipedia", "parquet"])
def test_cuts_do_not_change_the_records(name, sequences, letters_vocabulary, tmp_path, monkeypatch):
    text = tmp_path / "text"
    write_text(text, name)
    others = OPTIONS | {"vocabulary": letters_vocabulary, "sequences": sequences}
    written = []
    for number, size in enumerate((2**24, 9_000, 300)):
        monkeypatch.setattr(cutting, "RANGE_BYTES", size)
        output = tmp_path / str(number)
        write_pretraining_records(str(text), output=str(output), **others)
        written.append({path.name: path.read_bytes() for path in output.iterdir()})
    assert len(cut(text)) == 400 // cutting.GROUP + 1
    assert written[0] == written[1] == written[2]


@pytest.mark.slow
def test_processes_and_a_runner_of_beam_share_a_file(letters_vocabulary, tmp_path, monkeypatch):
    """Whole files are as small for them as for this process: cuts are in the arguments of steps."""
    text = tmp_path / "text"
    text.write_text(made_up_corpus("json_lines", 400, random.Random(3)))
    others = OPTIONS | {"vocabulary": letters_vocabulary, "deduplicate": "paragraphs"}
    monkeypatch.setattr(cutting, "RANGE_BYTES", 5_000)
    written = []
    ways = [{}, {"num_processes": 2}, {"beam_arguments": ["--runner=FnApiRunner"]}]
    for number, way in enumerate(ways):
        output = tmp_path / str(number)
        write_pretraining_records(str(text), output=str(output), **way, **others)
        written.append({path.name: path.read_bytes() for path in output.iterdir()})
    assert written[0] == written[1] == written[2]


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("json_lines", b"{", "line 301: not JSON"),
        ("json_lines", b"\xff", "line 301: cannot be read as UTF-8 text"),
        ("wikipedia", b"\xff", "line 1501: not UTF-8 at byte"),
        ("wikipedia", b"</doc>\nOutside.", "line 1502: text outside of <doc"),
    ],
)
def test_errors_name_the_place_in_the_whole_file(
    name, damage, message, letters_vocabulary, tmp_path, monkeypatch
):
    text = tmp_path / "text"
    lines = made_up_corpus(name, 400, random.Random(4)).encode().splitlines()
    place = 300 if name == "json_lines" else 300 * 5
    lines[place:place] = [damage]
    text.write_bytes(b"\n".join(lines) + b"\n")
    if message.endswith("byte"):
        message += f" {len(b''.join(lines[:place])) + place} "
    monkeypatch.setattr(cutting, "RANGE_BYTES", 2_000)
    assert len(cut(text)) > 3
    with pytest.raises(BadInputError, match=f"^{text}: {message}"):
        write_pretraining_records(
            str(text), vocabulary=letters_vocabulary, output=str(tmp_path / "out"), **OPTIONS
        )
    assert [path.name for path in tmp_path.iterdir()] == ["text"]


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


def test_files_that_cannot_be_cut_are_told(letters_vocabulary, tmp_path, monkeypatch, capsys):
    for name in ("a", "b"):
        (tmp_path / name).write_text("Some words. " * (10 if name == "a" else 20))
    monkeypatch.setattr(cutting, "RANGE_BYTES", 100)
    monkeypatch.setattr("data_prep.beam.writing.on_this_machine", _in_this_process)
    write_pretraining_records(
        str(tmp_path / "[ab]"),
        vocabulary=letters_vocabulary,
        output=str(tmp_path / "out"),
        num_processes=2,
    )
    assert capsys.readouterr().out.splitlines()[0] == (
        f"{tmp_path}/b: one process reads all of it (2 such files): only JSON lines and "
        "WikiExtractor's text that are not compressed are shared, and Parquet of several row groups"
    )
    assert pathlib.Path(tmp_path / "out").exists()


def _in_this_process(job, num_processes, show):
    from data_prep.beam.processes import on_this_machine

    return on_this_machine(job, 1, show)
