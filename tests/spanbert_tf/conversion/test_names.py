"""The table of names: every array is found by its name in each format, in any layer."""

import numpy as np
import pytest

from spanbert_tf.cli import convert
from spanbert_tf.config.positions import NAMED_POSITIONS, POSITION_EMBEDDINGS
from spanbert_tf.conversion.convert import SOURCES, TARGETS
from spanbert_tf.conversion.names import PARTS, entries_of, find_entry
from spanbert_tf.conversion.parameters import encoder_parameters
from spanbert_tf.models import SpanBertBackbone

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


@pytest.mark.parametrize("kind", POSITION_EMBEDDINGS)
def test_the_arrays_of_a_kind_of_positions_are_the_variables_of_its_encoder(kind):
    backbone = SpanBertBackbone(9, 1, 2, 8, 8, position_embeddings=kind)
    in_table = {
        entry.name for entry in entries_of("encoder", num_layers=1) if kind in entry.positions
    }
    assert {parameter.name for parameter in encoder_parameters(backbone)} == in_table


def test_the_command_offers_what_the_tables_have():
    # It lists the names itself: `--help` would take longer if it imported the tables.
    offered = {option.name: option.type for option in convert.params}
    assert sorted(offered["source_format"].choices) == sorted(SOURCES)
    assert sorted(offered["target_format"].choices) == sorted(TARGETS)
    assert offered["positions"].choices == NAMED_POSITIONS


def test_attention_heads_are_split_and_joined():
    heads, width = 3, 12
    for entry in ENTRIES:
        if entry.heads:
            shape = (width, width) if entry.is_matrix else (width,)
            split = np.empty(shape).reshape(entry.split_shape(shape, heads)).shape
            assert entry.joined_shape(split) == shape
            assert heads in split or not entry.is_matrix
