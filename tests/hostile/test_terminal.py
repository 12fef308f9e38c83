"""What comes from data is only read: on the terminal, in tables, in pages, in what is published."""
# ruff: noqa: RUF001

import io
import json
import os
import re
import sys

import keras_hub
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.table import Table
from tiny_models import VOCABULARY, tiny_model

from spanbert_tf import cli
from spanbert_tf.command_line import run_command
from spanbert_tf.console import DataConsole
from spanbert_tf.errors import BadInputError
from spanbert_tf.models import SpanBertBackbone, SpanBertTextClassifier, SpanBertTokenClassifier
from spanbert_tf.presets.preset import Preset
from spanbert_tf.presets.writing import published_name, write_preset
from spanbert_tf.serving.server_files import write_readme
from spanbert_tf.tasks.coreference.files import as_conll, as_resolved, as_text
from spanbert_tf.tasks.coreference.metrics import read_clusters
from spanbert_tf.tasks.prediction import predict_lines
from spanbert_tf.tasks.relation_extraction.rows import RelationSet, check_relations
from spanbert_tf.tasks.text_classification.task import TextClassification
from spanbert_tf.terminal import escape_controls, print_line

# What acts on a terminal or on the order of a line, written out.
ACTS = re.compile("[\x00-\x1f\x7f-\x9f\xad\u061c\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
# Title of the window, colour, a line of its own, the order of letters, rich's markup.
NASTY = "\x1b]0;owned\x07\x1b[31m\r\nspanbert-tf: done\x9b2J\u202egnp\u2066.\u2028[/x][bold]:cat:"
SHOWN = (
    "\\x1b]0;owned\\x07\\x1b[31m\\r\\nspanbert-tf: done\\x9b2J\\u202egnp\\u2066.\\u2028"
    "[/x][bold]:cat:"
)
ORDINARY = {
    "Arabic": "مرحبا بالعالم، ٣٤ ؟",
    "Arabic with signs of numbers": "\u0600١٢ \u06dd٣",
    "Hebrew": "שָׁלוֹם עוֹלָם",
    "Thai": "สวัสดีชาวโลก",
    "Khmer with spaces of no width": "សួស្តី\u200bពិភពលោក",
    "Persian with non-joiners": "می\u200cخواهم",
    "Hindi with joiners": "क\u094d\u200dष र\u094d\u200d",
    "family": "👩\u200d👩\u200d👧\u200d👦",
    "heart with variation selector": "❤\ufe0f 1\ufe0f\u20e3",
    "combining marks": "e\u0301 a\u0323\u0302",
    "Chinese": "你好，世界",
    "backslashes, brackets, quotes": "C:\\new [/x] 'a' \"b\"",
}


def run(capfd, *arguments):
    """Status, standard output and standard error of a command."""
    with pytest.raises(SystemExit) as ended:
        cli.main([str(argument) for argument in arguments])
    return ended.value.code, *capfd.readouterr()


def assert_inert(printed):
    for line in printed.split("\n"):
        assert not ACTS.search(line), line


@pytest.mark.parametrize("text", ORDINARY.values(), ids=ORDINARY)
def test_ordinary_text_of_any_script_stays(text, capfd):
    assert escape_controls(text) == text
    print_line(text)
    console = DataConsole(file=io.StringIO(), width=80)
    console.print(text)
    assert capfd.readouterr().out == console.file.getvalue() == f"{text}\n"


def test_what_acts_is_written_as_python_writes_it():
    assert escape_controls(NASTY) == SHOWN
    numbers = [*range(32), *range(127, 160), *range(0x2028, 0x202F), *range(0x2066, 0x206A)]
    for number in (*numbers, 0xAD, 0x61C, 0x200E, 0x200F, 0xFEFF, 0xE0041, 0xDCE9):
        assert escape_controls(chr(number)) == ascii(chr(number))[1:-1]


@given(st.text())
def test_escaping_keeps_letters_and_is_done_once(text):
    escaped = escape_controls(text)
    assert not ACTS.search(escaped) and escape_controls(escaped) == escaped
    assert [c for c in text if c.isalnum()] == [c for c in escaped if c.isalnum()] or (
        escaped != text
    )


@given(st.lists(st.text(st.characters(exclude_categories=["Cn"])), min_size=1, max_size=3))
def test_tables_and_lines_hold_no_controls_and_are_aligned(texts):
    console = DataConsole(file=io.StringIO(), width=400, force_terminal=False)
    table = Table("", *texts, title=texts[0])
    table.add_row("1", *texts)
    console.print(table)
    *titles, _ = console.file.getvalue().split("\n")
    assert_inert("\n".join(titles))
    lines = [line for line in titles if line[:1] in "┏┃┡│└"]
    assert len({cell_len(line) for line in lines}) == 1
    console.print(texts[0], texts[-1])
    assert_inert(console.file.getvalue())


def test_wide_characters_are_aligned_and_own_colours_stay():
    console = DataConsole(
        file=io.StringIO(), width=60, force_terminal=True, color_system="standard"
    )
    table = Table("class", "F1")
    for name in ("你好", "a", "\x1b[31mred"):
        table.add_row(name, "1")
    console.print(table, style="bold")
    printed = console.file.getvalue()
    assert "\x1b[1m" in printed  # ours
    lines = [re.sub(r"\x1b\[[\d;]*m", "", line) for line in printed.splitlines()]
    assert len({cell_len(line) for line in lines}) == 1
    assert any("│ \\x1b[31mred │" in line for line in lines)


@given(st.text(), st.sampled_from([BadInputError, RuntimeError]))
def test_errors_are_one_line(text, kind):
    import click

    @click.command()
    def fail():
        raise kind(text)

    stream, former = io.StringIO(), sys.stderr
    sys.stderr = stream
    try:
        run_command(fail, "fail", [])
    except SystemExit as ended:
        assert ended.code == 2
        assert stream.getvalue().count("\n") == 1
    except RuntimeError:  # of no known kind: the interpreter prints its traceback
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr = former
    assert_inert(stream.getvalue())


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    path = tmp_path_factory.mktemp("words") / "vocab.txt"
    path.write_text("".join(f"{piece}\n" for piece in VOCABULARY))
    return path


@pytest.fixture(scope="module")
def records(vocabulary):
    """Records of texts whose labels, column and counts are hostile."""
    source, output = vocabulary.parent / "texts.jsonl", vocabulary.parent / "records"
    lines = [{"text": "ann has the cat", "label": label} for label in (NASTY, "[/x]", NASTY, "a")]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(SystemExit) as ended:
        cli.main(["prepare", "classification", "--input", str(source), "--output", str(output),
                  "--vocabulary", str(vocabulary), "--lowercase", "--text-column", "text",
                  "--label-column", "label", "--sequence-length", "32"])  # fmt: skip
    assert ended.value.code == 0
    return output


def test_labels_in_prepare(records, vocabulary, tmp_path, capfd):
    status, out, err = run(
        capfd, "prepare", "classification", "--input", records.parent / "texts.jsonl",
        "--output", tmp_path / "again", "--vocabulary", vocabulary, "--lowercase",
        "--text-column", "text", "--label-column", "label", "--sequence-length", 32,
    )  # fmt: skip
    assert status == 0 and SHOWN in out
    assert_inert(out + err)


def test_labels_in_evaluate(records, capfd):
    status, out, err = run(capfd, "evaluate", "--baseline", "--data", records)
    assert status == 0 and "[/x]" in out and "\\x1b]0;owned" in out
    assert_inert(out + err)


def test_markup_and_controls_in_counts_and_vocabulary_of_records(records, tmp_path, capfd):
    """`[/x]` ended `inspect` with a MarkupError."""
    (manifest,) = records.glob("*_info.json")
    content = json.loads(manifest.read_text())
    before = manifest.read_text()
    content["counts"] |= {"[/x]": 1, f"a{NASTY}": 2}
    manifest.write_text(json.dumps(content))
    try:
        status, out, err = run(capfd, "inspect", records)
    finally:
        manifest.write_text(before)
    assert (status, err) == (0, "")
    assert "  [/x]: 1\n" in out
    assert_inert(out)


def test_questions(vocabulary, tmp_path, capfd):
    answer = {"text": "cat", "answer_start": 12}
    paragraph = {"context": "ann has the cat", "qas": [
        {"id": f"1{NASTY}", "question": f"who {NASTY}", "answers": [answer]}]}  # fmt: skip
    source = tmp_path / "squad.json"
    source.write_text(json.dumps({"data": [{"title": NASTY, "paragraphs": [paragraph]}]}))
    options = ["--vocabulary", vocabulary, "--lowercase", "--sequence-length", 64]
    output = tmp_path / "records"
    arguments = ["--input", source, "--output", output, *options]
    status, out, err = run(capfd, "prepare", "squad", *arguments)
    assert status == 0
    assert_inert(out + err)
    status, out, err = run(capfd, "inspect", output)
    assert (status, err) == (0, "") and "gold answers: cat" in out
    assert_inert(out)


def document(**changes):
    words = ["ann", NASTY, "has", "\u202ecat"]
    line = {"name": "x", "part": 0, "words": words, "sentence_starts": [0, 2],
            "speakers": ["", "", f"a{NASTY}", ""], "clusters": [[[0, 0], [3, 3]]]}  # fmt: skip
    return {**line, **changes}


def test_documents(vocabulary, tmp_path, capfd):
    source = tmp_path / "texts.jsonl"
    line = {"doc_key": f"x{NASTY}", "sentences": [["ann", NASTY], ["has", "cat"]],
            "speakers": [["", ""], ["", ""]], "clusters": [[[0, 0], [3, 3]]]}  # fmt: skip
    source.write_text(json.dumps(line))
    options = ["--vocabulary", vocabulary, "--lowercase", "--sequence-length", 64]
    output = tmp_path / "records"
    status, out, err = run(
        capfd, "prepare", "coreference", "--input", source, "--output", output, *options
    )
    assert status == 0
    assert_inert(out + err)
    status, out, err = run(capfd, "inspect", output)
    assert (status, err) == (0, "") and "]₁" in out
    assert_inert(out)


def test_names_of_documents_write_no_rows(tmp_path):
    name = "x); part 000\n#end document\n#begin document (y"
    line = document(name=name, words=["ann", "bob", "has", "cat"])
    text = as_conll(line, line["clusters"])
    assert len(text.splitlines()) == 1 + 4 + 1 + 2  # header, words, a blank line between, the end
    path = tmp_path / "predictions.conll"
    path.write_text(text)
    assert len(read_clusters(str(path))) == 1
    for show in (as_text, as_resolved):
        nasty = document(name=name)
        lines = show(nasty, nasty["clusters"]).removesuffix("\n\n").split("\n")
        assert len(lines) == 1 + 2
        assert_inert("\n".join(lines))


@pytest.mark.parametrize("label", ["a\nb", "a\tb", "\x1b[31m", "a\u2028b"])
def test_relations_that_are_no_line_are_refused(label):
    examples = [{"id": "1", "relation": "a"}, {"id": "2", "relation": label}]
    with pytest.raises(BadInputError, match=r"example '2': the relation .* has a line end or"):
        check_relations(RelationSet("file", "tacred", "no", examples))


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.write_text(json.dumps({NASTY: 1})),  # a key of YAML
        lambda path: path.write_text(f"? {json.dumps(NASTY)}\n: {{a: 1}}\n"),
        lambda path: path.write_text(json.dumps({"training": NASTY})),
        lambda path: path.write_text(json.dumps({"training": {"steps": NASTY}})),
    ],
)
def test_configurations(make, tmp_path, capfd):
    path = tmp_path / "config.yaml"
    make(path)
    status, out, err = run(capfd, "pretrain", "--config", path, "--data", tmp_path, "--output", "x")
    assert (status, out) == (2, "") and err.count("\n") == 1
    assert_inert(err)


@pytest.mark.parametrize("place", ["option", "argument", "column", "file"])
def test_arguments_and_columns(place, vocabulary, tmp_path, capfd):
    nasty = NASTY.replace("/", "|")
    source = tmp_path / (f"{nasty}.csv" if place == "file" else "texts.csv")
    source.write_text(f'"{nasty}",label\nann,1\n')
    arguments = ["--input", source, "--text-column", "text", "--vocabulary", vocabulary]
    arguments += {"option": [f"--{nasty}"], "argument": [nasty]}.get(place, [])
    status, out, err = run(
        capfd, "prepare", "classification", *arguments, "--output", tmp_path / "x"
    )
    assert (status, out) == (2, "") and err.count("\n") == 1 and "owned" in err
    assert_inert(err)


def test_names_of_arrays_in_convert(tmp_path, capfd):
    """The MarkupError came after the output was written."""
    torch_models = pytest.importorskip("torch_models")
    safetensors = pytest.importorskip("safetensors.numpy")
    source = torch_models.save_torch_model(torch_models.torch_model(), tmp_path / "source")
    path = str(source / "model.safetensors")
    arrays = safetensors.load_file(path)
    safetensors.save_file(arrays | {f"[/x]{NASTY}": np.zeros(2, "float32")}, path, {"format": "pt"})
    capfd.readouterr()
    destination = tmp_path / NASTY.replace("/", "|")
    status, out, err = run(
        capfd, "convert", "--from", "huggingface", "--to", "keras", source, destination
    )
    assert (status, err) == (0, "") and "[/x]" in out
    assert_inert(out)
    card = (destination / "README.md").read_text()
    assert "| Converted from | source |" in card and str(tmp_path) not in card


def test_readme_of_an_export(tmp_path):
    classifier = tiny_model("text_classification")
    classifier = SpanBertTextClassifier(
        classifier.backbone, preprocessor=classifier.preprocessor, labels=[NASTY, "b"]
    )
    served = TextClassification().served(classifier, 1)
    write_readme(str(tmp_path), served.readme(NASTY))
    readme = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert_inert(readme)
    assert readme.startswith(f"# {SHOWN}\n") and f"`{SHOWN}`" in readme


def test_predictions_are_json_that_acts_on_no_terminal(tmp_path, monkeypatch, capfd):
    """With escapes of JSON's own, so that a program reads the label itself."""
    monkeypatch.chdir(tmp_path)
    classifier = tiny_model("text_classification")
    label, other = f"{NASTY}\x7f\U000e0041", "".join(ORDINARY.values())
    classifier = SpanBertTextClassifier(
        classifier.backbone, preprocessor=classifier.preprocessor, labels=[label, other]
    )
    classifier.is_head_trained = True
    write_preset(classifier, "preset")
    (tmp_path / "in.txt").write_text("the cat\n")
    predict_lines("preset", "in.txt", "-", source_format="text", top_k=2)
    text = capfd.readouterr().out.removesuffix("\n")
    assert_inert(text)
    assert {found["label"] for found in json.loads(text)} == {label, other}
    assert other.replace("\\", "\\\\").replace('"', '\\"') in text  # as it is


def test_published_names_tell_no_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert published_name("/home/ann/secret/preset/") == published_name("a/../preset") == "preset"
    assert published_name(".") == tmp_path.name
    for name in ("hf://ann/bert", "kaggle://keras/bert"):
        assert published_name(name) == name
    model = tiny_model("text_classification")
    write_preset(model, "preset", facts={"Data": f"a|{NASTY}"})
    card = (tmp_path / "preset" / "README.md").read_text(encoding="utf-8")
    assert f"| Data | a\\|{SHOWN} |\n" in card
    assert_inert(card)


@pytest.fixture
def preset(tmp_path, monkeypatch):
    """A preset beside a module `keras_cv` that notes that it was imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    write_preset(tiny_model("text_classification"), "preset")
    (tmp_path / "keras_cv").mkdir()
    (tmp_path / "keras_cv" / "__init__.py").write_text("open('imported', 'w')")
    (tmp_path / "keras_cv" / "models.py").write_text("")
    yield tmp_path / "preset"
    assert not (tmp_path / "imported").exists()


@pytest.mark.parametrize("name", ["config", "task", "tokenizer", "preprocessor"])
@pytest.mark.parametrize(
    "load",
    [
        SpanBertTextClassifier.from_preset,
        lambda preset: SpanBertTokenClassifier.from_preset(preset, labels=["O", "B-X"]),
        lambda preset: Preset(preset).task(keras_hub.models.TextClassifier),
    ],
)
def test_presets_import_nothing_of_the_working_directory(name, load, preset):
    path = preset / f"{name}.json"
    content = json.loads(path.read_text())
    content["config"]["deep"] = [
        {"module": "keras_cv.models", "class_name": "X", "config": {}, "registered_name": "X"}
    ]
    path.write_text(json.dumps(content))
    with pytest.raises(BadInputError, match=rf"{name}\.json names 'keras_cv\.models\.X'"):
        load("preset")


def test_modules_that_the_user_has_imported_are_allowed(preset, monkeypatch):
    path = preset / "config.json"
    content = json.loads(path.read_text())
    content["module"] = "tiny_models"  # what is registered is found by its name
    path.write_text(json.dumps(content))
    assert "tiny_models" in sys.modules
    assert isinstance(SpanBertBackbone.from_preset("preset"), SpanBertBackbone)
    assert os.path.exists("preset")
