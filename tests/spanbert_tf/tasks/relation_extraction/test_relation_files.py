"""Files of relations: what is read, what is refused, and the rows that become of it."""

import functools
import json

import keras
import pandas
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from spanbert_tf.data.text_rows import RelationPacker
from spanbert_tf.errors import BadInputError
from spanbert_tf.models import SpanBertBackbone, SpanBertTokenizer
from spanbert_tf.tasks.lookup import open_records, task_dataset
from spanbert_tf.tasks.relation_extraction.records import (
    RelationExtractionConfig,
    RelationExtractionManifest,
)
from spanbert_tf.tasks.relation_extraction.rows import (
    marked_text_of,
    read_semeval2010,
    read_tacred,
    write_relations,
)
from spanbert_tf.tasks.relation_extraction.task import RelationExtraction
from spanbert_tf.text.vocabulary import TextRules, make_markers

WORDS = ["the", "cat", "##s", "ann", "rome", "in", "(", ")", ".", "b"]
UNUSED = [f"[unused{number}]" for number in range(1, 13)]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *UNUSED, *WORDS]
EXAMPLE = {
    "id": "e1",
    "relation": "no_relation",
    "token": ["ann", "-LRB-", "the", "cats", "-rrb-", "in", "rome"],
    "subj_start": 6,
    "subj_end": 6,
    "obj_start": 2,
    "obj_end": 3,
    "subj_type": "CITY",
    "obj_type": "ANIMAL",
    "stanford_pos": ["NN"],
}
SEMEVAL = (
    '1\t"The <e1>cats</e1> sat in <e2>rome</e2>."\r\nEntity-Destination(e1,e2)\r\nComment: x\r\n'
    '\r\n2\t"A ""b"" <e1>b</e1><e2>c</e2>"\r\nOther\r\nComment:\r\n\r\n'
)


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("".join(f"{piece}\n" for piece in VOCABULARY))
    return str(path)


def write(path, entries):
    path.write_text(json.dumps(entries))
    return read_tacred(str(path))


def prepare(relations, output, vocabulary, **options):
    options = {"lowercase": True, "vocabulary": vocabulary, **options}
    return write_relations(relations, str(output), **options)


def test_a_new_classifier_begins_at_the_shares_of_the_relations(tmp_path, vocabulary):
    """Of an input that says nothing it predicts them, with one more of each relation."""
    relations = ["no_relation", "no_relation", "born_in", "no_relation"]
    examples = [
        {**EXAMPLE, "id": str(number), "relation": relation}
        for number, relation in enumerate(relations)
    ]
    training = write(tmp_path / "train.json", examples)
    manifest = prepare(training, tmp_path / "train", vocabulary, sequence_length=16)
    assert manifest.labels == ["no_relation", "born_in"]
    assert manifest.label_counts == [3, 1]
    keras.utils.set_random_seed(1)
    encoder = SpanBertBackbone(len(VOCABULARY), 1, 2, 8, 8, max_sequence_length=16)
    tokenizer = SpanBertTokenizer(VOCABULARY, lowercase=True)
    config = RelationExtractionConfig()
    model = RelationExtraction().build(encoder, tokenizer, manifest, config)
    shares = tf.nn.softmax(model.output_dense(tf.zeros([1, 8])))[0].numpy()
    assert shares.tolist() == pytest.approx([4 / 6, 2 / 6])


def test_counts_of_other_relations_are_refused(tmp_path, vocabulary):
    prepare(write(tmp_path / "a.json", [EXAMPLE]), tmp_path / "records", vocabulary)
    path = tmp_path / "records" / RelationExtractionManifest.file_name()
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, "label_counts": [1, 2]}))
    with pytest.raises(BadInputError, match=f"^{path}: label_counts: are 2, of 1 labels; write"):
        open_records(str(tmp_path / "records"))


@functools.cache
def packer(entities, sequence_length):
    markers = make_markers(VOCABULARY, ["CITY"], ["ANIMAL"])
    text_rules = TextRules.of(True)
    options = {"entities": entities, "sequence_length": sequence_length}
    return tf.function(
        RelationPacker(VOCABULARY, text_rules, markers, **options), reduce_retracing=True
    )


def pack(example, entities="masked", sequence_length=32):
    names = ("text", "subject", "object", "subject_type", "object_type")
    columns = {name: tf.constant([example[name]]) for name in names}
    rows = packer(entities, sequence_length)(**columns)
    return [VOCABULARY[token] for token in rows[0].numpy()]


def test_entities_become_markers_and_brackets_are_brackets(tmp_path):
    (example,) = write(tmp_path / "train.json", [EXAMPLE]).examples
    assert example["text"] == "ann ( the cats ) in rome"
    row = ["[CLS]", "ann", "(", "[unused8]", ")", "in", "[unused7]", "[SEP]"]
    assert pack(example) == row
    kept = pack(example, entities="text")
    assert kept == [
        *("[CLS]", "ann", "(", "[unused3]", "the", "cat", "##s", "[unused4]", ")", "in"),
        *("[unused1]", "rome", "[unused2]", "[SEP]"),
    ]


def test_unknown_types_have_the_marker_of_their_role(tmp_path):
    (example,) = write(tmp_path / "a.json", [{**EXAMPLE, "subj_type": "RIVER"}]).examples
    assert pack(example)[6] == "[unused5]"


def test_the_map_depends_on_the_types_alone():
    markers = make_markers(VOCABULARY, ["b", "a", "b", ""], ["c"])
    first = ["SUBJ_START", "SUBJ_END", "OBJ_START", "OBJ_END", "SUBJ", "OBJ"]
    assert list(markers) == [*first, "SUBJ=a", "SUBJ=b", "OBJ=c"]
    assert list(markers.values()) == UNUSED[:9]
    # By number, whatever the order of the vocabulary; [unused0] is left alone.
    assert make_markers(["[unused0]", *reversed(VOCABULARY)], ["b", "a"], ["c"]) == markers


def test_too_few_unused_entries_are_refused():
    with pytest.raises(BadInputError, match=r"has 12 entries .* of which 20 are needed"):
        make_markers(VOCABULARY, map(str, range(14)))


def cut_by_hand(parts, room):
    """Behind, then before, then the middle, then the entities lose one piece after the other."""
    parts = [list(part) for part in parts]
    while sum(map(len, parts)) > room:
        if parts[4]:
            parts[4].pop()
        elif parts[0]:
            parts[0].pop(0)
        elif parts[2]:
            parts[2].pop(len(parts[2]) // 2)
        elif parts[3]:
            parts[3].pop()
        else:
            parts[1].pop()
    return parts


@settings(max_examples=40)
@given(st.lists(st.integers(0, 6), min_size=5, max_size=5), st.booleans())
def test_rows_are_cut_so_that_the_markers_stay(lengths, is_first):
    sequence_length = 11
    words = [["the", "cat", "in", ".", "ann", "b"][:length] for length in lengths]
    words[1], words[3] = words[1] or ["rome"], words[3] or ["rome"]
    text, places = "", []
    for part in words:
        places.append([len(text), len(text) + len(" ".join(part))])
        text += " ".join(part) + " "
    subject, entity = (places[1], places[3]) if is_first else (places[3], places[1])
    example = {"text": text, "subject": subject, "object": entity}
    example |= {"subject_type": "CITY", "object_type": ""}
    names = ("[unused7]", "[unused6]") if is_first else ("[unused6]", "[unused7]")
    before, _, between, _, behind = cut_by_hand(
        [words[0], [], words[2], [], words[4]], sequence_length - 4
    )
    row = ["[CLS]", *before, names[0], *between, names[1], *behind, "[SEP]"]
    assert pack(example, sequence_length=sequence_length) == row
    before, one, between, other, behind = cut_by_hand(words, sequence_length - 6)
    first, second = (UNUSED[:2], UNUSED[2:4]) if is_first else (UNUSED[2:4], UNUSED[:2])
    row = ["[CLS]", *before, first[0], *one, first[1], *between, second[0], *other, second[1]]
    assert pack(example, "text", sequence_length) == [*row, *behind, "[SEP]"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"subj_end": 7}, "the subject is from 6 to before 8, .* 7 words"),
        ({"obj_start": -1}, "the object is from -1"),
        ({"obj_start": 4}, "the object is from 4 to before 4"),
        ({"obj_end": 6}, "subject and object overlap"),
        ({"token": []}, "the subject is from 6 .* 0 words"),
        ({"token": [*"abcdef", ""]}, "the subject is from 12 to before 12, .* characters"),
        ({"token": "ann"}, "token: should be a valid list"),
        ({"subj_type": None}, "subj_type: should be a valid string"),
    ],
)
def test_bad_tacred_entries_are_named(changes, message, tmp_path):
    path = tmp_path / "train.json"
    with pytest.raises(BadInputError, match=f"^{path}: entry 2.*{message}"):
        write(path, [EXAMPLE, {**EXAMPLE, **changes}])


def test_an_id_twice_and_no_examples_are_refused(tmp_path, vocabulary):
    for entries, message in (([EXAMPLE, EXAMPLE], "'e1' occurs 2 times"), ([], "holds no")):
        with pytest.raises(BadInputError, match=message):
            prepare(write(tmp_path / "a.json", entries), tmp_path / "out", vocabulary)
    assert not (tmp_path / "out").exists()


def test_what_training_does_not_have_is_counted(tmp_path, vocabulary):
    training = write(tmp_path / "train.json", [EXAMPLE, {**EXAMPLE, "id": "e2", "relation": "a"}])
    changes = {"id": "e3", "relation": "b", "subj_type": "RIVER", "obj_type": "RIVER"}
    without = {**EXAMPLE, "id": "e4", "relation": "a", "subj_type": ""}  # which is no unknown type
    dev = write(tmp_path / "dev.json", [EXAMPLE, {**EXAMPLE, **changes}, without])
    # The dev set first: the map is the training set's all the same.
    of_dev = prepare(dev, tmp_path / "dev", vocabulary, training=training)
    of_train = prepare(training, tmp_path / "train", vocabulary)
    assert of_dev.markers == of_train.markers and of_dev.labels == ["no_relation", "a"]
    assert (of_dev.counts["unknown_types"], of_dev.counts["unknown_relations"]) == (2, 1)
    assert of_train == RelationExtractionManifest.load(str(tmp_path / "train"))
    # What cannot be predicted has no number; its row is never right.
    batches = task_dataset(tmp_path / "dev", batch_size=2, training=False)
    labels = {}
    for x, y in batches.as_numpy_iterator():
        labels |= zip(x["row_index"].tolist(), y.tolist(), strict=True)
    assert labels == {0: 0, 1: -1, 2: 1}


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(("sequence_length", "count"), [(7, 1), (8, 1), (9, 0)])
def test_rows_without_room_for_more_are_full(sequence_length, count, tmp_path, vocabulary):
    """The example has 8 tokens: a row of as many may have been cut, for all that the row tells."""
    relations = write(tmp_path / "a.json", [EXAMPLE])
    manifest = prepare(relations, tmp_path / "out", vocabulary, sequence_length=sequence_length)
    assert manifest.counts["full_rows"] == count


@pytest.mark.parametrize("is_first", [False, True])
def test_neighbours_do_not_overlap(is_first):
    """Of words and of characters, whichever comes first."""
    places = ((0, 1), (1, 2)) if is_first else ((1, 2), (0, 1))
    tokens = {"token": ["ann", "rome"]}
    for role, (start, end) in zip(("subj", "obj"), places, strict=True):
        tokens |= {f"{role}_start": start, f"{role}_end": end - 1}
    characters = [[3 * start, 3 * end] for start, end in places]
    found = marked_text_of(tokens, "input")
    expected = [[0, 3], [4, 8]] if is_first else [[4, 8], [0, 3]]
    assert [found["subject"], found["object"]] == expected
    text = {"text": "annbob", "subject": characters[0], "object": characters[1]}
    assert marked_text_of(text, "input").items() >= text.items()
    first = min(characters)
    first[1] += 1
    with pytest.raises(BadInputError, match="subject and object overlap"):
        marked_text_of(text, "input")


def test_blank_words_shift_nothing(tmp_path):
    # As in FewRel.
    tokens = ["ann", " ", "", "the", "cats", "rome"]
    places = {"subj_start": 5, "subj_end": 5, "obj_start": 3, "obj_end": 4}
    (example,) = write(tmp_path / "a.json", [{**EXAMPLE, "token": tokens, **places}]).examples
    assert pack(example) == ["[CLS]", "ann", "[unused8]", "[unused7]", "[SEP]"]


def test_semeval_is_read(tmp_path):
    path = tmp_path / "TRAIN_FILE.TXT"
    path.write_bytes(SEMEVAL.encode())
    first, second = read_semeval2010(str(path)).examples
    assert first["text"] == "The cats sat in rome." and first["id"] == "1"
    for example, subject, entity in ((first, "cats", "rome"), (second, "b", "c")):
        text = example["text"]
        assert text[slice(*example["subject"])] == subject
        assert text[slice(*example["object"])] == entity
    assert [example["relation"] for example in (first, second)] == [
        "Entity-Destination(e1,e2)",
        "Other",
    ]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("<e2>rome</e2>", "rome", "line 1: the sentence has not"),
        ("<e1>cats</e1>", "<e1></e1>cats", "line 1: the sentence has not"),
        ("Other", "other", "line 6: 'other' is no number"),
        ("Comment: x", "Other", "line 3: 'Other' is no number"),
    ],
)
def test_bad_semeval_lines_are_named(old, new, message, tmp_path):
    path = tmp_path / "TRAIN_FILE.TXT"
    path.write_bytes(SEMEVAL.replace(old, new).encode())
    with pytest.raises(BadInputError, match=f"^{path}: {message}"):
        read_semeval2010(str(path))


def test_the_test_set_needs_a_training_set(tmp_path, vocabulary):
    lines = SEMEVAL.split("\r\n")
    test = tmp_path / "TEST_FILE.txt"
    test.write_text("\n".join(line for line in lines if line[:1].isdigit()))
    train = tmp_path / "TRAIN_FILE.TXT"
    train.write_bytes(SEMEVAL.encode())
    relations = read_semeval2010(str(test))
    with pytest.raises(BadInputError, match="no relations to learn; give the training set"):
        prepare(relations, tmp_path / "test", vocabulary)
    manifest = prepare(
        relations, tmp_path / "test", vocabulary, training=read_semeval2010(str(train))
    )
    assert manifest.labels == ["Other", "Entity-Destination(e1,e2)"]
    assert not manifest.is_labelled and (manifest.num_rows, manifest.counts["training_rows"]) == (
        2,
        0,
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"id": "1"}\n{"id": "2"}\n', "line 1: token: is missing"),
        ("", "is empty"),
        ("id,token\n1,a\n", "is neither JSON lines, a JSON array, Parquet nor Arrow"),
        ('[{"id": "1"', "entry 1: not JSON"),
    ],
)
def test_what_is_no_table_of_tacred_is_named(content, message, tmp_path):
    (tmp_path / "train.json").write_text(content)
    with pytest.raises(BadInputError, match=rf"train\.json: {message}"):
        read_tacred(str(tmp_path / "train.json"))


def test_tables_of_every_format_hold_the_same_examples(tmp_path):
    entries = [EXAMPLE, {**EXAMPLE, "id": "e2", "relation": "lives_in"}]
    expected = write(tmp_path / "table", entries).examples
    frame = pandas.DataFrame(entries)
    frame.to_json(tmp_path / "lines", orient="records", lines=True, compression="zstd")
    frame.to_parquet(tmp_path / "parquet")
    frame.to_feather(tmp_path / "feather")
    for name in ("lines", "parquet", "feather"):
        assert read_tacred(str(tmp_path / name)).examples == expected
