"""The table of names: every array is found by its name in each format, in any layer."""

import numpy as np
import pytest

from spanbert_tf.conversion.names import PARTS, entries_of, find_entry

LAYERS = 12
ENTRIES = [entry for part in PARTS for entry in entries_of(part, LAYERS)]


def test_each_array_has_one_name_in_each_format():
    for column in ("name", "tf1", "model_garden", "objects"):
        names = [getattr(entry, column) for entry in ENTRIES]
        names = [name for name in names if name is not None]
        assert len(set(names)) == len(names) and not any("{" in name for name in names)


@pytest.mark.parametrize(("column", "before"), [("tf1", ""), ("model_garden", "model/encoder/")])
def test_an_array_is_found_by_its_name(column, before):
    for entry in ENTRIES:
        theirs = getattr(entry, column)
        if theirs is not None:
            assert find_entry(before + theirs, column) == entry
            assert find_entry(f"{theirs}/Adam", column) is None


def test_attention_heads_are_split_and_joined():
    heads, width = 3, 12
    for entry in ENTRIES:
        if entry.heads:
            shape = (width, width) if entry.is_matrix else (width,)
            split = np.empty(shape).reshape(entry.split_shape(shape, heads)).shape
            assert entry.joined_shape(split) == shape
            assert heads in split or not entry.is_matrix
