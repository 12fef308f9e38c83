"""Runs of two hosts: they train what two devices do, and what one that is lost does to them."""

import signal
import time

import numpy as np
import pytest
from hosts import network_of, outcomes, signal_all, spanbert_tf, start_workers
from small_runs import (
    FAULT_AT,
    MODELS,
    STEPS,
    assert_equal_weights,
    assert_succeed,
    await_step,
    command_line,
    last_step,
    weights_of,
)

pytestmark = pytest.mark.cluster

ENDS_WITHIN = 75  # seconds from a fault until every process has ended; 45 are of silence


@pytest.fixture
def hosts():
    with network_of(2) as found:
        yield found


@pytest.mark.parametrize("command", MODELS)
def test_two_hosts_train_what_two_devices_of_one_do(command, place, undisturbed, tmp_path):
    devices = ["--devices", "2", "--set", "training.strategy=mirrored"]
    spanbert_tf(*command_line(command, place, tmp_path / "run"), *devices)
    found = weights_of(command, tmp_path / "run")
    for values, others in zip(found, undisturbed(command), strict=True):
        np.testing.assert_allclose(values, others, atol=1e-5)


def test_so_they_do_with_adapters_alone(hosts, place, tmp_path):
    devices = ["--devices", "2", "--set", "training.strategy=mirrored"]
    one, two = (
        [*command_line("finetune", place, tmp_path / name), "--set", "optimizer.lora_rank=2"]
        for name in ("1", "2")
    )
    spanbert_tf(*one, *devices)
    assert_succeed(start_workers(hosts, two))
    found, expected = (weights_of("finetune", tmp_path / name) for name in ("2", "1"))
    for values, others in zip(found, expected, strict=True):
        np.testing.assert_allclose(values, others, atol=1e-5)


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_hosts_share_a_grid(backend, hosts, place, tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", backend)
    words = [
        "--grid",
        "--set",
        "grid.learning_rates=[0.001,0.0001]",
        "--set",
        "grid.batch_sizes=[8]",
    ]
    words += ["--set", "training.max_steps=30"]
    devices = ["--devices", "2", "--set", "training.strategy=mirrored"]
    alone = spanbert_tf(*command_line("finetune", place, tmp_path / "alone"), *words, *devices)
    workers = start_workers(hosts, [*command_line("finetune", place, tmp_path / "runs"), *words])
    first, second = outcomes(workers)
    assert (first[0], second[0]) == (0, 0), (first, second)
    (best,) = [line for line in first[1].splitlines() if "best on" in line]
    (expected,) = [line for line in alone.splitlines() if "best on" in line]
    assert best == expected.replace(str(tmp_path / "alone"), str(tmp_path / "runs"))
    assert "best on" not in second[1]


FAULTS = {
    "the other worker is killed": lambda hosts, workers: signal_all(workers[1], signal.SIGKILL),
    "the chief is killed": lambda hosts, workers: signal_all(workers[0], signal.SIGKILL),
    "the other worker is stopped": lambda hosts, workers: signal_all(workers[1], signal.SIGSTOP),
    "the link is down for good": lambda hosts, workers: hosts[1].set_link("down"),
}


def assert_say_what_to_do(ended):
    for status, _, errors in ended:
        assert status == 1
        [line] = errors.splitlines()
        assert "start all workers again" in line


@pytest.mark.parametrize("command", MODELS)
def test_a_lost_host_ends_all_with_a_line_and_the_same_command_goes_on(
    command, hosts, place, undisturbed, tmp_path
):
    """One fault after the other; in the end no bit tells of any."""
    run = tmp_path / "run"
    arguments = command_line(command, place, run)
    workers = start_workers(hosts, arguments)
    for number, fault in enumerate(FAULTS, 1):
        await_step(run, 8 * number, workers)  # a checkpoint, which is written each 7 steps, later
        FAULTS[fault](hosts, workers)
        start = time.monotonic()
        survivors = [worker for worker in workers if "stopped" not in fault or worker is workers[0]]
        ended = outcomes(survivors, ENDS_WITHIN)
        seconds = time.monotonic() - start
        signal_all(workers[1], signal.SIGCONT)
        if len(survivors) == 1:  # finds itself left when gRPC next tries, after 1, 6, 16 … s
            ended += outcomes(workers[1:])
        assert_say_what_to_do(one for one in ended if one[0] != -signal.SIGKILL)
        print(f"{command}: {fault}: {seconds:.0f} s, step {last_step(run)}")
        assert last_step(run) < STEPS
        hosts[1].set_link("up")
        workers = start_workers(hosts, arguments)
    assert_succeed(workers)
    assert_equal_weights(weights_of(command, run), undisturbed(command))


@pytest.mark.parametrize("command", MODELS)
def test_so_it_is_on_jax_where_both_hosts_train_what_two_devices_do(
    command, hosts, place, tmp_path, monkeypatch
):
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    alone, run = tmp_path / "alone", tmp_path / "run"
    devices = ["--devices", "2", "--set", "training.strategy=mirrored"]
    spanbert_tf(*command_line(command, place, alone), *devices)
    arguments = command_line(command, place, run)
    workers = start_workers(hosts, arguments)
    await_step(run, FAULT_AT, workers)
    hosts[1].set_link("down")
    start = time.monotonic()
    assert_say_what_to_do(outcomes(workers, ENDS_WITHIN))
    print(f"{command} on JAX: {time.monotonic() - start:.0f} s, step {last_step(run)}")
    hosts[1].set_link("up")
    assert_succeed(start_workers(hosts, arguments))
    assert_equal_weights(weights_of(command, run), weights_of(command, alone))
