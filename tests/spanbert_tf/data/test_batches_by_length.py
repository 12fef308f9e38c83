"""Pre-training batches of records of similar length: their order, their masks, what they need."""

import shutil

import numpy as np
import pytest
import record_files
import tensorflow as tf
from bucket_oracle import planned

from spanbert_tf.data import pretraining_dataset
from spanbert_tf.data import stream as record_stream
from spanbert_tf.data.manifest import PretrainingManifest
from spanbert_tf.data.pretraining import LengthPlan
from spanbert_tf.data.tfrecords import save_lengths
from spanbert_tf.errors import BadInputError

LENGTH, BATCH_SIZE, SEED, NUM_ROWS = 24, 4, 3, 50


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Rows of two widths, since the graphs of each take a second."""
    written = record_files.random_records(90, LENGTH, annotations=("entities",))
    written = [one for one in written if len(one["token_ids"]) > 8]
    return record_files.write_records(
        tmp_path_factory.mktemp("records"),
        written[:NUM_ROWS],
        written[NUM_ROWS:],
        sequence_length=LENGTH,
        annotations=("entities",),
        num_shards=3,
    )


def plan_of(directory):
    return LengthPlan.of(str(directory), PretrainingManifest.load(directory), BATCH_SIZE)


def id_and_length(serialized):
    features = tf.train.Example.FromString(serialized).features.feature
    tokens = features["token_ids"].bytes_list.value[0]
    return features["record_id"].int64_list.value[0], len(tokens) // 2


def read_plan(directory, first_batch, count):
    """Batches as (number of the bucket, ids of records, epochs); 0 is the id of an empty one."""
    batches = plan_of(directory).batches(SEED, first_batch).take(count).as_numpy_iterator()
    return [
        (int(bucket), [id_and_length(one)[0] for one in serialized], epochs.tolist())
        for bucket, serialized, epochs in batches
    ]


def test_batches_are_those_of_the_stream_in_buckets(records, monkeypatch):
    """Where a chunk is smaller than what waits in the buckets, too."""
    monkeypatch.setattr(record_stream, "SHUFFLE_CHUNK", 7)
    manifest = PretrainingManifest.load(records)
    plan = plan_of(records)
    assert plan.buckets.widths.tolist() == [14, 22]  # and two special tokens
    files = manifest.files(str(records), "train")
    chunks = record_stream.training_chunks(files, NUM_ROWS, SEED, 0).unbatch()
    rows = [
        id_and_length(serialized) for serialized, _ in chunks.take(2 * NUM_ROWS).as_numpy_iterator()
    ]
    expected = []
    for epoch, part in enumerate([rows[:NUM_ROWS], rows[NUM_ROWS:]]):
        for bucket, places in planned(plan.buckets, [length for _, length in part]):
            size = int(plan.buckets.sizes[bucket])
            ids = [part[place][0] for place in places]
            expected.append((bucket, ids + [0] * (size - len(ids)), [epoch] * size))
    assert len(expected) == 2 * plan.num_batches
    assert read_plan(records, 0, len(expected)) == expected


def test_the_batches_resume_at_every_step(records, monkeypatch):
    monkeypatch.setattr(record_stream, "SHUFFLE_CHUNK", 16)
    count = plan_of(records).num_batches + 2
    whole = read_plan(records, 0, count + 2)
    for first_batch in range(1, count):
        assert read_plan(records, first_batch, 2) == whole[first_batch : first_batch + 2]


def original(batch, row):
    """The tokens of a row before masking."""
    tokens = np.array(batch["token_ids"][row])
    used = batch["mask_weights"][row] > 0
    tokens[batch["mask_positions"][row][used]] = batch["mask_ids"][row][used]
    return tuple(tokens[batch["padding_mask"][row] > 0].tolist())


def rows_of(batches):
    """Tokens before masking → features without padding."""
    rows = {}
    for batch in batches:
        for row in range(len(batch["token_ids"])):
            num_tokens = batch["padding_mask"][row].sum()
            num_slots = int(batch["mask_weights"][row].sum())
            found = {}
            for name, values in batch.items():
                is_slot = values.shape[1] != batch["token_ids"].shape[1]
                kept, padding = np.split(values[row], [num_slots if is_slot else num_tokens])
                if name not in ("paragraph_indices", "sentence_indices", "token_indices"):
                    assert not padding.any(), name
                found[name] = kept.tolist()
            if num_tokens > 2:
                assert rows.setdefault(original(batch, row), found) is found
    return rows


@pytest.mark.parametrize(
    "masking",
    [
        "geometric_spans",
        pytest.param("entities", marks=pytest.mark.slow),
        pytest.param("subwords", marks=pytest.mark.slow),
    ],
)
def test_masks_do_not_depend_on_the_width(masking, records):
    options = {"batch_size": BATCH_SIZE, "masking": masking, "seed": SEED, "segment_aware": True}
    by_length = pretraining_dataset(records, **options, batch_by_length=True)
    plan = plan_of(records)
    batches = list(by_length.take(plan.num_batches).as_numpy_iterator())
    shapes = set(zip(plan.buckets.sizes.tolist(), (plan.buckets.widths + 2).tolist(), strict=True))
    assert {batch["token_ids"].shape for batch in batches} == shapes
    padded = pretraining_dataset(records, **options).unbatch().take(NUM_ROWS).batch(NUM_ROWS)
    assert rows_of(batches) == rows_of(padded.as_numpy_iterator())


def test_rates_that_change_are_those_of_the_step(records):
    options = {"masking": {"rate": [0.5, 0.1]}, "schedule_steps": 5, "batch_by_length": True}
    dataset = pretraining_dataset(records, batch_size=BATCH_SIZE, first_batch=1, **options)
    batches = list(dataset.take(4).as_numpy_iterator())
    assert {batch["token_ids"].shape for batch in batches} == {(6, 16), (4, 24)}
    for batch, percent in zip(batches, (40, 30, 20, 10), strict=True):
        lengths = batch["padding_mask"].sum(axis=1) - 2
        expected = [-(-int(length) * percent // 100) for length in lengths]
        assert batch["mask_weights"].sum(axis=1).tolist() == expected


def test_full_rows_are_batched_as_without(tmp_path):
    full = [one for one in record_files.random_records(60, 24) if len(one["token_ids"]) > 14]
    data = record_files.write_records(tmp_path / "full", full, sequence_length=24)
    options = {"batch_size": 4, "seed": SEED, "first_batch": 2}
    for batch, other in zip(
        pretraining_dataset(data, **options, batch_by_length=True).take(5).as_numpy_iterator(),
        pretraining_dataset(data, **options).take(5).as_numpy_iterator(),
        strict=True,
    ):
        for name, values in other.items():
            np.testing.assert_array_equal(batch[name], values)


def test_lengths_that_are_missing_or_wrong_are_refused(records, tmp_path):
    data = tmp_path / "copy"
    shutil.copytree(records, data)
    path = data / "train-00001-of-00003.lengths.npy"
    lengths = np.load(path)

    def refusal():
        with pytest.raises(BadInputError) as raised:
            pretraining_dataset(data, batch_size=4, batch_by_length=True)
        assert "\n" not in str(raised.value)
        return str(raised.value)

    for wrong in (lengths[1:], lengths + 1, [0, lengths[0] + lengths[1], *lengths[2:]]):
        save_lengths(str(path), wrong)
        assert refusal().startswith(f"{path}: are not the lengths of the 17 records of ")
    path.write_bytes(b"")
    assert refusal().startswith(f"{path}: cannot be read")
    assert "prepare repair" in refusal()
    path.unlink()
    assert refusal().startswith(f"{path}: is missing, the lengths of the records; ")
    pretraining_dataset(data, batch_size=4)


def test_a_wrong_length_is_named(records, tmp_path):
    data = tmp_path / "copy"
    shutil.copytree(records, data)
    path = data / "train-00000-of-00003.lengths.npy"
    lengths = np.load(path)
    lengths[[2, 3]] += [1, -1]
    save_lengths(str(path), lengths)
    message = str(PretrainingManifest.load(data).damage(str(data)))
    assert message.startswith(f"{data / 'train-00000-of-00003.tfrecord'}: record 2 (from 0) is")
    assert f"not the {lengths[2]:,} that were counted" in message
