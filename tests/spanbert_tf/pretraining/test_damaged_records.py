"""Records that are damaged before a run or in the middle of it."""

import pathlib
import shutil

import pytest

from spanbert_tf.config import load_config
from spanbert_tf.errors import BadInputError
from spanbert_tf.pretraining.run import run_pretraining

SHARD = "train-00001-of-00002.tfrecord"


@pytest.fixture
def records(tiny_records, tmp_path):
    return pathlib.Path(shutil.copytree(tiny_records, tmp_path / "records"))


@pytest.fixture
def train(tiny_overrides, records, tmp_path):
    """Trains up to a step; a second time it goes on."""

    def run(num_steps, *overrides):
        overrides = [*tiny_overrides, *overrides, f"training.steps={num_steps}"]
        run_pretraining(load_config("spanbert_base", overrides), str(records), f"{tmp_path}/run")

    return run


def _damage(shard):
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)


def test_damaged_shard_is_named(train, records):
    _damage(records / SHARD)
    with pytest.raises(BadInputError, match=rf"{SHARD}: record \d+ .*damaged"):
        train(12)


@pytest.mark.slow
def test_damaged_records_are_skipped_on_request(train, records, capfd):
    shard = records / SHARD
    shard.write_bytes(shard.read_bytes()[:-1])
    train(5, "data.on_corrupt=skip")
    assert f"{shard}: 1 damaged records are skipped, 19 are whole" in capfd.readouterr().out
    # The same run goes on with the same records.
    train(7, "data.on_corrupt=skip")
    assert "going on after step 5 of 7" in capfd.readouterr().out


@pytest.mark.slow
def test_damage_that_comes_later_does_not_end_a_run(train, records, capfd):
    train(3)
    _damage(records / SHARD)
    with pytest.raises(BadInputError, match="damaged"):
        train(20)
    train(20, "data.on_corrupt=skip")
    printed = capfd.readouterr().out
    assert f"{records / SHARD}: 1 damaged records are skipped, 19 are whole" in printed
    assert "of 20" in printed.rpartition("going on after step ")[2]
