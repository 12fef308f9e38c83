"""Files of named entities: what is read, what is refused or counted, and the rows of it."""

import dataclasses
import json
import time

import numpy as np
import pandas
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from seqeval.scheme import IOB2, IOBES, Entities

from spanbert_tf.errors import BadInputError
from spanbert_tf.tasks.evaluation import check_labelled
from spanbert_tf.tasks.lookup import open_records, task_dataset
from spanbert_tf.tasks.named_entities.records import SENTENCES_FILE, NamedEntitiesManifest
from spanbert_tf.tasks.named_entities.rows import (
    Entity,
    read_conll2003,
    read_crossre,
    read_entity_lines,
    read_tagged_tokens,
    spans_of_tags,
    write_entities,
)

WORDS = ["the", "cat", "##s", "ann", "lee", "rome", "in", "-", "u", ".", "s", "##town"]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
CONLL = """-DOCSTART- -X- -X- O

Ann NNP B-NP I-PER
Lee NNP I-NP I-PER
in IN O O
U.S NNP B-NP I-LOC
\u00a0. . O O


Rome NNP O I-LOC
Rome NNP O B-LOC
"""


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("".join(f"{piece}\n" for piece in VOCABULARY))
    return str(path)


def prepare(sentences, output, vocabulary, **options):
    options = {"lowercase": True, "vocabulary": vocabulary, **options}
    return write_entities(sentences, str(output), **options)


def labelled_rows(directory, manifest):
    """Pieces of each row with their labels; `None` where there is none."""
    rows = {}
    for x, y in task_dataset(directory, batch_size=2, training=False).as_numpy_iterator():
        for number, ids, mask, labels in zip(
            x["row_index"], x["token_ids"], x["padding_mask"], y, strict=True
        ):
            names = [None if label < 0 else manifest.labels[label] for label in labels]
            pieces = [VOCABULARY[token] for token in ids]
            assert set(names[mask.sum() :]) <= {None}
            rows[int(number)] = list(zip(pieces, names, strict=True))[1 : mask.sum() - 1]
    return [rows[number] for number in range(len(rows))]


def write_lines(path, lines):
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return read_entity_lines(str(path))


def test_labels_are_those_of_the_first_pieces_of_marked_words(tmp_path, vocabulary):
    """`U.S` is one word: its other three pieces have no label (Devlin et al., 5.3)."""
    (tmp_path / "eng.train").write_bytes(CONLL.replace("\n", "\r\n").encode())
    sentences = read_conll2003(str(tmp_path / "eng.train"))
    assert sentences.repairs == {"entities begun by I- or E-": 3}  # of the original's kind of BIO
    manifest = prepare(sentences, tmp_path / "records", vocabulary)
    assert manifest.labels == ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]
    assert (manifest.words, manifest.label_counts) == ("marked", [2, 3, 0, 1, 1])
    first, second = labelled_rows(str(tmp_path / "records"), manifest)
    assert first == [
        *(("ann", "B-PER"), ("lee", "I-PER"), ("in", "O")),
        *(("u", "B-LOC"), (".", None), ("s", None), (".", "O")),
    ]
    assert second == [("rome", "B-LOC"), ("rome", "B-LOC")]
    lines = open_records(str(tmp_path / "records")).lines(SENTENCES_FILE)
    assert lines[0]["labels"] == ["B-PER", "I-PER", "O", "B-LOC", "O"]
    assert lines[0]["first_pieces"] == [0, 1, 2, 3, 6]
    assert lines[0]["id"] == "line 3"


def test_pieces_that_go_on_with_a_word_have_no_label(tmp_path, vocabulary):
    line = {"text": "the cats in romeTown", "entities": [{"start": 12, "end": 20, "label": "LOC"}]}
    manifest = prepare(write_lines(tmp_path / "a.jsonl", [line]), tmp_path / "records", vocabulary)
    (row,) = labelled_rows(str(tmp_path / "records"), manifest)
    labels = ["O", "O", None, "O", "B-LOC", None]
    assert row == list(zip(["the", "cat", "##s", "in", "rome", "##town"], labels, strict=True))
    assert (manifest.words, manifest.label_counts) == ("tokenizer", [3, 1, 0])


def test_without_marked_words_each_word_of_the_tokenizer_has_a_label(tmp_path, vocabulary):
    line = {"text": "u.s. ann", "entities": [{"start": 0, "end": 4, "label": "LOC"}]}
    manifest = prepare(write_lines(tmp_path / "a.jsonl", [line]), tmp_path / "records", vocabulary)
    (row,) = labelled_rows(str(tmp_path / "records"), manifest)
    labels = ["B-LOC", "I-LOC", "I-LOC", "I-LOC", "O"]
    assert row == list(zip(["u", ".", "s", ".", "ann"], labels, strict=True))


def test_the_first_word_of_an_entity_that_has_pieces_begins_it(tmp_path, vocabulary):
    line = {"doc_key": "d", "sentence": ["the", "\u200b", "ann", "lee"], "ner": [[1, 3, "P"]]}
    (tmp_path / "a.json").write_text(json.dumps(line) + "\n")
    manifest = prepare(read_crossre(str(tmp_path / "a.json")), tmp_path / "records", vocabulary)
    (row,) = labelled_rows(str(tmp_path / "records"), manifest)
    assert row == [("the", "O"), ("ann", "B-P"), ("lee", "I-P")]


def test_records_that_do_not_say_whose_words_have_labels_are_refused(tmp_path, vocabulary):
    line = {"text": "ann", "entities": []}
    prepare(write_lines(tmp_path / "a.jsonl", [line]), tmp_path / "records", vocabulary)
    path = tmp_path / "records" / NamedEntitiesManifest.file_name()
    manifest = json.loads(path.read_text())
    del manifest["words"]
    path.write_text(json.dumps(manifest))
    with pytest.raises(BadInputError, match=f"^{path}: .*words.* write"):
        open_records(str(tmp_path / "records"))


def test_counts_of_other_labels_are_refused(tmp_path, vocabulary):
    line = {"text": "ann", "entities": []}
    prepare(write_lines(tmp_path / "a.jsonl", [line]), tmp_path / "records", vocabulary)
    path = tmp_path / "records" / NamedEntitiesManifest.file_name()
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, "label_counts": [1, 2]}))
    with pytest.raises(BadInputError, match=f"^{path}: label_counts: are 2, of 1 labels; write"):
        open_records(str(tmp_path / "records"))


def test_entities_inside_words_are_lost_and_counted(tmp_path, vocabulary, capsys):
    places = [(0, 2), (4, 7), (8, 9), (13, 17)]  # in `the`, in `cats`, a blank, in `romeTown`
    entities = [{"start": start, "end": end, "label": "X"} for start, end in places]
    line = {"text": "the cats in romeTown", "entities": entities}
    manifest = prepare(write_lines(tmp_path / "a.jsonl", [line]), tmp_path / "records", vocabulary)
    assert (manifest.counts["entities"], manifest.counts["lost_entities"]) == (4, 4)
    shown = capsys.readouterr().out
    assert "4 entities of 1 types; 4 lost, which begin or end inside a word" in shown
    assert "a.jsonl: line 1: 'th' (X) begins or ends inside a word" in shown
    (row,) = labelled_rows(str(tmp_path / "records"), manifest)
    assert {label for _, label in row} == {"O", None}
    check_labelled(manifest, "ner/dev")  # as `evaluate` and `finetune` do
    expected = (
        "ner/dev: 4 gold entities are not counted: they begin or end inside a word, or hold none"
    )
    assert capsys.readouterr().out.splitlines() == [expected]


def test_entities_without_pieces_whose_words_have_labels_are_counted_by_scores(
    tmp_path, vocabulary, capsys
):
    line = {
        "doc_key": "d",
        "sentence": ["ann", "\u200b", "rome"],
        "ner": [[1, 1, "L"], [2, 2, "L"]],
    }
    (tmp_path / "a.json").write_text(json.dumps(line) + "\n")
    manifest = prepare(read_crossre(str(tmp_path / "a.json")), tmp_path / "records", vocabulary)
    assert (manifest.counts["lost_entities"], manifest.counts["unscored_entities"]) == (1, 0)
    assert open_records(str(tmp_path / "records")).lines(SENTENCES_FILE)[0]["labels"] == [
        "O",
        "B-L",
        "B-L",
    ]
    capsys.readouterr()
    check_labelled(manifest, "ner/dev")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "place", [(0, 6), (5, 11), (0, 2), (4, 7), (9, 15)], ids=["end", "begin", "1", "2", "both"]
)
def test_entity_that_cuts_a_word_is_in_no_gold_label(place, tmp_path, vocabulary):
    """`the ca`, `ats in`, `th`, `cat`, `in rom`: training knows none of them, either."""
    entities = [{"start": place[0], "end": place[1], "label": "X"}]
    line = {"text": "the cats in romeTown", "entities": entities}
    prepare(write_lines(tmp_path / "a.jsonl", [line]), tmp_path / "records", vocabulary)
    (sentence,) = (tmp_path / "records" / "sentences.jsonl").read_text().splitlines()
    assert set(json.loads(sentence)["labels"]) == {"O"}


def test_long_sentences_go_on_in_further_rows(tmp_path, vocabulary):
    words = ["ann", "cats", "rome", "in"] * 20
    sentences = {"doc_key": "d", "sentence": words, "ner": [[4 * n, 4 * n, "P"] for n in range(20)]}
    (tmp_path / "a.json").write_text(json.dumps(sentences) + "\n")
    relations = read_crossre(str(tmp_path / "a.json"))
    manifest = prepare(relations, tmp_path / "records", vocabulary, sequence_length=13)
    rows = labelled_rows(str(tmp_path / "records"), manifest)
    assert [len(row) for row in rows] == [11] * 9 + [1]
    pieces = [pair for row in rows for pair in row]
    expected = [("ann", "B-P"), ("cat", "O"), ("##s", None), ("rome", "O"), ("in", "O")]
    assert pieces == expected * 20
    assert (manifest.counts["sentences"], manifest.counts["split_sentences"]) == (1, 1)


def test_words_without_pieces_shift_nothing(tmp_path, vocabulary):
    line = {"doc_key": "d", "sentence": ["ann", "\u200b", "", "rome"], "ner": [[3, 3, "L"]]}
    (tmp_path / "a.json").write_text(json.dumps(line) + "\n" + json.dumps({**line, "sentence": []}))
    with pytest.raises(BadInputError, match=r"line 2 \(d\): entity 'L' from 3 to 3: is not in"):
        read_crossre(str(tmp_path / "a.json"))
    (tmp_path / "a.json").write_text(json.dumps(line) + "\n")
    manifest = prepare(read_crossre(str(tmp_path / "a.json")), tmp_path / "records", vocabulary)
    assert labelled_rows(str(tmp_path / "records"), manifest) == [[("ann", "O"), ("rome", "B-L")]]
    (sentence,) = open_records(str(tmp_path / "records")).lines(SENTENCES_FILE)
    assert sentence["first_pieces"] == [0, -1, -1, 1]
    assert manifest.counts["words_without_pieces"] == 2


def test_empty_texts_stay_where_they_are(tmp_path, vocabulary):
    lines = [{"text": text, "entities": []} for text in ("", "ann", " \u200b")]
    manifest = prepare(write_lines(tmp_path / "a.jsonl", lines), tmp_path / "records", vocabulary)
    assert labelled_rows(str(tmp_path / "records"), manifest) == [[], [("ann", "O")], []]
    assert manifest.counts["empty_sentences"] == 2


@st.composite
def tagged(draw):
    """Tags of a valid sentence in one of two schemes, and the other scheme's."""
    entities = draw(st.lists(st.tuples(st.integers(1, 4), st.sampled_from("AB"), st.booleans())))
    bio, bioes = [], []
    for length, kind, is_entity in entities:
        if not is_entity:
            bio += ["O"] * length
            bioes += ["O"] * length
            continue
        bio += [f"B-{kind}"] + [f"I-{kind}"] * (length - 1)
        inner = [f"B-{kind}"] + [f"I-{kind}"] * (length - 2) + [f"E-{kind}"]
        bioes += [f"S-{kind}"] if length == 1 else inner
    return bio, bioes


@given(tagged())
def test_bio_and_bioes_are_read_as_seqeval_reads_them(tags):
    for one, scheme in zip(tags, (IOB2, IOBES), strict=True):
        spans, num_begun = spans_of_tags(one, "place")
        found = Entities([one], scheme).entities[0] if one else []
        assert spans == [(entity.start, entity.end - 1, entity.tag) for entity in found]
        assert num_begun == 0


def test_tags_without_a_beginning_begin_one():
    assert spans_of_tags(["I-A", "I-A", "I-B", "O", "E-B", "E-B"], "") == (
        [(0, 1, "A"), (2, 2, "B"), (4, 4, "B"), (5, 5, "B")],
        4,
    )


@pytest.mark.parametrize("tag", ["B", "B-", "X-PER", "-PER", "b-PER", "PER"])
def test_other_tags_are_named(tag, tmp_path):
    path = tmp_path / "eng.train"
    path.write_text(f"\nthe O\nann {tag}\n")
    with pytest.raises(BadInputError, match=f"^{path}: line 2: word 2: '{tag}' is no tag"):
        read_conll2003(str(path))


def test_a_line_with_one_column_is_named(tmp_path):
    path = tmp_path / "eng.train"
    path.write_text("the O\nann\n")
    with pytest.raises(BadInputError, match=f"^{path}: line 2: 'ann' has one column"):
        read_conll2003(str(path))


@pytest.mark.parametrize(
    ("entities", "message"),
    [
        ([{"start": 0, "end": 99, "label": "A"}], "entity 'A' from 0 to 98: is not in"),
        ([{"start": 3, "end": 0, "label": "A"}], "entity 'A' from 3 to -1: is not in"),
        ([{"start": -1, "end": 2, "label": "A"}], "entity 'A' from -1 to 1: is not in"),
        ([{"start": s, "end": s + 2, "label": "A"} for s in (0, 1)], "overlaps the one before"),
        ([{"start": 0, "end": 2, "label": "A B"}], "its type is empty or has a space"),
        ([{"start": 0, "end": 2}], r"entities\[0\].label: is missing"),
        ([{"start": "0", "end": 2, "label": "A"}], r"entities\[0\].start: should be a valid int"),
    ],
)
def test_bad_spans_are_named(entities, message, tmp_path):
    lines = [{"text": "ann", "entities": []}, {"text": "ann in rome", "entities": entities}]
    with pytest.raises(BadInputError, match=f"^{tmp_path}/a.jsonl: line 2: .*{message}"):
        write_lines(tmp_path / "a.jsonl", lines)


def test_some_sentences_without_entities_are_refused(tmp_path, vocabulary):
    sentences = write_lines(tmp_path / "a.jsonl", [{"text": "ann", "entities": []}, {"text": "a"}])
    with pytest.raises(BadInputError, match="entry 2: has no entities, as others have"):
        prepare(sentences, tmp_path / "records", vocabulary)
    assert not (tmp_path / "records").exists()
    sentences = write_lines(tmp_path / "a.jsonl", [{"text": "ann"}, {"text": "the"}])
    manifest = prepare(sentences, tmp_path / "records", vocabulary)
    assert not manifest.is_labelled and manifest.num_training_rows == 0


def test_crossre_has_no_lost_entities(shared_data, tmp_path, capsys):
    import tarfile

    with tarfile.open(shared_data / "relation" / "crossre_native_train.tar.gz") as archive:
        content = archive.extractfile("crossre_data/ai-train.json").read()
    (tmp_path / "ai.json").write_bytes(content)
    vocabulary = str(shared_data / "vocab" / "bert-base-cased-vocab.txt")
    sentences = read_crossre(str(tmp_path / "ai.json"))
    manifest = prepare(sentences, tmp_path / "out", vocabulary, lowercase=False)
    expected = [json.loads(line) for line in content.decode().splitlines()]
    assert manifest.counts["entities"] == sum(len(line["ner"]) for line in expected)
    assert manifest.counts["lost_entities"] == manifest.counts["words_without_pieces"] == 0
    assert " lost" not in capsys.readouterr().out
    for sentence, line in zip(
        open_records(str(tmp_path / "out")).lines(SENTENCES_FILE), expected, strict=True
    ):
        begins = [label[0] for label in sentence["labels"]].count("B")
        assert begins == len(line["ner"])
        assert (np.diff(sentence["first_pieces"]) > 0).all()


def test_tables_of_every_format_hold_the_same_spans(tmp_path):
    rows = [
        {"text": "ann in rome", "entities": [{"start": 0, "end": 3, "label": "PER"}], "id": "x"},
        {"text": "the", "entities": [], "id": "y"},
    ]
    frame = pandas.DataFrame(rows)
    frame.to_json(tmp_path / "lines", orient="records", lines=True)
    frame.to_json(tmp_path / "array", orient="records", compression="xz", indent=1)
    frame.to_parquet(tmp_path / "parquet")
    expected = read_entity_lines(str(tmp_path / "lines")).sentences
    assert [sentence.entities for sentence in expected] == [(Entity(0, 3, "PER"),), ()]
    for name in ("array", "parquet"):
        assert read_entity_lines(str(tmp_path / name)).sentences == expected


TAGGED = [
    {"id": "7", "tokens": ["ann", "in", "new", "rome"], "ner_tags": [1, 0, 3, 4]},
    {"id": "8", "tokens": ["the"], "ner_tags": [0]},
    {"id": "9", "tokens": [], "ner_tags": []},
]
TAG_NAMES = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]


def test_lists_of_words_and_tags_are_read_as_datasets_has_them(tmp_path):
    """Parquet with the names of the numbers, JSON lines with the names, and CoNLL's columns."""
    feature = {"feature": {"names": TAG_NAMES, "_type": "ClassLabel"}, "_type": "List"}
    metadata = {"huggingface": json.dumps({"info": {"features": {"ner_tags": feature}}})}
    table = pyarrow.Table.from_pylist(TAGGED).replace_schema_metadata(metadata)
    pyarrow.parquet.write_table(table, tmp_path / "parquet")
    named = [{**row, "ner_tags": [TAG_NAMES[tag] for tag in row["ner_tags"]]} for row in TAGGED]
    (tmp_path / "lines").write_text("".join(json.dumps(row) + "\n" for row in named))
    columns = [
        "".join(f"{word} {tag}\n" for word, tag in zip(row["tokens"], row["ner_tags"], strict=True))
        for row in named
    ]
    (tmp_path / "columns").write_text("\n".join(columns))
    found = read_tagged_tokens(str(tmp_path / "parquet")).sentences
    assert found == read_tagged_tokens(str(tmp_path / "lines")).sentences
    assert [sentence.id for sentence in found] == ["7", "8", "9"]
    expected = read_conll2003(str(tmp_path / "columns")).sentences
    for sentence, other in zip(found[:2], expected, strict=True):
        assert sentence == dataclasses.replace(other, id=sentence.id)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"tokens": ["a", "b"], "tags": ["O"]}, "line 1: has 2 tokens and 1 tags"),
        ({"tokens": ["a"], "ner_tags": [3]}, "line 1: the tag 3 has no name in the file"),
        ({"tokens": ["a"], "ner_tags": ["PER"]}, "line 1: word 1: 'PER' is no tag of BIO"),
        ({"tokens": "a", "ner_tags": ["O"]}, "line 1: tokens: should be a valid list"),
        ({"words": ["a"], "ner_tags": ["O"]}, "line 1: has no column 'tokens'; it has words, ner_"),
    ],
)
def test_bad_rows_of_tags_are_named(row, message, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(row))
    with pytest.raises(BadInputError, match=f"^{path}: {message}"):
        read_tagged_tokens(str(path))


def test_a_long_text_with_many_entities_takes_no_time(tmp_path, vocabulary):
    num_words = 40_000
    entities = [{"start": n, "end": n + 3, "label": "PER"} for n in range(0, 4 * num_words, 8)]
    sentences = write_lines(
        tmp_path / "a.jsonl", [{"text": "ann " * num_words, "entities": entities}]
    )
    started = time.process_time()
    manifest = prepare(sentences, tmp_path / "records", vocabulary)
    assert time.process_time() - started < 8  # seconds; each entity against each word: 40
    assert (manifest.counts["entities"], manifest.counts["lost_entities"]) == (num_words // 2, 0)
