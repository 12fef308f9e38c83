"""Files of labelled texts, as they should be and as they are; GLUE's own layouts."""

import csv
import gzip
import io
import json

import pandas
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spanbert_tf.cli import main
from spanbert_tf.errors import BadInputError
from spanbert_tf.files.tables import read_rows
from spanbert_tf.tasks.text_classification.files import (
    LabelledText,
    LabelledTexts,
    read_glue,
    read_labelled_texts,
    read_tsv,
)
from spanbert_tf.tasks.text_classification.records import TextClassificationManifest

RTE = "index\tsentence1\tsentence2\tlabel\n"
NLI = "index\tpromptID\tpairID\tgenre\tp1\tp2\tp3\tp4\tsentence1\tsentence2\tlabel1\tgold_label\n"
QQP = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"


def written(directory, content, name="train.tsv"):
    path = directory / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def texts_and_labels(found):
    return [(*example.texts, example.label) for example in found.examples]


@pytest.mark.parametrize(
    ("task", "name", "content", "expected"),
    [
        ("cola", "train.tsv", "gj04\t1\t\tShe ran.\ngj04\t0\t*\tRan she.\n",
         [("She ran.", "1"), ("Ran she.", "0")]),
        ("cola", "test.tsv", "index\tsentence\n0\tShe ran.\n", [("She ran.", None)]),
        ("sst2", "dev.tsv", "sentence\tlabel\nfine \t1\n", [("fine ", "1")]),
        ("mrpc", "train.tsv", "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\ta\tb\n",
         [("a", "b", "1")]),
        ("mrpc", "test.tsv", "index\t#1 ID\t#2 ID\t#1 String\t#2 String\n0\t7\t8\ta\tb\n",
         [("a", "b", None)]),
        ("stsb", "dev.tsv", "index\tsentence1\tsentence2\tscore\n0\ta\tb\t4.750\n",
         [("a", "b", 4.75)]),
        ("qqp", "train.tsv", f"{QQP}1\t2\t3\ta?\tb?\t0\n", [("a?", "b?", "0")]),
        ("qqp", "test.tsv", "id\tquestion1\tquestion2\n0\ta?\tb?\n", [("a?", "b?", None)]),
        ("mnli", "dev_matched.tsv", f"{NLI}0\t1\t1n\tx\t-\t-\t-\t-\ta\tb\tneutral\tentailment\n",
         [("a", "b", "entailment")]),
        ("qnli", "dev.tsv", "index\tquestion\tsentence\tlabel\n0\ta?\tb\tnot_entailment\n",
         [("a?", "b", "not_entailment")]),
        ("wnli", "dev.tsv", f"{RTE}0\ta\tb\t1\n", [("a", "b", "1")]),
        ("ax", "diagnostic.tsv", "index\tsentence1\tsentence2\n0\ta\tb\n", [("a", "b", None)]),
    ],
)  # fmt: skip
def test_each_layout_of_glue(task, name, content, expected, tmp_path):
    found = read_glue(written(tmp_path, content, name), task)
    assert texts_and_labels(found) == expected
    assert found.dataset == task
    assert found.is_regression == (task == "stsb")


def test_mismatched_files_are_a_data_set_of_their_own(tmp_path):
    content = f"{NLI}0\t1\t1n\tx\t-\t-\t-\t-\ta\tb\tneutral\tentailment\n"
    assert read_glue(written(tmp_path, content, "dev_mismatched.tsv"), "mnli").dataset == "mnli_mm"


def test_quotes_odd_separators_and_empty_texts_stay_where_they_are(tmp_path):
    content = f'{RTE}0\t"He said\tshe "left"\tentailment\r\n1\ta\u2028b\x85c\t\tnot_entailment\r\n'
    found = read_glue(written(tmp_path, content), "rte")
    assert texts_and_labels(found) == [
        ('"He said', 'she "left"', "entailment"),
        ("a\u2028b\x85c", "", "not_entailment"),
    ]


def test_short_rows_of_qqp_are_skipped_and_counted(tmp_path):
    content = f"{QQP}1\t2\t3\ta?\tb?\t0\n4\t5\t6\tc?\n7\t8\t9\td?\te?\t1\n"
    found = read_glue(written(tmp_path, content), "qqp")
    assert found.num_skipped == 1
    assert [example.line for example in found.examples] == [2, 4]
    content = "id\tquestion1\tquestion2\n0\ta?\tb?\n1\tc?\n"
    with pytest.raises(BadInputError, match="1 rows of this test set have too few columns"):
        read_glue(written(tmp_path, content, "test.tsv"), "qqp")


@pytest.mark.parametrize(
    ("task", "content", "message"),
    [
        ("rte", f"{RTE}0\ta\tb\tentailment\n1\ta\tb\n", "line 3: has 3 columns, 4 are expected"),
        ("rte", f"{RTE}0\ta\tb\tc\tentailment\n", "line 2: has 5 columns, 4 are expected"),
        ("rte", f"{RTE}0\ta\tb\tentails\n", "line 2: label 'entails' is not one of entailment, n"),
        ("rte", f"{RTE}\n0\ta\tb\tentailment\n", "line 2: has 1 columns, 4 are expected"),
        ("rte", "index\tpremise\thypothesis\tlabel\n0\ta\tb\t1\n", "line 1: has no column 'sent"),
        ("rte", "index\tsentence1\tsentence1\tsentence2\tlabel\n", "more than one column 'sent"),
        ("rte", RTE, "contains no texts"),
        ("rte", "", "is empty"),
        ("rte", f"{RTE}0\ta\0\tb\tentailment\n", "line 2: holds a NUL"),
        ("rte", RTE.encode() + b"0\ta\tb\tentailment\n1\t\xff\tb\tentailment\n", "line 3: cannot"),
        ("cola", "gj04\t1\tShe ran.\n", "line 1: has 3 columns, 4 are expected"),
        ("cola", "gj04\t2\t\tShe ran.\n", "line 1: label '2' is not one of 0, 1"),
        ("stsb", "index\tsentence1\tsentence2\tscore\n0\ta\tb\tx\n", "line 2: label 'x' is not a "),
        ("stsb", "index\tsentence1\tsentence2\tscore\n0\ta\tb\t7\n", "line 2: score 7 is not betw"),
        ("stsb", "index\tsentence1\tsentence2\tscore\n0\ta\tb\tnan\n", "line 2: label 'nan'"),
    ],
)
def test_bad_glue_files_are_named_by_line(task, content, message, tmp_path):
    path = written(tmp_path, content)
    with pytest.raises(BadInputError, match=message) as raised:
        read_glue(path, task).check()
    assert str(raised.value).startswith(path) and "\n" not in str(raised.value)


CSV = 'id,body,label\n1,"said ""no"", then\nleft",bad\n2,fine,good\n'
EXPECTED = [('said "no", then\nleft', "bad"), ("fine", "good")]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.csv", CSV),
        ("x.csv", "\ufeff" + CSV.replace("\n2,", "\r\n2,")),
        ("x.csv.gz", gzip.compress(CSV.encode(), mtime=0)),
        ("x.jsonl", "".join(json.dumps({"body": b, "label": n}) + "\n" for b, n in EXPECTED)),
    ],
)
def test_csv_and_json_lines_say_the_same(name, content, tmp_path):
    found = read_labelled_texts(written(tmp_path, content, name), ["body"], "label")
    assert texts_and_labels(found) == EXPECTED
    assert found.labels == ("bad", "good")


@settings(max_examples=40)
@given(st.lists(st.tuples(*[st.text(st.characters(exclude_characters="\0"), min_size=1, max_size=9)]
                          * 2), min_size=1, max_size=9))  # fmt: skip
def test_what_the_csv_module_writes_is_read_as_it_was(tmp_path_factory, rows):
    rows = [tuple(text.encode("utf-8", "replace").decode() for text in row) for row in rows]
    buffer = io.StringIO(newline="")
    csv.writer(buffer).writerows([("a", "b"), *rows])
    path = written(tmp_path_factory.mktemp("csv"), buffer.getvalue(), "x.csv")
    found = read_rows(path, ["a", "b"])
    assert [tuple(row.values.values()) for row in found] == rows


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("x.csv", 'body,label\n"open,good\nb,bad\n', {}, "line 2: is no CSV"),
        ("x.csv", "body,label\na,good,x\n", {}, "line 2: has 3 columns, 2 are expected"),
        ("x.csv", "body,label\na\n", {}, "line 2: has 1 columns, 2 are expected"),
        ("x.csv", "text,label\na,good\n", {}, "line 1: has no column 'body'; it has text, label"),
        ("x.csv", "body,label\na, \n", {}, "line 2: has no label in 'label'"),
        ("x.csv", "body,label\na,good\nb,good\n", {}, "all labels are 'good'"),
        ("x.csv", "body,label\na,good\n", {"labels": ["bad", "fine"]}, "line 2: label 'good' is"),
        ("x.csv", "body,label\na,1.5\nb,high\n", {"is_regression": True}, "line 3: label 'high'"),
        ("x.csv", "body,label\na,inf\n", {"is_regression": True}, "line 2: label 'inf' is not a "),
        ("x.csv", "body,label\na,-1e39\n", {"is_regression": True}, "line 2: label '-1e39' is too"),
        ("x.jsonl", '{"body": "a", "label": "x"}\n[1]\n', {}, "line 2: "),
        ("x.json", '[{"body": "a", "label": "x"},\n{}]', {}, "entry 2: has no column 'body'; it"),
        ("x.json", '["a", "b"]', {}, "is a JSON array of texts"),
        ("x.jsonl", '{"body": "a"}\n', {}, "line 1: has no column 'label'; it has body"),
        ("x.jsonl", '{"body": 7, "label": "x"}\n', {}, "line 1: body must be text, but is 7"),
        ("x.jsonl", '{"body": "a", "label": null}\n', {}, "line 1: has no label in 'label'"),
        ("x.jsonl", '{"body": "a", "label": [1]}\n', {}, r"line 1: label \[1\] is not a class"),
        ("x.jsonl", '{"body": "a", "label": 0.5}\n', {}, "label 0.5 is not a class name; for nu"),
        ("x.txt", "a", {}, "line 1: has no column 'body'; it has a"),
    ],
)
def test_bad_tables_are_named_by_line(name, content, options, message, tmp_path):
    path = written(tmp_path, content, name)
    with pytest.raises(BadInputError, match=message) as raised:
        read_labelled_texts(path, ["body"], "label", **options).check()
    assert str(raised.value).startswith(path) and "\n" not in str(raised.value)


def test_tsv_has_no_quotes(tmp_path):
    path = written(tmp_path, 'body\tlabel\n"a\tb\nc"\td\n', "x.tsv")
    assert [line.cells for line in read_tsv(path)] == [["body", "label"], ['"a', "b"], ['c"', "d"]]


@pytest.fixture
def vocabulary(tmp_path):
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "fine", "bad", "a"]
    return written(tmp_path, "".join(f"{piece}\n" for piece in pieces), "vocab.txt")


def prepare(*arguments):
    with pytest.raises(SystemExit) as stop:
        main(["prepare", *map(str, arguments)])
    return stop.value.code


def test_classes_of_other_files_are_those_of_the_training_records(vocabulary, tmp_path, capfd):
    columns = ("--text-column", "body", "--label-column", "label", "--vocabulary", vocabulary)
    columns = ("classification", "--lowercase", *columns)
    train = written(tmp_path, "body,label\na,x\nbad,y\n\nfine,z\n", "train.csv")
    assert prepare(*columns, "--input", train, "--output", tmp_path / "train") == 0
    assert "labels: x 1, y 1, z 1" in capfd.readouterr().out
    dev = written(tmp_path, "body,label\nfine,z\n,y\n", "dev.csv")
    options = (*columns, "--labels-of", tmp_path / "train", "--output", tmp_path / "dev")
    assert prepare(*options, "--input", dev) == 0
    assert "empty texts: 1" in capfd.readouterr().out
    manifest = TextClassificationManifest.load(str(tmp_path / "dev"))
    assert (manifest.labels, manifest.label_counts) == (["x", "y", "z"], [0, 1, 1])
    other = written(tmp_path, "body,label\nfine,q\n", "other.csv")
    assert prepare(*options, "--overwrite", "--input", other) == 2
    assert "other.csv: line 2: label 'q' is not one of x, y, z" in capfd.readouterr().err
    assert TextClassificationManifest.load(str(tmp_path / "dev")) == manifest  # nothing is lost


def test_texts_without_labels_are_to_predict(vocabulary, tmp_path, capfd):
    columns = ("classification", "--lowercase", "--text-column", "body", "--vocabulary", vocabulary)
    train = written(tmp_path, "body,label\na,x\nbad,y\n", "train.csv")
    named = (*columns, "--label-column", "label", "--input", train)
    assert prepare(*named, "--output", tmp_path / "train") == 0
    test = written(tmp_path, "body\nfine\nbad\na\n", "test.csv")
    for kind in (["--labels-of", tmp_path / "train"], ["--regression"]):
        output = tmp_path / kind[0]
        assert prepare(*columns, *kind, "--input", test, "--output", output) == 0
        assert "without labels: to predict" in capfd.readouterr().out
        manifest = TextClassificationManifest.load(str(output))
        assert (manifest.is_labelled, manifest.num_rows, sum(manifest.label_counts)) == (
            False,
            3,
            0,
        )
    assert prepare(*columns, "--input", test, "--output", tmp_path / "neither") == 2
    assert "test.csv: no --label-column is given; " in capfd.readouterr().err


@pytest.mark.parametrize(
    ("content", "line"), [("fine,\nbad,\n", 2), ("fine,x\nbad,\na,y\n", 3)], ids=["all", "one"]
)
@pytest.mark.parametrize("options", [[], ["--regression"]])
def test_a_column_without_labels_is_refused(options, content, line, vocabulary, tmp_path, capfd):
    content = content.replace("x", "1.5").replace("y", "2") if options else content
    path = written(tmp_path, f"body,label\n{content}", "test.csv")
    columns = ("--text-column", "body", "--label-column", "label", "--vocabulary", vocabulary)
    arguments = ("classification", *columns, *options, "--input", path)
    assert prepare(*arguments, "--lowercase", "--output", tmp_path / "test") == 2
    (error,) = capfd.readouterr().err.splitlines()
    assert f"{path}: line {line}: has no label in 'label'; " in error
    assert "leave out --label-column" in error
    assert not (tmp_path / "test").exists()


@pytest.mark.parametrize("labels", [("x", None), (None, None, "y")])
def test_texts_of_which_some_have_labels_are_refused(labels):
    """None would be trained as the first class."""
    examples = [LabelledText(5 + number, ("a",), label) for number, label in enumerate(labels)]
    texts = LabelledTexts("some.csv", examples, ("x", "y"), is_pair=False)
    with pytest.raises(BadInputError, match=f"^some.csv: line {4 + len(labels)}: has (a|no) label"):
        texts.check()


def test_files_as_glue_has_them(shared_data):
    glue, counts = shared_data / "glue", {}
    for task, name, labelled in (
        ("cola", "CoLA", 8551), ("mrpc", "MRPC", 3668), ("rte", "RTE", 2490),
        ("wnli", "WNLI", 635), ("stsb", "STS-B", 5749),
    ):  # fmt: skip
        train = read_glue(str(glue / name / "train.tsv"), task)
        train.check()
        test = read_glue(str(glue / name / "test.tsv"), task)
        counts[task] = len(test.examples)
        assert len(train.examples) == labelled
        assert all(example.label is None for example in test.examples)
    assert counts == {"cola": 1063, "mrpc": 1725, "rte": 3000, "wnli": 146, "stsb": 1379}


def test_damaged_parquet_is_named(tmp_path):
    path = written(tmp_path, b"PAR1\x15\x04" + bytes(60) + b"PAR1", "train.csv")
    with pytest.raises(BadInputError, match=r"train.csv: is broken"):
        read_labelled_texts(path, ["text"], "label")
    with pytest.raises(BadInputError, match="no such file"):
        read_labelled_texts(path + "s", ["text"], "label")


LABELLED = [{"text": "a", "more": "b", "label": 1}, {"text": "c", "more": "", "label": 0}]


def test_tables_of_every_format_say_the_same(tmp_path):
    """Their names tell nothing."""
    frame = pandas.DataFrame(LABELLED)
    path = tmp_path / "table"
    for write in (
        lambda: frame.to_csv(path),
        lambda: frame.to_csv(path, sep="\t", index=False),
        lambda: frame.to_csv(path, sep=";", compression="xz"),
        lambda: frame.to_parquet(path),
        lambda: frame.to_feather(path),
        lambda: frame.to_json(path, orient="records"),
        lambda: frame.to_json(path, orient="records", lines=True, compression="zstd"),
    ):
        write()
        found = read_labelled_texts(str(path), ["text", "more"], "label")
        assert texts_and_labels(found) == [("a", "b", "1"), ("c", "", "0")]
        assert found.labels == ("0", "1")
        found = read_labelled_texts(str(path), ["text"], "label", is_regression=True)
        assert texts_and_labels(found) == [("a", 1.0), ("c", 0.0)]


def test_classes_of_datasets_have_their_names(tmp_path):
    feature = {"names": ["bad", "good"], "_type": "ClassLabel"}
    metadata = {"huggingface": json.dumps({"info": {"features": {"label": feature}}})}
    table = pyarrow.Table.from_pylist(LABELLED).replace_schema_metadata(metadata)
    path = tmp_path / "train.parquet"
    pyarrow.parquet.write_table(table, path)
    found = read_labelled_texts(str(path), ["text"], "label")
    assert texts_and_labels(found) == [("a", "good"), ("c", "bad")]
    found = read_labelled_texts(str(path), ["text"], "label", labels=["good", "fine"])
    with pytest.raises(BadInputError, match=r"train\.parquet: row 2: label 'bad' is not one"):
        found.check()
