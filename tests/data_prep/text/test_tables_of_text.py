"""Tables give the documents of their columns of text, whatever library wrote them."""

import csv
import gzip
import html
import json
import re

import numpy as np
import pandas
import pyarrow
import pyarrow.parquet
import pytest
import zstandard
from corpus_files import read_documents

from data_prep.beam.writing import write_pretraining_records
from data_prep.text.corpus import DocumentReader
from data_prep.text.storage import find_files
from data_prep.text.vocabulary import write_vocabulary
from spanbert_tf.cli import main
from spanbert_tf.errors import BadInputError

ARTICLES = [
    {"id": "1", "title": "Bonnie & Clyde", "text": "They were <criminals>.\n\nAnd in love."},
    {"id": "2", "title": "Ants", "text": 'Ants are "insects", and small.\r\nThey work;\tall day.'},
    {"id": "3", "title": "Nothing", "text": ""},
]
PARAGRAPHS = [
    ["They were <criminals>.", "And in love."],
    ['Ants are "insects", and small.', "They work;\tall day."],
    [],
]
TITLES = [[article["title"]] for article in ARTICLES]


def write_csv(frame, path):
    frame.to_csv(path, index=False)


def write_datasets(frame, path):
    """As `datasets.Dataset.save_to_disk` writes it."""
    path.mkdir()
    table = pyarrow.Table.from_pandas(frame)
    with pyarrow.ipc.new_stream(str(path / "data-00000-of-00001.arrow"), table.schema) as writer:
        writer.write_table(table)
    state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}
    (path / "state.json").write_text(json.dumps(state))
    (path / "dataset_info.json").write_text("{}")


FORMATS = {
    "CSV": write_csv,
    "CSV, zstd": lambda frame, path: frame.to_csv(path, index=False, compression="zstd"),
    "CSV with numbers of rows": lambda frame, path: frame.to_csv(path),
    "CSV, all quoted": lambda frame, path: frame.to_csv(path, quoting=csv.QUOTE_ALL),
    "TSV": lambda frame, path: frame.to_csv(path, index=False, sep="\t"),
    "Parquet": lambda frame, path: frame.to_parquet(path),
    "Feather": lambda frame, path: frame.to_feather(path),
    "datasets": write_datasets,
    "JSON lines, xz": lambda frame, path: frame.to_json(
        path, orient="records", lines=True, compression="xz"
    ),
    "JSON array": lambda frame, path: frame.to_json(path, orient="records"),
}


def json_lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def read(path, *columns):
    """The paragraphs of each document of the files that a pattern names."""
    return [
        paragraphs
        for file in find_files(str(path))
        for paragraphs, _ in read_documents(DocumentReader(file.path, text_columns=columns))
    ]


@pytest.mark.parametrize("name", FORMATS)
def test_each_row_is_a_document(tmp_path, name):
    path = tmp_path / "articles"
    FORMATS[name](pandas.DataFrame(ARTICLES), path)
    assert read(path) == PARAGRAPHS  # `text` is the default
    assert read(path, "text") == PARAGRAPHS
    both = [title + paragraphs for title, paragraphs in zip(TITLES, PARAGRAPHS, strict=True)]
    assert read(path, "title", "text") == both
    assert read(path, "title") == TITLES
    with pytest.raises(BadInputError, match=r"has no column 'body'; it has .*id, title, text"):
        read(path, "body")
    renamed = tmp_path / "renamed"
    FORMATS[name](pandas.DataFrame(ARTICLES).rename(columns={"text": "body"}), renamed)
    assert read(renamed, "body") == PARAGRAPHS
    with pytest.raises(BadInputError, match=r"no column 'text'|without a column 'text'") as error:
        read(renamed)
    assert str(error.value).endswith("name the column of its text with --text-column")
    assert "body" in str(error.value) and "\n" not in str(error.value)


def test_entities_and_titles_are_removed_as_of_wikiextractor(tmp_path):
    rows = [{**row, "text": f"{row['title']}\n{html.escape(row['text'])}"} for row in ARTICLES]
    for name in ("CSV", "Parquet", "datasets"):
        FORMATS[name](pandas.DataFrame(rows), tmp_path / name)
        assert read(tmp_path / name) == PARAGRAPHS


def test_a_column_is_read_of_a_small_file_that_could_be_prose(tmp_path):
    for row in ("Once upon a time, there was a cat", '"Once upon a time, there was a cat"'):
        (tmp_path / "x").write_text(f"story\n{row}\nThe end\n")
        assert read(tmp_path / "x") == [[f"story {row} The end"]]
        assert read(tmp_path / "x", "story") == [["Once upon a time, there was a cat"], ["The end"]]


def test_plain_text_has_no_columns(tmp_path):
    (tmp_path / "x").write_text("Call me Ishmael.\n\nSome years ago.\n")
    with pytest.raises(BadInputError, match="line 1: has no column 'body'; it has Call me Ishmael"):
        read(tmp_path / "x", "body")


def test_files_of_another_schema_are_named(tmp_path):
    pandas.DataFrame({"text": ["a"]}).to_parquet(tmp_path / "1.parquet")
    pandas.DataFrame({"content": ["b"], "n": [1]}).to_parquet(tmp_path / "2.parquet")
    with pytest.raises(BadInputError, match=r"2\.parquet: has no column 'text'; it has content, n"):
        read(tmp_path / "*.parquet")


# What `datatrove.pipeline.writers` and `dolma` write: the keys and their order, and the kind of
# compression that each takes by default.
def datatrove_line(number, text):
    return {
        "text": text,
        "id": f"<urn:uuid:{number}>",
        "metadata": {
            "dump": "CC-MAIN-2024-10",
            "url": f"https://example.org/{number}",
            "date": "2024-02-21T00:00:00Z",
            "language": "en",
            "language_score": 0.97,
            "token_count": 9,
        },
    }


def dolma_line(number, text):
    return {
        "id": f"{number:08x}",
        "text": text,
        "added": "2024-01-01T00:00:00.000Z",
        "created": "2023-05-06T07:08:09.000Z",
        "source": "common-crawl",
        "version": "v0",
        "metadata": {"provenance": f"cc-{number}.gz:1", "minhash": [1, 2], "url": None},
    }


@pytest.mark.parametrize("line", [datatrove_line, dolma_line])
@pytest.mark.parametrize("kind", ["gz", "zst", "parquet"])
def test_what_datatrove_and_dolma_write_goes_in_as_it_is(tmp_path, line, kind):
    """An empty text has no key in datatrove's JSON lines."""
    texts = ["", "A page.\nIts second line.", "Another page.", ""]
    rows = [line(number, text) for number, text in enumerate(texts)]
    if line is datatrove_line and kind != "parquet":
        for row in (rows[0], rows[3]):
            del row["text"]
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path = tmp_path / f"00000.jsonl.{kind}"
    if kind == "parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        path.write_bytes((gzip if kind == "gz" else zstandard).compress(text))
    assert read(path) == [[], ["A page.", "Its second line."], ["Another page."], []]
    column = "metadata.dump" if line is datatrove_line else "metadata.provenance"
    assert read(path, column, "text")[2] == [rows[2]["metadata"][column[9:]], "Another page."]


@pytest.mark.parametrize("write", [json_lines, json.dumps])
@pytest.mark.parametrize(("num_before", "is_read"), [(3, True), (999, True), (1001, False)])
def test_a_key_that_many_rows_lack_is_a_null_if_one_has_it(tmp_path, write, num_before, is_read):
    rows = [{"title": "A"}] * num_before + [{"title": "B", "body": "c"}, {"title": "D"}]
    (tmp_path / "x").write_text(write(rows))
    reader = DocumentReader(str(tmp_path / "x"), text_columns=("title", "body"))
    if is_read:
        documents = [paragraphs for paragraphs, _ in read_documents(reader)]
        assert documents == [["A"]] * num_before + [["B", "c"], ["D"]]
        assert reader.num_without_text == num_before + 1
        return
    with pytest.raises(BadInputError, match=r"x: (line|entry) 1: has no column 'body'; it has ti"):
        list(reader)


def test_a_key_that_no_row_has_is_refused(tmp_path):
    (tmp_path / "x").write_text(json_lines([{"title": "A"}, {"title": "B"}]))
    for columns in (("body",), ()):
        with pytest.raises(BadInputError, match=r"x: line 1: has no column '(body|text)'"):
            read(tmp_path / "x", *columns)


def test_an_empty_column_is_named(tmp_path):
    (tmp_path / "x").write_text("id,text\n" + "1,\n2, \n3,\n" * 4)
    words = "x: no cell of text has a text, all are empty or have nulls or numbers; name the column"
    with pytest.raises(BadInputError, match=words):
        read(tmp_path / "x", "text")


def test_only_whole_entities_become_characters(tmp_path):
    cases = {
        "a &amp; b &lt;i&gt; &#233;&#xE9;&nbsp;x": "a & b <i> éé\N{NO-BREAK SPACE}x",
        "http://x?a=1&copy=2&para=3": "http://x?a=1&copy=2&para=3",
        "&amp;lt; &notit; &unknown; & ; &#; AT&T;": "&lt; &notit; &unknown; & ; &#; AT&T;",
    }
    pandas.DataFrame({"text": list(cases)}).to_parquet(tmp_path / "x")
    assert read(tmp_path / "x") == [[text] for text in cases.values()]


WITHOUT_TEXT = [
    {"title": "One", "text": "The first."},
    {"title": None, "text": "The second."},
    {"title": 3, "text": None},
    {"title": 4.5, "text": True},
]


def test_nulls_and_numbers_are_counted_and_told(tmp_path, letters_vocabulary, capsys):
    (tmp_path / "x").write_text("".join(json.dumps(row) + "\n" for row in WITHOUT_TEXT))
    reader = DocumentReader(str(tmp_path / "x"), text_columns=("title", "text"))
    documents = [paragraphs for paragraphs, _ in read_documents(reader)]
    assert documents == [["One", "The first."], ["The second."], [], []]
    assert reader.num_without_text == 5
    manifest = write_pretraining_records(
        str(tmp_path / "x"),
        vocabulary=letters_vocabulary,
        output=tmp_path / "records",
        text_columns=["title", "text"],
    )
    counts = manifest.counts
    assert (counts["documents"], counts["empty_documents"]) == (2, 2)
    assert counts["cells_without_text"] == 5
    told = f"{tmp_path / 'records'}: cells with a null or a number in place of a text: 5; left out"
    assert told in capsys.readouterr().out.splitlines()
    path = str(tmp_path / "vocab.txt")
    write_vocabulary(str(tmp_path / "x"), path, vocabulary_size=100, text_columns=["title", "text"])
    told = f"{path}: cells with a null or a number in place of a text: 5; left out"
    assert told in capsys.readouterr().out.splitlines()
    (tmp_path / "x").write_text('{"text": 1}\n{"text": null}\n')
    words = "x: no cell of text has a text, all are empty or have nulls or numbers; name the"
    with pytest.raises(BadInputError, match=words):
        read(tmp_path / "x")


def records_of(directory, manifest):
    """The token ids of all records, sorted."""
    import tensorflow as tf

    found = []
    for shard in manifest.shards:
        for record in tf.data.TFRecordDataset(str(directory / shard.file)):
            example = tf.train.Example.FromString(record.numpy())
            (value,) = example.features.feature["token_ids"].bytes_list.value
            found.append(np.frombuffer(value, np.uint16).tolist())
    return sorted(found)


def test_every_format_gives_the_same_token_ids(tmp_path, letters_vocabulary):
    sentence = "The cat sat on the mat. It was a Tuesday, and it rained. "
    articles = [
        {"title": f"Title {chr(97 + number % 26)}", "text": f"{sentence * 3}\n{sentence * number}"}
        for number in range(40)
    ]
    (tmp_path / "texts").mkdir()
    wikipedia = "".join(
        f'<doc id="1" title="{row["title"]}">\n{row["title"]}\n\n{row["text"]}\n\n</doc>\n'
        for row in articles
    )
    (tmp_path / "texts" / "WikiExtractor").write_text(wikipedia)
    for name, write in FORMATS.items():
        write(pandas.DataFrame(articles), tmp_path / "texts" / name)
    found = {}
    for path in (tmp_path / "texts").iterdir():
        output = tmp_path / "records" / path.name
        output.parent.mkdir(exist_ok=True)
        manifest = write_pretraining_records(
            str(path), vocabulary=letters_vocabulary, output=output, sequence_length=64
        )
        found[path.name] = records_of(output, manifest)
        assert manifest.counts["documents"] == 40
    assert len(found["CSV"]) > 100
    for name in found:
        assert found[name] == found["WikiExtractor"], name


def test_the_command_names_what_it_read_to_the_next_one(tmp_path, capfd):
    pandas.DataFrame({"head": ["The title"] * 3, "body": ["Some text."] * 3}).to_csv(
        tmp_path / "x.csv"
    )
    with pytest.raises(SystemExit) as stop:
        main(
            [
                *("prepare", "vocabulary", "--input", str(tmp_path / "x.csv")),
                *("--text-column", "head", "--text-column", "body"),
                *("--document-separator", "* * *", "--follow-links"),
                *("--output", str(tmp_path / "vocab.txt"), "--vocabulary-size", "100"),
            ]
        )
    assert stop.value.code == 0
    shown = " ".join(capfd.readouterr().out.split())
    options = "--text-column head --text-column body --document-separator '* * *' --follow-links"
    assert re.search(f"prepare pretraining .*{re.escape(options)} ", shown)
    entries = (tmp_path / "vocab.txt").read_text().split()
    assert {"T", "S"} <= set(entries)
