"""The pre-training data set: its order, its contract, its rows, its errors."""

import json
import re

import numpy as np
import pytest
import record_files
import tensorflow as tf

from spanbert_tf.data import pretraining_dataset
from spanbert_tf.data import stream as record_stream
from spanbert_tf.data.manifest import ANNOTATIONS, PretrainingManifest
from spanbert_tf.data.rows import pack_spans, parse_records
from spanbert_tf.errors import BadInputError, MismatchError, SpanBertError
from spanbert_tf.masking import MaskingOptions

CLS, SEP, PAD = 2, 3, 0
LENGTH = 37  # positions of a row; 7 slots


@pytest.fixture(scope="module")
def single_records():
    return record_files.random_records(45, LENGTH, annotations=("entities",))


@pytest.fixture(scope="module")
def single(tmp_path_factory, single_records):
    return record_files.write_records(
        tmp_path_factory.mktemp("single"),
        single_records[:38],
        single_records[38:],
        sequence_length=LENGTH,
        annotations=("entities",),
        num_shards=3,
    )


@pytest.fixture(scope="module")
def pair_records():
    return record_files.random_records(
        12, LENGTH, pair=True, annotations=("entities", "noun_phrases"), seed=2
    )


@pytest.fixture(scope="module")
def pair(tmp_path_factory, pair_records):
    return record_files.write_records(
        tmp_path_factory.mktemp("pair"),
        pair_records[:8],
        pair_records[8:],
        sequence_length=LENGTH,
        sequences="pair",
        annotations=("entities", "noun_phrases"),
    )


def original_rows(batch):
    """The packed rows before masking, restored from the batch."""
    rows = np.array(batch["token_ids"])
    for row, positions, ids, weights in zip(
        rows, batch["mask_positions"], batch["mask_ids"], batch["mask_weights"], strict=True
    ):
        used = np.array(weights) == 1
        row[np.array(positions)[used]] = np.array(ids)[used]
    return rows


def pack(record):
    tokens = record["token_ids"]
    if "second_segment_start" in record:
        split = record["second_segment_start"]
        row = [CLS, *tokens[:split], SEP, *tokens[split:], SEP]
        segments = [0] * (split + 2) + [1] * (len(tokens) - split + 1)
    else:
        row, segments = [CLS, *tokens, SEP], [0] * (len(tokens) + 2)
    padding = LENGTH - len(row)
    return row + [PAD] * padding, segments + [0] * padding, [1] * len(row) + [0] * padding


def read_stream(directory, seed, first_record, count):
    manifest = PretrainingManifest.load(directory)
    files = manifest.files(str(directory), "train")
    chunks = record_stream.training_chunks(files, manifest.num_records("train"), seed, first_record)
    stream = chunks.unbatch()
    return [
        (tf.train.Example.FromString(serialized.numpy()).features.feature["record_id"]
         .int64_list.value[0], int(epoch))
        for serialized, epoch in stream.take(count)
    ]  # fmt: skip


def test_every_epoch_is_another_permutation_of_all_records(single, single_records):
    stream = read_stream(single, 5, 0, 3 * 38)
    expected = {record["record_id"] for record in single_records[:38]}
    orders = []
    for epoch in range(3):
        part = stream[epoch * 38 : (epoch + 1) * 38]
        assert {number for number, _ in part} == expected
        assert {number for _, number in part} == {epoch}
        orders.append([number for number, _ in part])
    assert orders[0] != orders[1] != orders[2] != orders[0]
    assert [number for number, _ in read_stream(single, 6, 0, 38)] != orders[0]


def test_order_ignores_tensorflows_global_seed(single):
    tf.random.set_seed(1)
    first = read_stream(single, 5, 0, 38)
    tf.random.set_seed(2)
    assert read_stream(single, 5, 0, 38) == first


@pytest.mark.parametrize("first_record", [1, 37, 38, 50, 76])
def test_the_stream_resumes_anywhere(single, first_record):
    whole = read_stream(single, 5, 0, 120)
    assert read_stream(single, 5, first_record, 40) == whole[first_record : first_record + 40]


def test_windows_smaller_than_an_epoch_still_give_permutations(single, single_records, monkeypatch):
    monkeypatch.setattr(record_stream, "SHUFFLE_CHUNK", 7)
    expected = sorted(record["record_id"] for record in single_records[:38])
    whole = read_stream(single, 5, 0, 120)
    assert sorted(number for number, _ in whole[:38]) == expected
    for first_record in (6, 7, 21, 37, 38, 60):
        resumed = read_stream(single, 5, first_record, 20)
        assert resumed == whole[first_record : first_record + 20]


def test_files_have_another_order_in_each_epoch(single, monkeypatch):
    """Where a window is one record and a file is read to its end before the next."""
    monkeypatch.setattr(record_stream, "SHUFFLE_CHUNK", 1)
    monkeypatch.setattr(record_stream, "_FILES_AT_ONCE", 1)
    stream = [number for number, _ in read_stream(single, 5, 0, 4 * 38)]
    orders = {tuple(stream[first : first + 38]) for first in range(0, 4 * 38, 38)}
    assert len(orders) > 1


def test_every_window_has_a_permutation_of_its_own():
    orders = {
        tuple(
            record_stream._permute([tf.range(20)], 5, tf.constant(0, tf.int64), window)[0].numpy()
        )
        for window in tf.range(4, dtype=tf.int64)
    }
    assert len(orders) == 4


def test_batches_resume_and_go_on_across_epochs(single):
    whole = list(pretraining_dataset(single, batch_size=5, seed=3).take(17).as_numpy_iterator())
    resumed = pretraining_dataset(single, batch_size=5, seed=3, first_batch=9)
    for batch, expected in zip(resumed.take(8).as_numpy_iterator(), whole[9:], strict=True):
        for name, values in expected.items():
            np.testing.assert_array_equal(batch[name], values, err_msg=name)


def test_rows_keep_their_masks_at_another_batch_size(single):
    small = pretraining_dataset(single, batch_size=4, seed=3).take(9)
    large = pretraining_dataset(single, batch_size=12, seed=3).take(3)
    batches, others = (list(data.as_numpy_iterator()) for data in (small, large))
    for name in small.element_spec:
        rows, expected = (
            np.concatenate([batch[name] for batch in part]) for part in (batches, others)
        )
        np.testing.assert_array_equal(rows, expected, err_msg=name)


def test_the_same_record_is_masked_anew_in_the_next_epoch(single):
    batches = list(pretraining_dataset(single, batch_size=38).take(2).as_numpy_iterator())
    masks = []
    for batch in batches:
        order = np.lexsort(original_rows(batch).T)
        masks.append(batch["mask_positions"][order])
    assert (masks[0] != masks[1]).any(axis=1).mean() > 0.8


@pytest.mark.parametrize("kind", ["single", "pair"])
def test_rows_are_packed_as_bert_packs_them(kind, request):
    directory = request.getfixturevalue(kind)
    held_out = request.getfixturevalue(f"{kind}_records")[38 if kind == "single" else 8 :]
    data = pretraining_dataset(directory, batch_size=len(held_out), split="validation")
    (batch,) = data.as_numpy_iterator()
    expected = [pack(record) for record in held_out]
    assert original_rows(batch).tolist() == [row for row, _, _ in expected]
    assert batch["segment_ids"].tolist() == [segments for _, segments, _ in expected]
    assert batch["padding_mask"].tolist() == [mask for _, _, mask in expected]
    if kind == "pair":
        labels = [record["next_sentence_label"] for record in held_out]
        assert batch["next_sentence_labels"].tolist() == labels


@pytest.mark.parametrize(
    "kind, scheme",
    [
        ("single", "subwords"),
        ("pair", "whole_words"),
        ("single", "geometric_spans"),
        ("pair", "geometric_spans"),
        ("single", "entities"),
        ("pair", "entities"),
        ("pair", "noun_phrases"),
    ],
)
@pytest.mark.quick_cases(4)
def test_batches_keep_the_contract(kind, scheme, request):
    data = pretraining_dataset(request.getfixturevalue(kind), batch_size=6, masking=scheme)
    slots = 6 if kind == "single" else 7  # ceil(0.15 · 35); ceil(0.15 · 34) + 1
    rows, targets = ((6, LENGTH), tf.int32), ((6, slots), tf.int32)
    contract = {"token_ids": rows, "segment_ids": rows, "padding_mask": rows}
    contract |= {"mask_positions": targets, "mask_ids": targets, "span_offsets": targets}
    contract |= {"span_left_positions": targets, "span_right_positions": targets}
    contract |= dict.fromkeys(("mask_weights", "span_weights"), ((6, slots), tf.float32))
    if kind == "pair":
        contract["next_sentence_labels"] = ((6,), tf.int32)
    found = {name: (tuple(spec.shape), spec.dtype) for name, spec in data.element_spec.items()}
    assert found == contract
    for batch in data.take(3).as_numpy_iterator():
        rows = original_rows(batch)
        masked = np.take_along_axis(rows, batch["mask_positions"], axis=1)
        assert not np.isin(masked[batch["mask_weights"] == 1], [PAD, CLS, SEP]).any()
        for side in ("span_left_positions", "span_right_positions"):
            boundary = np.take_along_axis(rows, batch[side], axis=1)
            assert not np.isin(boundary[batch["span_weights"] == 1], [PAD, CLS, SEP]).any()
        for positions, weights, row in zip(
            batch["mask_positions"], batch["mask_weights"], rows, strict=True
        ):
            ends = np.flatnonzero(row == SEP)
            starts = [1, ends[0] + 1] if kind == "pair" else [1]
            for start, end in zip(starts, ends, strict=False):
                used = positions[weights == 1]
                inside = ((used >= start) & (used < end)).sum()
                assert inside == -(-15 * (end - start) // 100)


def test_segment_aware_indices_count_as_the_paper_says(single, single_records):
    held_out = single_records[38:]
    data = pretraining_dataset(
        single, batch_size=len(held_out), split="validation", segment_aware=True
    )
    (batch,) = data.as_numpy_iterator()
    for number, record in enumerate(held_out):
        length = len(record["token_ids"])
        paragraphs, sentences, tokens = [], [], []
        sentence, token = -1, record["first_token_index"] - 1
        for position in range(length):
            token += 1
            if position in record["sentence_starts"]:
                sentence += 1
                token = record["first_token_index"] if position == 0 else 0
            paragraphs.append(record["paragraph_indices"][0])
            sentences.append(record["sentence_indices"][sentence])
            tokens.append(token)
        for name, expected, start, end in (
            ("paragraph_indices", paragraphs, paragraphs[0], paragraphs[-1]),
            ("sentence_indices", sentences, sentences[0], sentences[-1]),
            ("token_indices", tokens, 0, tokens[-1] + 1),
        ):
            row = batch[name][number][: length + 2].tolist()
            assert row == [start, *expected, end], f"{name} of record {number}"


def test_evaluation_reads_every_record_once_with_the_same_masks(single, single_records):
    data = pretraining_dataset(single, batch_size=4, split="validation")
    batches = list(data.as_numpy_iterator())
    assert len(batches) == 2
    rows = np.concatenate([original_rows(batch) for batch in batches])
    assert rows[:7].tolist() == [pack(record)[0] for record in single_records[38:]]
    assert batches[1]["mask_weights"][3].sum() == batches[1]["span_weights"][3].sum() == 0
    for batch, again in zip(batches, data.as_numpy_iterator(), strict=True):
        np.testing.assert_array_equal(batch["token_ids"], again["token_ids"])


@pytest.mark.parametrize("kind", ["single", "pair"])
def test_words_are_those_of_the_records(kind, request, tmp_path):
    """Word for word, in each segment of a pair, and none in rows that fill up a batch."""
    records = []
    for n, record in enumerate(request.getfixturevalue(f"{kind}_records")):
        begins = {0, record.get("second_segment_start", 0)}
        begins |= {*range(3 + n % 3, len(record["token_ids"]), 1 + n)}
        records.append({**record, "word_starts": sorted(begins)})
    annotations = ("entities", "noun_phrases")[: 1 + (kind == "pair")]
    directory = record_files.write_records(
        tmp_path,
        records[:6],
        records[6:],
        sequence_length=LENGTH,
        sequences=kind,
        annotations=annotations,
        word_segmentation="icu",
    )
    size = 1 + len(records[6:])
    data = pretraining_dataset(directory, batch_size=size, split="validation", with_words=True)
    (batch,) = data.as_numpy_iterator()
    for record, found in zip(records[6:], batch["starts_word"].tolist(), strict=False):
        length = len(record["token_ids"])
        split = record.get("second_segment_start", length)
        first = [n in record["word_starts"] for n in range(split)]
        second = [n in record["word_starts"] for n in range(split, length)]
        expected = [True, *first, True, *second]
        assert found == expected + [True] * (LENGTH - len(expected))
    assert batch["starts_word"][-1].all()
    for weights, positions, row in zip(
        batch["mask_weights"], batch["mask_positions"], batch["starts_word"], strict=True
    ):
        masked = positions[weights == 1]
        begins = [p for p in masked if p - 1 not in masked]
        assert row[begins].all()  # each span begins with a word


def test_a_scheme_that_takes_words_needs_records_with_them(single):
    manifest = PretrainingManifest.load(single)
    with pytest.raises(MismatchError, match=r"needs records with words; .*--word-segmentation icu"):
        manifest.span_features("words", "a_scheme", str(single))


def test_rate_decides_the_number_of_slots(single):
    data = pretraining_dataset(single, batch_size=2, masking=MaskingOptions(rate=0.4))
    assert data.element_spec["mask_positions"].shape == (2, 14)


def copy_records(single_records, tmp_path, **options):
    return record_files.write_records(
        tmp_path / "records", single_records[:6], sequence_length=LENGTH, **options
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size: 0 is less than 1"),
        ({"batch_size": 2.5}, "batch_size: must be a whole number, not 2.5"),
        ({"batch_size": "4"}, "batch_size: must be a whole number, not '4'"),
        ({"seed": 1.5}, "seed: must be a whole number, not 1.5"),
        ({"seed": None}, "seed: must be a whole number, not None"),
        ({"first_batch": -1}, "first_batch: -1 is less than 0"),
        ({"first_batch": 1, "split": "validation"}, "first_batch: 1 of the validation split"),
        ({"masking": None}, "masking must be a scheme's name, a dict or MaskingOptions, not None"),
        ({"masking": {"rate": 2.0}}, "masking.rate: 2.0 must be less than 1"),
    ],
)
def test_an_argument_that_cannot_be_used_is_named(options, message, single):
    with pytest.raises(SpanBertError, match=f"^{re.escape(message)}"):
        pretraining_dataset(single, **{"batch_size": 2, **options})


def test_numbers_of_numpy_and_masking_as_a_dict_are_taken(single):
    plain = {"masking": MaskingOptions(rate=0.3), "batch_size": 3, "seed": 2}
    other = {"masking": {"rate": 0.3}, "batch_size": np.int64(3), "seed": np.int32(2)}
    first, second = (
        next(iter(pretraining_dataset(single, **options))) for options in (plain, other)
    )
    tf.nest.map_structure(np.testing.assert_array_equal, first, second)


def test_missing_description_is_named(tmp_path):
    with pytest.raises(BadInputError, match=r"is an empty directory, not pre-training records"):
        pretraining_dataset(tmp_path, batch_size=2)


def test_damaged_description_is_named(tmp_path):
    (tmp_path / "dataset_info.json").write_text('{"schema_version": 1, "shards": 3}')
    with pytest.raises(BadInputError, match=r"dataset_info.json: vocabulary_hash: is missing"):
        pretraining_dataset(tmp_path, batch_size=2)


def test_another_schema_version_is_refused(single_records, tmp_path):
    path = copy_records(single_records, tmp_path) / "dataset_info.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema_version": 0}))
    with pytest.raises(BadInputError, match="schema_version is not 1"):
        pretraining_dataset(path.parent, batch_size=2)


def test_missing_shard_is_named(single_records, tmp_path):
    directory = copy_records(single_records, tmp_path)
    (directory / "train-00001-of-00002.tfrecord").unlink()
    with pytest.raises(BadInputError, match=r"train-00001-of-00002\.tfrecord: .*missing"):
        pretraining_dataset(directory, batch_size=2)


def test_records_of_another_vocabulary_are_refused(single_records, tmp_path):
    directory = copy_records(single_records, tmp_path)
    with open(directory / "vocab.txt", "a") as file:
        file.write("another\n")
    with pytest.raises(MismatchError, match=r"vocab.txt: .*vocabulary_hash"):
        pretraining_dataset(directory, batch_size=2)


def test_empty_split_is_refused(single_records, tmp_path):
    with pytest.raises(BadInputError, match="validation split has no records"):
        pretraining_dataset(
            copy_records(single_records, tmp_path), batch_size=2, split="validation"
        )


def test_schemes_and_positions_that_the_records_lack_are_refused(single, pair):
    with pytest.raises(MismatchError, match="--annotate noun_phrases"):
        pretraining_dataset(single, batch_size=2, masking="noun_phrases")
    with pytest.raises(MismatchError, match="--sequences single"):
        pretraining_dataset(pair, batch_size=2, segment_aware=True)


def test_annotated_spans_lie_beside_the_special_tokens_of_a_pair(tmp_path):
    """Spans at the ends of both segments: of 9 tokens, those from the fifth are the second's."""
    record = record_files.random_records(1, LENGTH, pair=True, annotations=("entities",))[0]
    record |= {"token_ids": [*range(5, 14)], "second_segment_start": 4}
    record |= {"entity_starts": [0, 3, 4, 7], "entity_ends": [1, 3, 6, 8]}
    directory = record_files.write_records(
        tmp_path, [record], sequence_length=LENGTH, sequences="pair", annotations=("entities",)
    )
    manifest = PretrainingManifest.load(directory)
    lists = ANNOTATIONS["entities"]
    parsed = parse_records(tf.constant([record_files.to_example(record)]), manifest, lists)
    spans = pack_spans(parsed, "entities")
    # [CLS] 1 2 3 4 [SEP] 6 7 8 9 10 [SEP]
    assert spans.starts.numpy().tolist() == [[1, 4, 6, 9]]
    assert spans.ends.numpy().tolist() == [[2, 4, 8, 10]]
    assert (spans.first.numpy().ravel().tolist(), spans.counts.numpy().ravel().tolist()) == (
        [0, 2],
        [2, 2],
    )


@pytest.mark.parametrize("damage", ["truncated", "flipped"])
def test_damaged_shard_is_found_with_its_record(single_records, tmp_path, damage):
    directory = copy_records(single_records, tmp_path)
    manifest = PretrainingManifest.load(directory)
    files = manifest.files(str(directory), "train")
    shard = directory / "train-00000-of-00002.tfrecord"
    content = bytearray(shard.read_bytes())
    if damage == "truncated":
        content = content[:-7]
    else:
        content[len(content) - 20] ^= 4
    shard.write_bytes(content)
    with pytest.raises(tf.errors.DataLossError):
        list(tf.data.TFRecordDataset(files))
    assert "train-00000-of-00002.tfrecord: record 2 (from 0)" in str(
        manifest.damage(str(directory))
    )


def record_bounds(content):
    """Where each record of a TFRecord file ends, with 0 first, by its format."""
    bounds = [0]
    while bounds[-1] < len(content):
        length = int.from_bytes(content[bounds[-1] :][:8], "little")
        bounds.append(bounds[-1] + 8 + 4 + length + 4)
    return bounds


@pytest.mark.parametrize("cut", ["to nothing", "in the header", "between records", "in the end"])
def test_a_shard_that_was_cut_is_refused_before_the_first_step(single_records, tmp_path, cut):
    directory = copy_records(single_records, tmp_path)
    shard = directory / "train-00000-of-00002.tfrecord"
    content = shard.read_bytes()
    ends = {"to nothing": 0, "in the header": 9, "in the end": len(content) - 2}
    end = ends.get(cut, record_bounds(content)[2])
    assert PretrainingManifest.load(directory).num_records("train") == 6
    shard.write_bytes(content[:end])
    message = f"00000-of-00002.tfrecord: has {end} bytes, and .* states {len(content)};"
    with pytest.raises(BadInputError, match=message):
        pretraining_dataset(directory, batch_size=2)


@pytest.mark.parametrize("kept", [0, 2])
def test_an_epoch_that_lacks_records_ends_the_stream(single_records, tmp_path, kept):
    """Files can be cut while they are read; without a record the stream would never end."""
    directory = copy_records(single_records, tmp_path, num_shards=1)
    manifest = PretrainingManifest.load(directory)
    files = manifest.files(str(directory), "train")
    stream = pretraining_dataset(directory, batch_size=2).as_numpy_iterator()
    with open(files[0], "r+b") as file:
        file.truncate(record_bounds(file.read())[kept])
    with pytest.raises(tf.errors.FailedPreconditionError, match="expected to contain 6"):
        for _ in range(4):
            next(stream)
    damage = manifest.damage(str(directory))
    assert f"tfrecord: has {kept} records, and dataset_info.json states 6" in str(damage)


def test_no_damage_is_found_in_whole_files(single):
    assert PretrainingManifest.load(single).damage(str(single)) is None


@pytest.mark.parametrize("key", ["num_bytes", "strip_accents", "unigram_counts_hash"])
def test_a_description_that_lacks_a_key_is_refused_by_its_name(single_records, tmp_path, key):
    path = copy_records(single_records, tmp_path) / "dataset_info.json"
    values = json.loads(path.read_text())
    del (values["shards"][0] if key == "num_bytes" else values)[key]
    path.write_text(json.dumps(values))
    with pytest.raises(BadInputError, match=rf"{key}: is missing; write the records again with"):
        PretrainingManifest.load(path.parent)


def test_the_description_is_for_people(single):
    lines = (single / "dataset_info.json").read_text().splitlines()
    assert max(map(len, lines)) < 250
    assert sum("tfrecord" in line for line in lines) == 4  # a line a shard


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: path.unlink(), "cannot be read"),
        (lambda path: path.write_text(path.read_text().replace("0", "1")), "unigram_counts_hash"),
    ],
)
def test_other_unigram_counts_are_refused(change, message, single_records, tmp_path):
    directory = copy_records(single_records, tmp_path)
    change(directory / "unigram_counts.json")
    with pytest.raises(BadInputError, match=rf"unigram_counts\.json: .*{message}"):
        pretraining_dataset(directory, batch_size=2)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("sequence_length", {}, "sequence_length: should be a valid integer"),
        ("sequence_length", 3, "sequence_length: should be greater than or equal to 8"),
        ("sequences", "triple", "sequences: should be 'single' or 'pair'"),
        ("vocabulary_size", 61, "vocab.txt: has 60 entries, .* states 61"),
        ("shards", [3], r"shards\[0\]: "),
        ("counts", {"files": "many"}, "counts.files: should be a valid integer"),
        ("lowercase", 1, "lowercase: should be a valid boolean"),
        ("strip_accents", True, "strip_accents: is true, and text is cased"),
        ("surprise", 1, "surprise: unexpected keyword argument"),
    ],
)
def test_a_description_of_another_shape_is_one_line(key, value, message, single_records, tmp_path):
    path = copy_records(single_records, tmp_path) / "dataset_info.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises((BadInputError, MismatchError), match=message) as caught:
        pretraining_dataset(path.parent, batch_size=2)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "..", "../train-00000-of-00002.tfrecord", "a/b"])
def test_shards_lie_in_the_directory(name, single_records, tmp_path):
    path = copy_records(single_records, tmp_path) / "dataset_info.json"
    values = json.loads(path.read_text())
    values["shards"][1]["file"] = name
    path.write_text(json.dumps(values))
    with pytest.raises(BadInputError, match=r"shards\[1\]\.file: is no file's name"):
        PretrainingManifest.load(path.parent)
