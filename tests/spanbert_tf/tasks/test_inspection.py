"""What `inspect` shows of the records of each task: words, names, and counts of labels."""

import io
import json

import pytest

from spanbert_tf.console import DataConsole
from spanbert_tf.tasks.coreference.files import read_documents
from spanbert_tf.tasks.coreference.rows import write_documents
from spanbert_tf.tasks.inspection import inspect_records
from spanbert_tf.tasks.marked_text import marked_pieces, marked_text
from spanbert_tf.tasks.named_entities.rows import (
    read_conll2003,
    read_entity_lines,
    write_entities,
)
from spanbert_tf.tasks.relation_extraction.rows import read_tacred, write_relations
from spanbert_tf.tasks.text_classification.files import read_labelled_texts
from spanbert_tf.tasks.text_classification.rows import write_labelled_texts

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES += [f"[unused{number}]" for number in range(1, 12)]
PIECES += ["ann", "##a", "lives", "in", "new", "york", ".", "acme"]


@pytest.fixture
def options(tmp_path):
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("".join(f"{piece}\n" for piece in PIECES))
    return {"vocabulary": str(vocabulary), "lowercase": True, "sequence_length": 32}


def inspected(records, **options):
    console = DataConsole(file=io.StringIO(), width=200)
    inspect_records(str(records), "spanbert_base", console=console, **options)
    return console.file.getvalue()


def table_of(shown):
    """First column → the others, of the one table."""
    rows = [line.split("│")[1:-1] for line in shown.splitlines() if line.startswith("│")]
    return {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in rows}


def test_sentences_have_their_entities_marked(options, tmp_path):
    lines = ["Anna B-PER", "lives O", "in O", "New B-LOC", "York I-LOC", ". O", ""]
    lines += ["Ann B-PER", "Ann B-PER", "York B-LOC", ""]
    (tmp_path / "train.conll").write_text("\n".join(lines))
    write_entities(read_conll2003(str(tmp_path / "train.conll")), str(tmp_path / "out"), **options)
    shown = inspected(tmp_path / "out")
    assert "[CLS] »anna« PER lives in »new york« LOC . [SEP]\n" in shown
    assert "[CLS] »ann« PER »ann« PER »york« LOC [SEP]\n" in shown
    assert table_of(shown) == {
        "O": ["3", "33.3%"],
        "B-LOC": ["2", "22.2%"],
        "I-LOC": ["1", "11.1%"],
        "B-PER": ["3", "33.3%"],
        "I-PER": ["0", "0.0%"],
    }


def test_sentences_without_labels_have_none(options, tmp_path):
    (tmp_path / "texts.jsonl").write_text(json.dumps({"text": "Anna lives."}))
    write_entities(read_entity_lines(str(tmp_path / "texts.jsonl")), str(tmp_path / "o"), **options)
    shown = inspected(tmp_path / "o")
    assert "[CLS] anna lives . [SEP]\n" in shown and "│" not in shown


@pytest.mark.parametrize("is_regression", [False, True])
def test_texts_have_the_names_of_their_classes(is_regression, options, tmp_path):
    labels = ("2.5", "1.0") if is_regression else ("about Ann", "other")
    rows = [f"Ann lives,{labels[0]}", f"Acme,{labels[1]}", f"Ann,{labels[0]}"]
    (tmp_path / "in.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    texts = read_labelled_texts(
        str(tmp_path / "in.csv"), ["text"], "label", is_regression=is_regression
    )
    write_labelled_texts(texts, str(tmp_path / "out"), **options)
    shown = inspected(tmp_path / "out")
    assert f"[CLS] ann lives [SEP]\n  label: {labels[0]}\n" in shown
    assert f"[CLS] acme [SEP]\n  label: {labels[1]}\n" in shown
    counts = {"about Ann": ["2", "66.7%"], "other": ["1", "33.3%"]}
    assert table_of(shown) == ({} if is_regression else counts)


def test_relations_have_both_entities_marked(options, tmp_path):
    example = {"id": "a", "token": ["Acme", "in", "New", "York"], "relation": "org:city",
               "subj_type": "ORG", "obj_type": "CITY", "subj_start": 0, "subj_end": 0,
               "obj_start": 2, "obj_end": 3}  # fmt: skip
    others = [{**example, "id": name, "relation": "no_relation"} for name in "bcd"]
    (tmp_path / "train.json").write_text(json.dumps([example, *others]))
    write_relations(read_tacred(str(tmp_path / "train.json")), str(tmp_path / "out"), **options)
    shown = inspected(tmp_path / "out", num_examples=4)
    assert (
        "»Acme« subject ORG in »New York« object CITY\n  relation: org:city\n"
        "  row: [CLS] [SUBJ=ORG] in [OBJ=CITY] [SEP]\n" in shown
    )
    assert table_of(shown) == {"no_relation": ["3", "75.0%"], "org:city": ["1", "25.0%"]}


def test_documents_have_their_mentions_in_brackets_and_their_clusters(options, tmp_path):
    sentences = [["Anna", "lives", "in", "New", "York", "."], ["Ann", "in", "Acme"]]
    clusters = [[[0, 0], [6, 6]], [[3, 4], [6, 8]]]  # the second "Ann" is inside "Ann in Acme"
    document = {"doc_key": "nw_0", "sentences": sentences, "clusters": clusters}
    (tmp_path / "train.jsonlines").write_text(json.dumps(document) + "\n")
    documents = read_documents([str(tmp_path / "train.jsonlines")])
    write_documents(
        documents, str(tmp_path / "out"), **options | {"sequence_length": 10, "max_span_width": 5}
    )
    shown = inspected(tmp_path / "out")
    assert (
        "# nw, part 0: 14 positions in 2 segments, 2 clusters of 4 mentions\n"
        "[CLS] [anna]₁ lives in [new york]₂ . [SEP]\n"
        "[CLS] [[ann]₁ in acme]₂ [SEP]\n"
        "  1: anna; ann\n"
        "  2: new york; ann in acme\n" in shown
    )
    assert "clusters: 2" in shown and "mentions: 4" in shown


def test_controls_in_what_is_marked_are_escaped():
    text = marked_text("a\x1b[31mb c", [(0, 7, "x\x07")])
    assert text.plain == "»a\\x1b[31mb« x\\x07 c"
    assert marked_pieces(["[CLS]", "a", "##b\x1b", "c"], [(1, 2, "N")]).plain == (
        "[CLS] »ab\\x1b« N c"
    )
