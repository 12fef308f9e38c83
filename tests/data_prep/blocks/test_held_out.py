"""Which records are held out."""

import pytest

from data_prep.beam.spill import SpilledRecord
from data_prep.blocks.held_out import SplitKeys, find_held_out


@pytest.mark.parametrize("fraction", [0.001, 0.5, 0.9])
def test_of_pairs_each_split_has_two_documents_whatever_the_fraction(fraction):
    """The key at the limit itself is not held out: else a split ends with one, or none."""
    keys = (10, 20, 2**62, 2**62 + 10)  # of all documents
    file = SplitKeys(keys, (), num_documents=4, num_records=4, squared_records=4)
    held_out = find_held_out([file], fraction, "pair")
    splits = [held_out.split(_record(key)) for key in keys]
    assert splits == ["validation", "validation", "train", "train"]


def _record(key):
    fields = dict.fromkeys(SpilledRecord._fields, 0)
    return SpilledRecord(**fields | {"document_key": key})
