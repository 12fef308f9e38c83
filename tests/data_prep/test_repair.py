"""Damaged records are left out, whole ones all stay; damage is put in byte by byte."""

import dataclasses
import json
import pathlib
import shutil

import pytest
import tensorflow as tf

from benchmarks.damaged_records import change_record
from data_prep.repair import repair_records
from spanbert_tf.data.manifest import TOKEN_IDS, PretrainingManifest
from spanbert_tf.data.tfrecords import save_lengths
from spanbert_tf.errors import BadInputError

NUM_RECORDS = 40


@pytest.fixture
def directory(tiny_records, tmp_path):
    return pathlib.Path(shutil.copytree(tiny_records, tmp_path / "records"))


def _records(path):
    return list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator())


def _record_starts(path):
    starts, position = [], 0
    for record in _records(path):
        starts.append(position)
        position += 12 + len(record) + 4
    return starts


def _flip(path, position):
    content = bytearray(path.read_bytes())
    content[position] ^= 4
    path.write_bytes(content)


def test_whole_records_stay_as_they_are(directory, tmp_path):
    manifest = PretrainingManifest.load(directory)
    repaired = repair_records(str(directory), str(tmp_path / "new"))
    assert repaired == dataclasses.replace(manifest, repaired_from=manifest.digest)
    for path in directory.iterdir():
        if path.name != "dataset_info.json":
            assert (tmp_path / "new" / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("damage", ["missing", "wrong", "no lengths"])
def test_lengths_are_written_anew(damage, directory, tmp_path):
    """Records of earlier versions have none."""
    manifest = PretrainingManifest.load(directory)
    expected = manifest.num_rows(directory, "train")
    path = directory / "train-00000-of-00002.lengths.npy"
    path.unlink()
    if damage == "wrong":
        save_lengths(str(path), [1, 2, 3])
    elif damage == "no lengths":
        path.write_bytes(b"")
    repaired = repair_records(str(directory), str(tmp_path / "new"))
    assert repaired == dataclasses.replace(manifest, repaired_from=manifest.digest)
    assert repaired.num_rows(tmp_path / "new", "train").tolist() == expected.tolist()


@pytest.mark.parametrize(
    "place, num_lost",
    [
        ("bytes", 1),
        ("checksum of the bytes", 1),
        ("length", "rest"),
        ("checksum of the length", "rest"),
        ("end", 1),
    ],
)
def test_what_is_damaged_is_left_out_and_counted(directory, tmp_path, place, num_lost, capsys):
    manifest = PretrainingManifest.load(directory)
    path = directory / manifest.shards[0].file
    records, starts = _records(path), _record_starts(path)
    number = len(records) - 1 if place == "end" else 5
    start, length = starts[number], len(records[number])
    if place == "end":
        path.write_bytes(path.read_bytes()[:-7])
    else:
        offsets = {
            "bytes": 12 + length // 2,
            "checksum of the bytes": 12 + length + 1,
            "length": 0,
            "checksum of the length": 9,
        }
        _flip(path, start + offsets[place])
    lost = len(records) - number if num_lost == "rest" else num_lost
    new = tmp_path / "new"
    repaired = repair_records(str(directory), str(new))
    kept = records[:number] + ([] if num_lost == "rest" else records[number + 1 :])
    assert _records(new / manifest.shards[0].file) == kept
    written = manifest.num_records("train") + manifest.num_records("validation")
    assert capsys.readouterr().out.splitlines() == [
        f"{path}: {lost} damaged records are left out, {len(kept)} are whole",
        f"{new}: {written - lost} records are whole, {lost} of {directory} are left out",
    ]
    assert repaired.num_records("train") == NUM_RECORDS - lost
    assert PretrainingManifest.load(new) == repaired
    assert (
        repaired.digest
        == manifest.digest
        != dataclasses.replace(repaired, repaired_from=None).digest
    )
    again = repair_records(str(new), str(tmp_path / "again"))
    assert again.digest == manifest.digest
    for shard in manifest.shards[1:]:
        assert _records(new / shard.file) == _records(directory / shard.file)


@pytest.mark.parametrize("limit", [0, 500])
def test_full_disk_leaves_nothing(directory, tmp_path, limit, full_disk):
    """But what lay there."""
    _flip(directory / PretrainingManifest.load(directory).shards[1].file, 20)
    (tmp_path / "run").mkdir()
    output = tmp_path / "run" / "new"
    message = f"{output}: cannot be written .*free some space"
    with full_disk(limit), pytest.raises(BadInputError, match=message) as raised:
        repair_records(str(directory), str(output))
    assert "\n" not in str(raised.value)
    assert not list((tmp_path / "run").iterdir())
    repair_records(str(directory), str(output))
    with full_disk(limit), pytest.raises(BadInputError, match=message):
        repair_records(str(directory), str(output), overwrite=True)
    assert [path.name for path in output.parent.iterdir()] == ["new"]
    assert PretrainingManifest.load(output).num_records("train") < NUM_RECORDS


def test_shards_that_are_links_become_files(directory, tmp_path):
    """Relative links, as git-annex makes them, would lead nowhere from another folder."""
    manifest, store = PretrainingManifest.load(directory), tmp_path / "store"
    store.mkdir()
    for shard in manifest.shards:
        (directory / shard.file).rename(store / shard.file)
        (directory / shard.file).symlink_to(f"../store/{shard.file}")
    (tmp_path / "deep").mkdir()
    new = tmp_path / "deep" / "new"
    assert repair_records(str(directory), str(new)).shards == manifest.shards
    for shard in manifest.shards:
        assert not (new / shard.file).is_symlink()
        assert (new / shard.file).read_bytes() == (store / shard.file).read_bytes()


def test_a_split_without_whole_records_is_refused(directory, tmp_path):
    manifest = PretrainingManifest.load(directory)
    for shard in manifest.shards:
        if shard.split == "validation":
            _flip(directory / shard.file, 0)
    with pytest.raises(BadInputError, match="no whole record is left in the validation split"):
        repair_records(str(directory), str(tmp_path / "new"))


def test_records_that_never_had_a_validation_split_are_repaired(directory, tmp_path):
    """As `--validation-fraction 0` writes them."""
    path = directory / "dataset_info.json"
    manifest = json.loads(path.read_text())
    manifest["shards"] = [shard for shard in manifest["shards"] if shard["split"] == "train"]
    path.write_text(json.dumps(manifest))
    repaired = repair_records(str(directory), str(tmp_path / "new"))
    assert (repaired.num_records("train"), repaired.num_records("validation")) == (NUM_RECORDS, 0)


@pytest.mark.parametrize("damage", ["no Example", "longer", "beyond the vocabulary"])
def test_what_is_damaged_inside_right_checksums_is_left_out(directory, tmp_path, damage):
    def change(record):
        example = tf.train.Example.FromString(record)
        values = example.features.feature[TOKEN_IDS].bytes_list.value
        values[0] = values[0][:-2] + b"\xff\xff" if damage != "longer" else values[0] * 99
        return b"\xff" if damage == "no Example" else example.SerializeToString()

    path = change_record(directory, change, number=3)
    expected = _records(path)
    del expected[3]
    manifest = PretrainingManifest.load(directory)
    assert f"{path}: record 3 (from 0) is damaged (" in str(manifest.damage(str(directory)))
    repaired = repair_records(str(directory), str(tmp_path / "new"))
    assert _records(tmp_path / "new" / path.name) == expected
    assert repaired.damage(str(tmp_path / "new")) is None


def test_records_are_not_repaired_onto_themselves(directory):
    with pytest.raises(BadInputError, match="is what is to be repaired; name another output"):
        repair_records(str(directory), str(directory), overwrite=True)
