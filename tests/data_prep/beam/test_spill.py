"""Spill files: what is written comes back, by shards, from a bounded memory."""

import io
import os
import pickle

import numpy as np
import pytest

import data_prep.beam.spill
from data_prep.beam.pickles import load_pickle
from data_prep.beam.spill import read_spill, write_spill
from data_prep.blocks.sequences import Block, Record


def make_records(num_annotations, count):
    random = np.random.default_rng(num_annotations)

    def block():
        spans = [random.bytes(size * n) for n in range(num_annotations) for size in (2, 1)]
        ids, *lists = (random.bytes(int(random.integers(70_000))) for _ in range(5))
        numbers = int(random.integers(2**40)), int(random.integers(2**31))
        return Block(*numbers, ids, 2**33, (*lists, *spans))

    return [
        Record(2**64 - 1 - n, 2**63 - 1, n, block(), block() if n % 2 else None, n % 2)
        for n in range(count)
    ]


@pytest.mark.parametrize("segment_bytes", [1, 200_000, 2**30])
@pytest.mark.parametrize("num_annotations", [0, 1, 2])
def test_spilled_records_come_back_as_they_were(
    num_annotations, segment_bytes, tmp_path, monkeypatch
):
    monkeypatch.setattr(data_prep.beam.spill, "SEGMENT_BYTES", segment_bytes)
    records = make_records(num_annotations, 20)
    path = str(tmp_path / "spill")
    write_spill(path, records, num_shards=3)
    found = [list(read_spill(path, shard)) for shard in range(3)]
    assert found == [[r for r in records if r.order_key % 3 == shard] for shard in range(3)]


def test_a_file_without_records_has_none_for_any_shard(tmp_path):
    path = str(tmp_path / "spill")
    write_spill(path, [], num_shards=2)
    assert list(read_spill(path, 0)) == list(read_spill(path, 1)) == []


def test_a_spill_file_is_read_a_part_at_a_time(tmp_path, monkeypatch):
    """Records are written when `SEGMENT_BYTES` of them wait, and loaded so many at once."""
    monkeypatch.setattr(data_prep.beam.spill, "SEGMENT_BYTES", 100_000)
    loads = []
    load = data_prep.beam.spill.load_pickle

    def noted_load(*arguments):
        loads.append(load(*arguments))
        return loads[-1]

    monkeypatch.setattr(data_prep.beam.spill, "load_pickle", noted_load)
    path = str(tmp_path / "spill")
    write_spill(path, iter(make_records(0, 50)), num_shards=1)
    assert len(list(read_spill(path, 0))) == 50
    _, *parts = loads
    for part in parts:
        waiting = [1_000 + len(record.block.token_ids) for record in part[:-1]]
        waiting += [len(record.second.token_ids) for record in part[:-1] if record.second]
        assert sum(waiting) <= 100_000


class Intruder:
    """Calls a function when it is loaded."""

    def __reduce__(self):
        return os.mkdir, ("made",)


@pytest.mark.parametrize("content", [Intruder(), np.arange(3), os.system])
def test_pickles_of_other_classes_are_refused(content, tmp_path, monkeypatch):
    """The folder that a killed command seems to have left may come from somebody else."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(pickle.UnpicklingError, match="does not belong here"):
        load_pickle(io.BytesIO(pickle.dumps(content)), (Record, Block))
    assert not list(tmp_path.iterdir())
