"""What is told of the speed of a run, from measurements that are made up."""

import types

import pytest

from spanbert_tf.models.work import Work
from spanbert_tf.training.chips import CHIPS, chip_named
from spanbert_tf.training.throughput import Measured, Throughput


def _devices(kind="", num_replicas=1):
    return types.SimpleNamespace(
        num_replicas=num_replicas, chip_kind=lambda: kind, agreed=lambda value: value
    )


def _measured(seconds, tokens=600.0, waited=0.0):
    return Measured(seconds, waited, Work(tokens, positions=800.0, operations=989e12))


def test_values_are_shares_and_speeds():
    throughput = Throughput(_devices("NVIDIA H100 80GB HBM3", 2), "mixed_bfloat16")
    assert throughput.values(_measured(4.0, waited=1.0)) == {
        "tokens_per_second": 150.0,
        "padding_share": 0.25,
        "input_wait_share": 0.25,
        "operations_per_second": 989e12 / 4,
        "limit_share": 0.125,  # of two cards
    }


@pytest.mark.parametrize(
    ("kind", "precision"),
    [("", "mixed_bfloat16"), ("cpu", "mixed_bfloat16"), ("NVIDIA H200", "float32")],
)
def test_a_limit_that_is_not_known_is_left_out(kind, precision):
    """The published figures are those of half precision."""
    assert "limit_share" not in Throughput(_devices(kind), precision).values(_measured(1.0))


def test_waiting_that_is_not_known_is_left_out():
    """In a deterministic run TensorFlow reads no clock."""
    throughput = Throughput(_devices(), "float32")
    measured = _measured(1.0, waited=None)
    assert "input_wait_share" not in throughput.values(measured)
    assert measured.plus(_measured(1.0)).seconds_waited is None
    throughput.add(measured)
    throughput.add(measured)
    throughput.add(measured)
    assert "600 tokens/s" in throughput.summary()
    assert "waits for input" not in throughput.summary()


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("TPU v5 lite", "v5e"),
        ("TPU v6 lite", "v6e"),
        ("TPU v5p", "v5p"),
        ("TPU v5", "v5p"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("Tesla V100-SXM2-16GB", "v100"),
        ("NVIDIA H100 PCIe", None),  # slower than the card of the table
        ("NVIDIA H100 NVL", None),
        ("NVIDIA H200 NVL", None),
        ("TPU v4", None),
        ("cpu", None),
    ],
)
def test_chips_are_known_by_the_names_of_their_drivers(kind, name):
    assert chip_named(kind) is (CHIPS[name] if name else None)


def test_a_summary_leaves_out_the_line_with_the_compilation():
    throughput = Throughput(_devices(), "float32")
    assert throughput.summary() == ""
    throughput.add(_measured(100.0))
    assert throughput.summary() == (
        "6 tokens/s without padding, 25.0% of the positions are padding, "
        "0.0% of the time waits for input, 9.89 T operations/s"
    )
    throughput.add(_measured(1.0, waited=0.5))
    throughput.add(_measured(3.0, waited=1.5))
    assert throughput.summary() == (
        "300 tokens/s without padding, 25.0% of the positions are padding, "
        "50.0% of the time waits for input, 494 T operations/s "
        "(without the first line of the log, which took 0:01:40 with compilation)"
    )
