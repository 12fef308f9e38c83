"""Which records are held out."""

import pytest

from data_prep.blocks.held_out import SplitKeys, find_held_out
from data_prep.blocks.sequences import Record


@pytest.mark.parametrize("fraction", [0.001, 0.5, 0.9])
def test_of_pairs_each_split_has_two_documents_whatever_the_fraction(fraction):
    """The key at the limit itself is not held out: else a split ends with one, or none."""
    keys = (10, 20, 2**62, 2**62 + 10)  # of all documents
    file = SplitKeys(keys, (), num_documents=4, num_records=4, squared_records=4)
    held_out = find_held_out([file], fraction, "pair")
    splits = [held_out.split(_record(key)) for key in keys]
    assert splits == ["validation", "validation", "train", "train"]


@pytest.mark.parametrize(("fraction", "count"), [(0.01, 1), (0.4, 2), (0.6, 2), (0.99, 3)])
def test_of_few_documents_blocks_are_held_out_to_the_number_and_never_all(fraction, count):
    """Four records of one document; rounded, but one at least, and all but one at most."""
    ids = (30, 10, 40, 20)
    file = SplitKeys((5,), ids, num_documents=1, num_records=4, squared_records=16)
    held_out = find_held_out([file], fraction, "single")
    splits = {key: held_out.split(_record(5, key)) for key in ids}
    assert [key for key in sorted(ids) if splits[key] == "validation"] == sorted(ids)[:count]


def _record(document_key, record_id=0):
    fields = dict.fromkeys(Record._fields, 0)
    return Record(**fields | {"document_key": document_key, "record_id": record_id})
