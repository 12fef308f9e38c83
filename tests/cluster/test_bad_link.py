"""Runs of two hosts with a bad link between them.

TensorFlow ends a run whose workers do not hear of each other in time, so these tests run alone: a
busy machine would make the link worse than they say.
"""

import time

import pytest
from hosts import network_of, start_workers
from small_runs import (
    MODELS,
    assert_equal_weights,
    assert_succeed,
    await_step,
    command_line,
    last_step,
    weights_of,
)

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("command", MODELS)
def test_a_bad_link_changes_no_bit(command, place, undisturbed, tmp_path):
    """Packets come late or not at all, and for ten seconds none of them comes."""
    run, steps = tmp_path / "run", 10  # of 3 s each
    with network_of(2, delay=0.02, loss=0.01) as hosts:
        workers = start_workers(hosts, command_line(command, place, run, steps))
        await_step(run, 4, workers)
        hosts[1].set_link("down")
        time.sleep(10)
        hosts[1].set_link("up")
        assert last_step(run) < steps
        assert_succeed(workers, steps)
    assert_equal_weights(weights_of(command, run), undisturbed(command, steps))
