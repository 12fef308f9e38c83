"""Records that are damaged before a run or in the middle of it."""

import pathlib
import shutil

import pytest
import tensorflow as tf

from benchmarks.damaged_records import change_record
from data_prep.repair import repair_records
from spanbert_tf.config import load_config
from spanbert_tf.errors import BadInputError, MismatchError
from spanbert_tf.pretraining.job import run_pretraining

SHARD = "train-00001-of-00002.tfrecord"


@pytest.fixture
def records(tiny_records, tmp_path):
    return pathlib.Path(shutil.copytree(tiny_records, tmp_path / "records"))


@pytest.fixture
def train(tiny_overrides, records, tmp_path):
    """Trains up to a step; a second time it goes on."""

    def run(num_steps, data=str(records)):
        overrides = [*tiny_overrides, f"training.steps={num_steps}"]
        run_pretraining(load_config("spanbert_base", overrides), data, f"{tmp_path}/run")

    return run


def _damage(shard):
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)


def test_damaged_shard_is_named(train, records):
    _damage(records / SHARD)
    with pytest.raises(BadInputError, match=rf"{SHARD}: record \d+ .*damaged"):
        train(12)


def _with_long_row(record):
    example = tf.train.Example.FromString(record)
    values = example.features.feature["token_ids"].bytes_list.value
    values[0] = values[0] * 99
    return example.SerializeToString()


def _beyond_the_vocabulary(record):
    example = tf.train.Example.FromString(record)
    values = example.features.feature["token_ids"].bytes_list.value
    values[0] = values[0][:-2] + b"\xff\xff"
    return example.SerializeToString()


@pytest.mark.slow
@pytest.mark.parametrize(
    "change", [_with_long_row, _beyond_the_vocabulary, lambda record: b"\xff\xfe"]
)
def test_a_record_that_is_damaged_inside_right_checksums_is_named(change, train, records):
    path = change_record(records, change)
    with pytest.raises(BadInputError) as error:
        train(12)
    assert str(error.value).startswith(f"{path}: record 1 (from 0) is damaged (")
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_damage_that_comes_later_does_not_end_a_run(train, records, tmp_path, capfd):
    """It goes on with what is left of the records, and with no others."""
    train(3)
    _damage(records / SHARD)
    with pytest.raises(BadInputError, match="damaged"):
        train(20)
    repaired = str(tmp_path / "repaired")
    repair_records(str(records), repaired)
    capfd.readouterr()
    train(20, data=repaired)
    assert "of 20" in capfd.readouterr().out.rpartition("going on after step ")[2]
    path = tmp_path / "repaired" / "dataset_info.json"
    path.write_text(path.read_text().replace('"repaired_from": "', '"repaired_from": "0'))
    with pytest.raises(MismatchError, match="begun with another --data"):
        train(20, data=repaired)
